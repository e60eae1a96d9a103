"""Stage imbalance: how uneven traffic is between the members of each level.

Members are all that could have had traffic (``ends.Known.members``) and all that had some. What a
member sends to itself is no traffic between members and is left out; what it sends to an end that
is not known counts as sent. Pairs are of two different ends that are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.participants import member_words
from sigmatrace.partition import Run, arrow_type, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.ends import KNOWN_COLUMNS, LEVELS, Known
from sigmatrace.stages.sums import LIMB, LOW, column_sums, sums_of
from sigmatrace.stages.table_stage import TableStage, Told
from sigmatrace.text import byte_text, counted
from sigmatrace.trace_format import layer_text

TOLD = ("rank", "node")
"""Levels of which the closing summary tells."""
EVEN = "1"
"""A ratio as it is told; what is as even as that is not told to be uneven."""
_MOST = np.uint64(2**64 - 1)


class Imbalance(TableStage):
    """Makes ``imbalance``."""

    name: ClassVar[str] = "imbalance"
    requires: ClassVar[Columns] = {
        "communication": STAGE_TABLES["communication"],
        **KNOWN_COLUMNS,
    }
    produces: ClassVar[Columns] = {"imbalance": STAGE_TABLES["imbalance"]}

    def survey(self, run: Run) -> Told:
        """Compare the members of each level and layer."""
        table = run.tables["communication"]
        known = Known(run)
        layers, levels = column(table, "layer"), column(table, "level")
        members = {layer: known.members(layer) for layer in np.unique(layers).tolist()}
        rows, ledger = [], {}
        for level in LEVELS:
            told = dict.fromkeys(("between_bytes", "own_bytes", "source_unknown_bytes"), 0)
            for layer, of_layer in members.items():
                at = np.flatnonzero((layers == layer) & (levels == level))
                if at.size:
                    row, parts = _compared(table.take(pa.array(at)), of_layer[level])
                    rows.append({"level": level, "layer": layer, **row})
                    told = {key: told[key] + parts[key] for key in told}
            ledger[level] = told
        balance = list(_equations(ledger, table))
        return Told(_table(rows), {"levels": ledger, "balance": balance})

    def lines(self, resolved: Told, run: Run) -> Sequence[str]:
        """Return how uneven ranks and nodes are, where there are several."""
        return list(_lines(resolved.table, run))


def _table(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    types = [(name, arrow_type(dtype)) for name, dtype in STAGE_TABLES["imbalance"].items()]
    return pa.Table.from_pylist(list(rows), schema=pa.schema(types))


def _compared(rows: pa.Table, members: Sequence[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the numbers of one level and layer, and its bytes by where they go.

    Args:
        rows: Of ``communication``.
        members: What could have had traffic.
    """
    ends = pa.concat_arrays([rows[end].combine_chunks() for end in ("src", "dst")])
    coded = ends.dictionary_encode()
    known = coded.dictionary.to_pylist()
    names = [name for name in dict.fromkeys([*members, *known]) if name]
    place = {name: at for at, name in enumerate(names)} | {"": len(names)}
    codes = np.array([place[name] for name in known], np.int64)[coded.indices.to_numpy()]
    src, dst = codes[: rows.num_rows], codes[rows.num_rows :]
    size = column(rows, "size_bytes")
    between = src != dst
    parts = {
        "between_bytes": _total(size[between & (src < len(names))]),
        "own_bytes": _total(size[~between & (src < len(names))]),
        "source_unknown_bytes": _total(size[src == len(names)]),
    }
    found: dict[str, Any] = {"members": len(names)}
    for way, end in (("egress", src), ("ingress", dst)):
        found |= _extremes(way, names, _sums(end[between], size[between], len(names)))
    pairs = np.flatnonzero(between & (src < len(names)) & (dst < len(names)) & (size > 0))
    return found | _heaviest(names, src[pairs], dst[pairs], size[pairs]), parts


def _sums(end: NDArray[np.int64], size: NDArray[np.uint64], members: int) -> NDArray[np.uint64]:
    """Return the bytes of each member, ``(members,)`` u8; at most 2^64 - 1."""
    limbs = np.stack([np.ones_like(size), size & LOW, size >> LIMB], axis=1)
    total = sums_of(end.astype(np.uint64), limbs)
    found = np.zeros(members + 1, np.uint64)
    found[total.key.astype(np.int64)] = column_sums(total)[0]
    return found[:members]


def _extremes(way: str, names: Sequence[str], size: NDArray[np.uint64]) -> dict[str, Any]:
    """Return most, least and their ratio; the first of equal ones."""
    if not names:
        return {
            f"{way}_max": "",
            f"{way}_max_bytes": 0,
            f"{way}_min": "",
            f"{way}_min_bytes": 0,
        } | {f"{way}_ratio": 1.0}
    most, least = int(size.argmax()), int(size.argmin())
    return {
        f"{way}_max": names[most],
        f"{way}_max_bytes": int(size[most]),
        f"{way}_min": names[least],
        f"{way}_min_bytes": int(size[least]),
        f"{way}_ratio": ratio(int(size[most]), int(size[least])),
    }


def ratio(most: int, least: int) -> float:
    """Return ``most / least``: 1 of equal ones, inf where the least is 0."""
    if most == least:
        return 1.0
    return most / least if least else float("inf")


def _heaviest(
    names: Sequence[str],
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
    size: NDArray[np.uint64],
) -> dict[str, Any]:
    """Return the heaviest pair and the mean of all pairs that have traffic."""
    if not size.size:
        none = {"pair_src": "", "pair_dst": "", "pair_max_bytes": 0}
        return {**none, "pair_mean_bytes": 0.0, "pair_ratio": 1.0}
    at = int(size.argmax())
    mean = _total(size) / size.size
    return {
        "pair_src": names[src[at]],
        "pair_dst": names[dst[at]],
        "pair_max_bytes": int(size[at]),
        "pair_mean_bytes": mean,
        "pair_ratio": int(size[at]) / mean,
    }


def _total(size: NDArray[np.uint64]) -> int:
    return sum(size.tolist())


def _equations(
    ledger: Mapping[str, Mapping[str, int]], table: pa.Table
) -> Iterator[dict[str, Any]]:
    """Yield that all bytes of a level are somewhere; sums beyond 64 bits are not judged."""
    if (column(table, "size_bytes") == _MOST).any():
        return
    for level, told in ledger.items():
        right = f"stages.communication.levels.{level}.size_bytes"
        yield {"name": f"bytes at level {level}", "left": list(told.values()), "right": right}


def _lines(table: pa.Table, run: Run) -> Iterator[str]:
    for row in table.to_pylist():
        if row["level"] in TOLD and row["members"] > 1 and row["egress_max_bytes"]:
            members = counted(row["members"], *member_words(run, row["level"]))
            where = f"{layer_text(row['layer'])}, {members}"
            said = [_way_text(row)]
            if not row["pair_max_bytes"]:
                said.append("to ends that are not known")
            elif (times := _times(row["pair_ratio"])) != EVEN:
                pair = f"{row['pair_src']} -> {row['pair_dst']}"
                said.append(f"{pair} {times} times the mean pair")
            yield f"imbalance  {where}: {'; '.join(said)}"


def _way_text(row: Mapping[str, Any]) -> str:
    """Return how unevenly members sent."""
    sizes = [byte_text(row[f"egress_{edge}_bytes"]) for edge in ("max", "min")]
    if row["egress_max_bytes"] == row["egress_min_bytes"]:
        return f"all sent {sizes[0]}"
    most, least = (
        f"{row[f'egress_{edge}']} {size}" for edge, size in zip(("max", "min"), sizes, strict=True)
    )
    if not row["egress_min_bytes"]:
        return f"sent unevenly ({most}, {row['egress_min']} nothing)"
    if (times := _times(row["egress_ratio"])) == EVEN:
        return f"all sent about {sizes[0]}"
    return f"sent {times} to 1 ({most}, {least})"


def _times(ratio: float) -> str:
    return f"{ratio:.3g}"
