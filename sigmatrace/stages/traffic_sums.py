"""Sums of a partition's operations, by channel and size, and by time bin.

Channels of a partition have numbers that follow each other, and the operations, classes of sizes
and bins are few: so there is a table with a place for each combination. Where there are too many
for that, or a size has more than 32 bits, hash tables do (``accumulate``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sigmatrace.partition import Partition
from sigmatrace.schema import TIMELINE_BINS
from sigmatrace.stages.channels import Channels
from sigmatrace.stages.sums import LIMB, Sums, sums_of
from sigmatrace.trace_format import SIZE_BITS_UNKNOWN

CELLS_MAX = 1 << 18
"""A table with a place for each combination is made up to this many."""
BIN_SHIFT_MIN = 10
PROC, LAYER, OP = np.uint64(39), np.uint64(35), np.uint64(27)
"""Places of process + 1, layer and operation in keys of ``bin_kernel``; below them is the bin."""
_BIN = (np.uint64(1) << OP) - np.uint64(1)


Rows = tuple[
    NDArray[np.uint32],
    NDArray[np.uint8],
    NDArray[np.uint8],
    NDArray[np.uint64],
    NDArray[np.int64],
]
"""Channel, operation, flags, size and time of operations."""


class Summed(NamedTuple):
    """Sums of operations.

    Attributes:
        operations: By channel, class of sizes, operation, nested (``size_kernel``).
        bins: By bin, process, layer, operation (``bin_kernel``).
        shift: log2 of the width in ns of a bin.
        first_bin: ``t_ns >> shift`` of the earliest operation.
        last_bin: Likewise of the latest one, which may be nested and so in no bin.
    """

    operations: Sums
    bins: Sums
    shift: int
    first_bin: int
    last_bin: int


def proc_of(key: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Return the process in keys of ``bin_kernel``; -1: not known."""
    return (key >> PROC).astype(np.int32) - np.int32(1)


def layer_of(key: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the layer in keys of ``bin_kernel``."""
    return (key >> LAYER & np.uint64(15)).astype(np.uint8)


def op_of(key: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the operation in keys of ``bin_kernel``."""
    return (key >> OP & np.uint64(255)).astype(np.uint8)


def bin_of(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the bin in keys of ``bin_kernel``."""
    return key & _BIN


def bin_shift(first_ns: int, last_ns: int) -> int:
    """Return log2 of the narrowest aligned bins of which ``TIMELINE_BINS`` suffice."""
    shift = BIN_SHIFT_MIN
    while (last_ns >> shift) - (first_ns >> shift) >= TIMELINE_BINS:
        shift += 1
    return shift


@dataclass(frozen=True)
class _Table:
    """Which combinations a partition can have.

    Attributes:
        low: Smallest channel.
        low_op: Smallest operation.
        channels, classes, operations: How many there are; the last class is of unknown sizes.
        groups: ``(g,)`` u8, processes and layers of the channels, as in keys of ``bin_kernel``,
            ascending.
        group: ``(channels,)``, place in ``groups`` by channel.
        shift, first_bin, bins: The bins of time.
    """

    low: int
    low_op: int
    channels: int
    classes: int
    operations: int
    groups: NDArray[np.uint64]
    group: NDArray[np.int64]
    shift: int
    first_bin: int
    bins: int

    @property
    def cells(self) -> tuple[int, int]:
        """How many places a table of sizes and one of bins have."""
        sizes = self.channels * self.classes * self.operations * 2
        return sizes, self.bins * self.groups.size * self.operations


def sum_operations(part: Partition, cells_max: int = CELLS_MAX) -> Summed:
    """Sum up a partition's operations, at least one.

    Args:
        part: The partition.
        cells_max: Combinations up to which tables have a place for each one.
    """
    from sigmatrace.stages.kernels.traffic import range_kernel

    channels = Channels.of(part)
    op, flags, size_bytes, t_ns = (
        part.column("ops", name) for name in ("op", "flags", "size_bytes", "t_ns")
    )
    low_op, high_op, bits, first, last = range_kernel(op, size_bytes, t_ns)
    shift = bin_shift(first, last)
    proc = (channels.column("channels", "proc", -1).astype(np.int64) + 1).astype(np.uint64)
    layer = channels.layer().astype(np.uint64)
    groups, group = np.unique(proc << PROC | layer << LAYER, return_inverse=True)
    span = high_op - low_op + 1
    bins = (last >> shift) - (first >> shift) + 1
    at = channels.low, low_op, channels.size, bits + 2, span
    table = _Table(*at, groups, group, shift, first >> shift, bins)
    fits = bits <= LIMB and max(table.cells) <= cells_max
    sums = (_in_cells if fits else _by_hash)((channels.channel, op, flags, size_bytes, t_ns), table)
    return Summed(*sums, shift, first >> shift, last >> shift)


def _by_hash(rows: Rows, table: _Table) -> tuple[Sums, Sums]:
    """Return the sums by hash tables, of whatever there is."""
    from sigmatrace.stages.kernels.traffic import bin_kernel, size_kernel

    channel, op, flags, size_bytes, t_ns = rows
    own = table.groups[table.group][channel - np.uint32(table.low)]
    proc, layer = proc_of(own), layer_of(own)
    when = t_ns, table.first_bin, table.shift
    return (
        accumulate(size_kernel, (channel, op, flags, size_bytes)),
        accumulate(bin_kernel, (*when, proc, layer, op, flags, size_bytes)),
    )


def _in_cells(rows: Rows, table: _Table) -> tuple[Sums, Sums]:
    """Return the sums by tables with a place for each combination."""
    from sigmatrace.stages.kernels.traffic import cells_kernel

    places = table.cells
    sizes, bins = np.zeros((places[0], 2), np.uint64), np.zeros((places[1] + 1, 2), np.uint64)
    cells_kernel(
        *rows,
        *(table.low, table.low_op, table.first_bin, table.shift, table.classes, table.operations),
        (table.group * (table.operations * table.bins)).astype(np.uint32),
        table.bins,
        sizes,
        bins,
    )
    return _used(sizes, _size_heads(table)), _used(bins[:-1], _bin_heads(table))


def _size_heads(table: _Table) -> NDArray[np.uint64]:
    """Return the keys of the first operation of each channel and class of sizes."""
    channel = np.arange(table.low, table.low + table.channels, dtype=np.uint64)
    bits = np.arange(table.classes, dtype=np.uint64)
    bits[-1] = SIZE_BITS_UNKNOWN
    heads = channel[:, None] << np.uint64(17) | bits << np.uint64(9)
    return (heads | np.uint64(table.low_op << 1)).ravel()


def _bin_heads(table: _Table) -> NDArray[np.uint64]:
    """Return the keys of the first bin of each process, layer and operation."""
    op = np.arange(table.low_op, table.low_op + table.operations, dtype=np.uint64)
    return (table.groups[:, None] | op << OP).ravel()


def _used(cells: NDArray[np.uint64], heads: NDArray[np.uint64]) -> Sums:
    """Return the used rows of a table; each of ``heads`` is the key of the first one of some."""
    from sigmatrace.stages.kernels.traffic import used_kernel

    key, sums = np.empty(len(cells), np.uint64), np.empty((len(cells), 3), np.uint64)
    count = used_kernel(cells, heads, key, sums)
    return Sums(key[:count].copy(), sums[:count].copy())


def accumulate(kernel: Callable[..., int], columns: tuple[Any, ...], slots: int = 2048) -> Sums:
    """Run a summing kernel over all rows, with more room whenever it asks for it.

    Args:
        kernel: ``size_kernel`` or ``bin_kernel``.
        columns: Its arguments before ``start``; the first one is a column of all rows.
        slots: Of the hash table to begin with, a power of two.
    """
    from sigmatrace.stages.kernels.traffic import refill_kernel

    table = np.zeros((slots + 1, 4), np.uint64)
    at = kernel(*columns, 0, table)
    while at < columns[0].size:
        slots *= 4
        small, table = table, np.zeros((slots + 1, 4), np.uint64)
        refill_kernel(small, table)
        at = kernel(*columns, at, table)
    used = table[:-1][table[:-1, 0] != 0]
    return sums_of(used[:, 0] - np.uint64(1), used[:, 1:])
