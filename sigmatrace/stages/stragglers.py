"""Stage stragglers: which processes others waited for, at barriers and for messages.

At a barrier all wait for the one that comes last; of several at the same time, the one with the
highest number counts, and where all come at once, none does. Who waits at several barriers at once
(regions within each other, whose names both tell of a barrier) waits once, at the one that it came
to first. What receivers waited until messages
were sent is that of ``waits``; a message that is seen at several layers is waited for once, so that
the layer counts at which it is most.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.pairs import Ints
from sigmatrace.stages.table_stage import TableStage, Told


class Stragglers(TableStage):
    """Makes ``stragglers``."""

    name: ClassVar[str] = "stragglers"
    requires: ClassVar[Columns] = {
        "barriers": {"barrier": "i4", "last_ns": "i8", "spread_ns": "i8", "last_proc": "i4"},
        "barrier_arrivals": {
            **{"barrier": "i4", "proc": "i4", "gpu": "u4"},
            **{"arrival_ns": "i8", "late_ns": "i8"},
        },
        "waits": {"src_proc": "i4", "layer": "u1", "late_sender_ns": "i8"},
        "processes": {"proc": "i4"},
    }
    produces: ClassVar[Columns] = {"stragglers": STAGE_TABLES["stragglers"]}

    def survey(self, run: Run) -> Told:
        """Add up what was waited for each process."""
        processes = run.tables["processes"].num_rows
        barriers, arrivals = run.tables["barriers"], run.tables["barrier_arrivals"]
        number, proc = column(arrivals, "barrier"), column(arrivals, "proc")
        came = np.unique(proc.astype(np.int64) << 32 | number) >> 32  # once, of several GPUs
        spread = column(barriers, "spread_ns") > 0
        since, until = column(arrivals, "arrival_ns"), column(barriers, "last_ns")[number]
        member = proc.astype(np.int64) << 32 | column(arrivals, "gpu")
        waits = _once(member, since, until)
        waited = _sums(number, waits, barriers.num_rows)
        last = column(barriers, "last_proc")[spread]
        table = {
            "proc": np.arange(processes, dtype=np.int32),
            "barriers": np.bincount(came, minlength=processes),
            "last": np.bincount(last, minlength=processes),
            "caused_ns": _sums(last, waited[spread], processes),
            "late_ns": _sums(proc, column(arrivals, "late_ns"), processes),
            "late_sender_ns": _late_sends(run.tables["waits"], processes),
        }
        ledger = {
            "barriers": barriers.num_rows,
            "barriers_all_at_once": int((~spread).sum()),
            "caused_ns": int(waited[spread].sum()),
            "at_several_barriers_at_once_ns": int((until - since - waits).sum()),
        }
        return Told(pa.table(table), ledger)


def _once(member: Ints, since: Ints, until: Ints) -> Ints:
    """Return how long each lasted, without what another one of its member that began before covers.

    Args:
        member: ``(n,)`` i8.
        since: ``(n,)`` i8 ns; of equal ones the first row began first.
        until: ``(n,)`` i8 ns, not before ``since``.

    Returns:
        ``(n,)`` i8 ns. Complexity O(n log n).
    """
    order = np.lexsort((since, member))
    first = np.diff(member[order], prepend=-1) != 0
    # The latest end so far of each member: places of ends, sorted, behind those of the member.
    ends, place = np.unique(until[order], return_inverse=True)
    begin = np.cumsum(first) * ends.size
    latest = ends[np.maximum.accumulate(begin + place) - begin]
    covered = np.where(first, since[order], np.roll(latest, 1))
    found = np.empty(order.size, np.int64)
    found[order] = np.maximum(until[order] - np.maximum(since[order], covered), 0)
    return found


def _sums(place: Ints, ns: Ints, count: int) -> Ints:
    """Return sums by place, ``(count,)`` i8."""
    total = np.zeros(count, np.int64)
    np.add.at(total, place, ns)
    return total


def _late_sends(waits: pa.Table, processes: int) -> Ints:
    """Return what was waited for sends, by process, at the layer where that is most."""
    src, layer, ns = (column(waits, name) for name in ("src_proc", "layer", "late_sender_ns"))
    most = np.zeros(processes, np.int64)
    for one in np.unique(layer).tolist():
        most = np.maximum(most, _sums(src[layer == one], ns[layer == one], processes))
    return most
