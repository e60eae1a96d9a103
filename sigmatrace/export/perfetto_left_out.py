"""What a choice left out, for the ledger: records, and ends of arrows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sigmatrace.export.perfetto_chosen import Chosen
from sigmatrace.export.perfetto_targets import silent_targets
from sigmatrace.export.perfetto_tracks import Tracks
from sigmatrace.partition import Partition

_NAMES = ("not_chosen", "beyond_budget", "flow_ends_left_out", "one_sided_targets_known")
_SEEN = ("_matched", "_unmatched.not_seen_{}", "_unmatched.duplicate")
"""Messages of which one end is known to be one of an arrow (stage match)."""


def left_out(
    part: Partition,
    shown: Mapping[str, Partition],
    reaching: Partition,
    tracks: Tracks,
    asked: Chosen | None,
) -> dict[str, int]:
    """Return what a choice and the budget left out of a partition.

    Args:
        part: The partition.
        shown: By table the partition with the chosen rows of this table.
        reaching: The partition with the operations whose unseen arrival is chosen.
        tracks: Those of the run.
        asked: What was asked for, where the budget does not hold all of it.

    Returns:
        ``not_chosen``: records; ``beyond_budget``: those of them that were asked for.
        ``flow_ends_left_out``: ends of arrows, of messages and of one-sided operations;
        ``one_sided_targets_known``: operations that reach a known queue pair unseen, shown or not.
        All 0 where everything is chosen.
    """
    if reaching is part:
        return dict.fromkeys(_NAMES, 0)
    ops = shown["ops"]
    silent = _silent(part, tracks)
    gone = _ends(part) - _ends(ops) + silent - _silent(ops, tracks)
    gone += silent - reaching.tables["ops"].num_rows
    there = sum(part.tables[name].num_rows for name in shown)
    kept = sum(one.tables[name].num_rows for name, one in shown.items())
    beyond = 0 if asked is None else asked.count(part, tracks) - kept
    return dict(zip(_NAMES, (there - kept, beyond, gone, silent), strict=True))


def arrows_equation(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return what must hold of arrows.

    Where ends of some were left out, it is not known which of the others belong together: then
    the ends must be those of all messages and one-sided operations.
    """
    if not counts["flow_ends_left_out"]:
        return {
            "name": "matched + one-sided arrivals = flows + receives before their sends",
            "left": ["stages.match.sends_matched", counts["one_sided_arrivals"]],
            "right": counts["flows"] + counts["flows_backwards"],
        }
    kinds = (("sends", "received"), ("receives", "sent"))
    seen = [f"stages.match.{kind}{end.format(other)}" for kind, other in kinds for end in _SEEN]
    ends = counts["flow_starts"] + counts["flow_ends"] + counts["flow_ends_left_out"]
    return {
        "name": "ends of arrows + those left out = of messages + of one-sided operations",
        "left": ends,
        "right": [2 * counts["one_sided_targets_known"], *seen],
    }


def _ends(part: Partition) -> int:
    """Return how many operations are an end of a message's arrow."""
    return int(np.count_nonzero(part.column("ops", "flow")))


def _silent(part: Partition, tracks: Tracks) -> int:
    """Return how many operations reach a known queue pair unseen."""
    if tracks.qps.keys.size == 0:
        return 0
    return int(np.count_nonzero(silent_targets(part, tracks) >= 0))
