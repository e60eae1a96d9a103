"""The tables ``sizes`` and ``traffic`` from sums by channel and class of sizes.

Rows are grouped and sorted as integers: names as their places in the sorted list of all names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.partition import Run
from sigmatrace.stages.sums import Sums, add_sums, column_sums
from sigmatrace.trace_format import Op

Ints = NDArray[np.int64]

SIZE_BITS_MAX = 64
_ANY = 2**64 - 1
_KNOWN = range(SIZE_BITS_MAX + 1)
LEAST = np.array([*(1 << bits >> 1 for bits in _KNOWN), *[0] * (255 - SIZE_BITS_MAX)], np.uint64)
MOST = np.array([*((1 << bits) - 1 for bits in _KNOWN), *[_ANY] * (255 - SIZE_BITS_MAX)], np.uint64)
"""``(256,)`` u8, smallest and largest size by class; unknown ones may be of any size."""
_BY_SIZE = np.array([0, 255, *range(1, SIZE_BITS_MAX + 1)], np.uint8)
"""Classes by smallest, then largest size; one stands for all unknown ones."""
_PLACE = np.ones(256, np.uint64)
_PLACE[_BY_SIZE] = np.arange(_BY_SIZE.size)
"""``(256,)`` u8, place of each class in ``_BY_SIZE``."""


@dataclass(frozen=True)
class _Ends:
    """Between which ends operations go, ``(ends,)`` each; a GET points the other way.

    Channels that are not known: process -1, object 0, layer 0, names "".

    Attributes:
        names: All names, sorted.
        src_name, dst_name: Places in ``names``.
    """

    proc: Ints
    object: Ints
    src_proc: Ints
    dst_proc: Ints
    src_name: Ints
    dst_name: Ints
    layer: Ints
    names: pa.Array


def tables_of(total: Sums, run: Run) -> tuple[dict[str, pa.Table], int]:
    """Return ``sizes`` and ``traffic``, and how many of their sums of bytes are beyond 64 bits.

    Args:
        total: By channel, class of sizes, operation, nested (``size_kernel``), of ``add_sums``.
        run: With the tables ``channels`` and ``routes``.
    """
    key = total.key
    op = key >> np.uint64(1) & np.uint64(255)
    way = key >> np.uint64(17) << np.uint64(1) | (op == Op.GET).astype(np.uint64)
    ways, of_row = np.unique(way, return_inverse=True)
    ends = _ends(ways, run)
    names = ends.src_name << 32 | ends.dst_name
    procs = ends.src_proc << 32 | (ends.dst_proc + 1)
    owner = ends.proc << 32 | ends.object
    what = op << np.uint64(1) | key & np.uint64(1)
    place = _PLACE[(key >> np.uint64(9) & np.uint64(255)).astype(np.uint8)]
    sizes, sizes_over = _sizes(
        total,
        ends,
        *_numbered(owner, procs, names, ends.layer),
        of_row,
        what << np.uint64(8) | place,
    )
    traffic, over = _traffic(total, ends, *_numbered(procs, ends.layer), of_row, what)
    return {"sizes": sizes, "traffic": traffic}, sizes_over + over


def _ends(ways: NDArray[np.uint64], run: Run) -> _Ends:
    """Return what is known of channels, ``ways >> 1``, with the ends of odd ones exchanged."""
    channels, routes = run.tables["channels"], run.tables["routes"]
    at = (ways >> np.uint64(1)).astype(np.int64)
    known = at < routes.num_rows
    at = np.where(known, at, 0)
    swapped = ways & np.uint64(1) > 0

    def of(table: pa.Table, name: str, none: int) -> Ints:
        values = np.append(table.column(name).to_numpy().astype(np.int64), none)
        return np.where(known, values[at], none)

    codes, names = _sorted_names(routes)
    ends = {"proc": [of(routes, f"{end}_proc", -1) for end in ("src", "dst")]}
    ends["name"] = [np.where(known, np.append(one, 0)[at], 0) for one in codes]
    both = {
        f"{end}_{what}": np.where(swapped, pair[1 - number], pair[number])
        for what, pair in ends.items()
        for number, end in enumerate(("src", "dst"))
    }
    own = {"proc": of(channels, "proc", -1), "object": of(channels, "object", 0)}
    return _Ends(**own, **both, layer=of(channels, "layer", 0), names=names)


def _sorted_names(routes: pa.Table) -> tuple[list[Ints], pa.Array]:
    """Return the places of ``src_name`` and ``dst_name`` in the sorted names; "" is the first."""
    columns = [routes.column(f"{end}_name").combine_chunks() for end in ("src", "dst")]
    text = pa.chunked_array([pa.array([""]), *columns], pa.string())
    encoded = pc.fill_null(text, "").combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    codes = place[encoded.indices.to_numpy()]
    return np.split(codes[1:], 2), encoded.dictionary.take(pa.array(order))


def _numbered(*columns: Ints) -> tuple[NDArray[np.uint64], Ints]:
    """Number distinct rows by their order; return the numbers, and a row of each."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(order.size, bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[order[1:]] != column[order[:-1]]
    number = np.empty(order.size, np.uint64)
    number[order] = np.cumsum(new).astype(np.uint64) - np.uint64(1)
    return number, order[new]


def _sizes(
    total: Sums,
    ends: _Ends,
    number: NDArray[np.uint64],
    row: Ints,
    of_row: Ints,
    what: NDArray[np.uint64],
) -> tuple[pa.Table, int]:
    """Group by ends (``number`` of those ``of_row``; ``row`` has each) and ``what``."""
    added = add_sums(Sums(number[of_row] << np.uint64(17) | what, total.sums))
    at = row[(added.key >> np.uint64(17)).astype(np.int64)]
    bits = _BY_SIZE[(added.key & np.uint64(255)).astype(np.uint8)]
    size_bytes, over = column_sums(added)
    table = {
        "proc": ends.proc[at].astype(np.int32),
        "object": ends.object[at].astype(np.uint32),
        "src_proc": ends.src_proc[at].astype(np.int32),
        "dst_proc": ends.dst_proc[at].astype(np.int32),
        "src_name": ends.names.take(pa.array(ends.src_name[at])),
        "dst_name": ends.names.take(pa.array(ends.dst_name[at])),
        "layer": ends.layer[at].astype(np.uint8),
        **_operation(added.key >> np.uint64(8)),
        "least_bytes": LEAST[bits],
        "most_bytes": MOST[bits],
        "count": added.sums[:, 0],
        "size_bytes": size_bytes,
    }
    return pa.table(table), over


def _traffic(
    total: Sums,
    ends: _Ends,
    number: NDArray[np.uint64],
    row: Ints,
    of_row: Ints,
    what: NDArray[np.uint64],
) -> tuple[pa.Table, int]:
    """Group likewise, and count operations whose size the API does not tell."""
    unknown = (total.key >> np.uint64(9) & np.uint64(255)) > SIZE_BITS_MAX
    sums = np.column_stack([total.sums, total.sums[:, 0] * unknown])
    added = add_sums(Sums(number[of_row] << np.uint64(9) | what, sums))
    at = row[(added.key >> np.uint64(9)).astype(np.int64)]
    size_bytes, over = column_sums(added)
    table = {
        "src_proc": ends.src_proc[at].astype(np.int32),
        "dst_proc": ends.dst_proc[at].astype(np.int32),
        "layer": ends.layer[at].astype(np.uint8),
        **_operation(added.key),
        "count": added.sums[:, 0],
        "size_bytes": size_bytes,
        "size_unknown": added.sums[:, 3],
    }
    return pa.table(table), over


def _operation(what: NDArray[np.uint64]) -> dict[str, NDArray[np.uint8]]:
    """Return the columns ``op`` and ``nested`` of keys that end in both."""
    return {
        "op": (what >> np.uint64(1) & np.uint64(255)).astype(np.uint8),
        "nested": (what & np.uint64(1)).astype(np.uint8),
    }
