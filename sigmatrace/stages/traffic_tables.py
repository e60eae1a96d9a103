"""The tables ``sizes`` and ``traffic`` from sums by channel and class of sizes.

Rows are grouped and sorted as integers: names as their places in the sorted list of all names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.partition import Run
from sigmatrace.stages.sums import Sums, column_sums, sums_of
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


@dataclass(frozen=True)
class _Pairs:
    """Sums by pair of processes, ``(n,)`` and ``(n, 4)``; distinct.

    Attributes:
        procs: Source and destination, ``src << 32 | dst + 1``.
        what: Layer, operation (8 bits), nested (1 bit).
        sums: Of ``Sums``, and operations of unknown size.
    """

    procs: Ints
    what: NDArray[np.uint64]
    sums: NDArray[np.uint64]


BLOCK = 1 << 18
"""Sums of so many keys, and those of the last one's process, become rows at a time."""


def tables_of(total: Sums, run: Run) -> tuple[dict[str, pa.Table], int]:
    """Return ``sizes`` and ``traffic``, and how many of their sums of bytes are beyond 64 bits.

    Args:
        total: By channel, class of sizes, operation, nested (``size_kernel``).
        run: With the tables ``channels`` and ``routes``.
    """
    sizes, pairs, beyond = [], [], 0
    for part in _blocks(total, run):
        table, over, pair = _block(part, run)
        sizes.append(table)
        pairs.append(pair)
        beyond += over
    traffic, over = _traffic(pairs)
    return {"sizes": pa.concat_tables(sizes), "traffic": traffic}, beyond + over


def _blocks(total: Sums, run: Run) -> Iterator[Sums]:
    """Yield the sums in blocks of whole processes, in the order of ``sizes``.

    Channels are numbered by process; those that are not known are behind them, and of process -1.
    """
    proc = run.column("channels", "proc")
    known = int(np.searchsorted(total.key, np.uint64(proc.size) << np.uint64(17)))
    yield Sums(total.key[known:], total.sums[known:])
    start = 0
    while start < known:
        stop = min(start + BLOCK, known)
        last = proc[int(total.key[stop - 1] >> np.uint64(17))]
        channel = int(np.searchsorted(proc, last, side="right"))
        stop = int(np.searchsorted(total.key, np.uint64(channel) << np.uint64(17)))
        yield Sums(total.key[start:stop], total.sums[start:stop])
        start = stop


def _block(total: Sums, run: Run) -> tuple[pa.Table, int, _Pairs]:
    """Return the rows of ``sizes`` of a block, those with too many bytes, and its traffic."""
    key = total.key
    op = key >> np.uint64(1) & np.uint64(255)
    way = key >> np.uint64(17) << np.uint64(1) | (op == Op.GET).astype(np.uint64)
    ways, of_row = np.unique(way, return_inverse=True)
    ends = _ends(ways, run)
    what = op << np.uint64(1) | key & np.uint64(1)
    return *_sizes(total, ends, of_row, what), _pairs(total, ends, of_row, what)


def _ends(ways: NDArray[np.uint64], run: Run) -> _Ends:
    """Return what is known of channels, ``ways >> 1``, with the ends of odd ones exchanged."""
    channels, routes = run.tables["channels"], run.tables["routes"]
    channel = (ways >> np.uint64(1)).astype(np.int64)
    at = pa.array(channel, mask=channel >= routes.num_rows)
    swapped = ways & np.uint64(1) > 0

    def of(table: pa.Table, name: str, none: int) -> Ints:
        taken: Ints = pc.fill_null(table.column(name).take(at).cast(pa.int64()), none).to_numpy()
        return taken

    ends = {"proc": [of(routes, f"{end}_proc", -1) for end in ("src", "dst")]}
    ends["name"], names = _sorted_names(
        [routes.column(f"{end}_name").take(at) for end in ("src", "dst")]
    )
    both = {
        f"{end}_{what}": np.where(swapped, pair[1 - number], pair[number])
        for what, pair in ends.items()
        for number, end in enumerate(("src", "dst"))
    }
    own = {"proc": of(channels, "proc", -1), "object": of(channels, "object", 0)}
    return _Ends(**own, **both, layer=of(channels, "layer", 0), names=names)


def _sorted_names(columns: Sequence[pa.ChunkedArray]) -> tuple[list[Ints], pa.Array]:
    """Return the places of the columns' texts, null as "", in the sorted list of all, and it."""
    chunks = [pc.fill_null(chunk, "") for column in columns for chunk in column.chunks]
    encoded = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    codes = place[encoded.indices.to_numpy()]
    return np.split(codes, len(columns)), encoded.dictionary.take(pa.array(order))


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
    total: Sums, ends: _Ends, of_row: Ints, what: NDArray[np.uint64]
) -> tuple[pa.Table, int]:
    """Group sums by ends (those ``of_row``), operation and nested (``what``), and class."""
    owner = ends.proc << 32 | ends.object
    procs = ends.src_proc << 32 | (ends.dst_proc + 1)
    names = ends.src_name << 32 | ends.dst_name
    number, row = _numbered(owner, procs, names, ends.layer)
    place = _PLACE[(total.key >> np.uint64(9) & np.uint64(255)).astype(np.uint8)]
    key = number[of_row] << np.uint64(17) | what << np.uint64(8) | place
    added = sums_of(key, total.sums)
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


def _pairs(total: Sums, ends: _Ends, of_row: Ints, what: NDArray[np.uint64]) -> _Pairs:
    """Group sums by processes, layer, operation and nested, with those of unknown size."""
    unknown = (total.key >> np.uint64(9) & np.uint64(255)) > SIZE_BITS_MAX
    sums = np.column_stack([total.sums, total.sums[:, 0] * unknown])
    procs = ends.src_proc << 32 | (ends.dst_proc + 1)
    number, row = _numbered(procs, ends.layer)
    added = sums_of(number[of_row] << np.uint64(9) | what, sums)
    at = row[(added.key >> np.uint64(9)).astype(np.int64)]
    layer = ends.layer[at].astype(np.uint64) << np.uint64(9)
    return _Pairs(procs[at], layer | (added.key & np.uint64(511)), added.sums)


def _traffic(parts: Sequence[_Pairs]) -> tuple[pa.Table, int]:
    """Return ``traffic`` of the blocks' pairs, and rows whose bytes are beyond 64 bits."""
    procs = np.concatenate([part.procs for part in parts])
    what = np.concatenate([part.what for part in parts])
    number, row = _numbered(procs, what.astype(np.int64))
    added = sums_of(number, np.concatenate([part.sums for part in parts]))
    procs, what = procs[row], what[row]
    size_bytes, over = column_sums(added)
    table = {
        "src_proc": (procs >> 32).astype(np.int32),
        "dst_proc": ((procs & 0xFFFFFFFF) - 1).astype(np.int32),
        "layer": (what >> np.uint64(9)).astype(np.uint8),
        **_operation(what),
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
