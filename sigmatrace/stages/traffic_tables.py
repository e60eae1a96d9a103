"""The tables ``sizes`` and ``traffic`` from sums by channel and class of sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.sums import Sums, column_sums
from sigmatrace.trace_format import Op

SIZE_BITS_MAX = 64
_ANY = 2**64 - 1
_KNOWN = range(SIZE_BITS_MAX + 1)
LEAST = np.array([*(1 << bits >> 1 for bits in _KNOWN), *[0] * (255 - SIZE_BITS_MAX)], np.uint64)
MOST = np.array([*((1 << bits) - 1 for bits in _KNOWN), *[_ANY] * (255 - SIZE_BITS_MAX)], np.uint64)
"""``(256,)`` u8, smallest and largest size by class; unknown ones may be of any size."""


def tables_of(total: Sums, run: Run) -> tuple[dict[str, pa.Table], int]:
    """Return ``sizes`` and ``traffic``, and how many of their sums of bytes are beyond 64 bits.

    Args:
        total: By channel, class of sizes, operation, nested (``size_kernel``).
        run: With the tables ``channels`` and ``routes``.
    """
    rows = _rows(total, run)
    tables, beyond = {}, 0
    for name in ("sizes", "traffic"):
        tables[name], over = _grouped(rows, STAGE_TABLES[name])
        beyond += over
    return tables, beyond


def _rows(total: Sums, run: Run) -> pa.Table:
    """Return the sums with all that is known of their channels.

    Channels that are not known: process -1, object 0, layer 0, names "".
    """
    key = total.key
    channel = (key >> np.uint64(17)).astype(np.int64)
    bits = (key >> np.uint64(9) & np.uint64(255)).astype(np.uint8)
    op = (key >> np.uint64(1) & np.uint64(255)).astype(np.uint8)
    known = channel < run.tables["routes"].num_rows
    at = pa.array(channel, mask=~known)

    def of(table: str, name: str, none: Any) -> pa.Array:
        return pc.fill_null(run.tables[table].column(name).combine_chunks().take(at), none)

    columns: dict[str, Any] = {
        "proc": of("channels", "proc", -1),
        "object": of("channels", "object", 0),
        "layer": of("channels", "layer", 0),
        "op": op,
        "nested": (key & np.uint64(1)).astype(np.uint8),
        "least_bytes": LEAST[bits],
        "most_bytes": MOST[bits],
        "count": total.sums[:, 0],
        "low": total.sums[:, 1],
        "high": total.sums[:, 2],
        "unknown": np.where(bits > SIZE_BITS_MAX, total.sums[:, 0], np.uint64(0)),
    }
    back = pa.array(op == Op.GET)  # its bytes flow towards the one that asks
    for name, none in (("proc", -1), ("name", "")):
        asks, asked = of("routes", f"src_{name}", none), of("routes", f"dst_{name}", none)
        columns[f"src_{name}"] = pc.if_else(back, asked, asks)
        columns[f"dst_{name}"] = pc.if_else(back, asks, asked)
    return pa.table(columns)


def _grouped(rows: pa.Table, columns: dict[str, str]) -> tuple[pa.Table, int]:
    """Return a table of these columns with one row for each of its keys, in their order."""
    amounts = ("count", "low", "high", "unknown")
    keys = [name for name in columns if name not in ("count", "size_bytes", "size_unknown")]
    sums = [(name, "sum") for name in amounts]
    added = rows.group_by(keys, use_threads=False).aggregate(sums)
    added = added.sort_by([(name, "ascending") for name in keys])
    count, low, high, unknown = (column(added, f"{name}_sum") for name in amounts)
    size_bytes, over = column_sums(Sums(count, np.stack([count, low, high], axis=1)))
    values: dict[str, Any] = {"count": count, "size_bytes": size_bytes, "size_unknown": unknown}
    values |= {name: added.column(name) for name in keys}
    return pa.table({name: values[name] for name in columns}), over
