"""Sums of a partition's operations, by channel and size, and by time bin.

Channels of a partition have numbers that follow each other, and the operations, classes of sizes
and bins are few: so there is a table with a place for each combination. Where there are too many
for that, or a size has more than 32 bits, hash tables do (``accumulate``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sigmatrace.stages.sums import LIMB, LOW, Sums, sums_of
from sigmatrace.trace_format import SIZE_BITS_UNKNOWN

CELLS_MAX = 1 << 18
"""A table with a place for each combination is made up to this many."""
GROUPS_MAX = 256
"""Combinations of process, layer and operation of a partition, and places in a table of bins."""
BIN_SHIFT_MIN = 10
BINS = 2048
"""The timeline has at most this many bins, and at least half of them on a long run of few ranks."""


class Operations(NamedTuple):
    """Columns of a partition's operations, ``(n,)`` each, at least one row."""

    channel: NDArray[np.uint32]
    op: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    size_bytes: NDArray[np.uint64]
    t_ns: NDArray[np.int64]
    proc: NDArray[np.int32]
    layer: NDArray[np.uint8]


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


def bin_shift(first_ns: int, last_ns: int) -> int:
    """Return log2 of the narrowest bins, aligned to their width, of which ``BINS`` suffice."""
    shift = BIN_SHIFT_MIN
    while (last_ns >> shift) - (first_ns >> shift) >= BINS:
        shift += 1
    return shift


def sum_operations(rows: Operations, cells_max: int = CELLS_MAX) -> Summed:
    """Sum up a partition's operations.

    Args:
        rows: The operations.
        cells_max: Combinations up to which tables have a place for each one.
    """
    from sigmatrace.stages.kernels.traffic import bin_kernel, range_kernel, size_kernel

    wide = rows.channel, rows.op, rows.size_bytes, rows.t_ns
    low, high, low_op, high_op, bits, first, last = range_kernel(*wide)
    shift = bin_shift(first, last)
    first_bin, last_bin = first >> shift, last >> shift
    sums = None
    shape = high - low + 1, bits + 2, high_op - low_op + 1, 2
    if bits <= LIMB and np.prod(shape) <= cells_max:
        sums = _in_cells(rows, shape, (low, low_op, first_bin, shift), last_bin - first_bin + 1)
    if sums is None:
        t_ns, size_bytes = rows.t_ns, rows.size_bytes
        head = (t_ns, first_bin, shift, rows.proc, rows.layer, rows.op, rows.flags, size_bytes)
        sums = accumulate(size_kernel, (*rows[:3], size_bytes)), accumulate(bin_kernel, head)
    return Summed(*sums, shift, first_bin, last_bin)


def _in_cells(
    rows: Operations, shape: tuple[int, ...], lows: tuple[int, ...], bins: int
) -> tuple[Sums, Sums] | None:
    """Return the sums by table, None where a channel is not of one process and layer."""
    from sigmatrace.stages.kernels.traffic import cells_kernel

    sizes = np.zeros((*shape, 2), np.uint64)
    group = np.full((shape[0], shape[2]), -1, np.int32)
    groups = np.empty((GROUPS_MAX, 3), np.int32)
    by_group = np.zeros((GROUPS_MAX, bins, 2), np.uint64)
    count = cells_kernel(*rows, *lows, sizes, by_group, group, groups)
    if count < 0:
        return None
    return _by_size(sizes, lows), _by_bin(by_group[:count], groups[:count])


def _by_size(sizes: NDArray[np.uint64], lows: tuple[int, ...]) -> Sums:
    """Return the used cells by channel, class of sizes, operation and nested."""
    channel, bits, op, nested = np.nonzero(sizes[..., 0])
    used = sizes[channel, bits, op, nested]
    bits = np.where(bits == sizes.shape[1] - 1, SIZE_BITS_UNKNOWN, bits)
    key = (channel + lows[0]) << 17 | bits << 9 | (op + lows[1]) << 1 | nested
    return Sums(key.astype(np.uint64), _limbs(used))


def _by_bin(bins: NDArray[np.uint64], groups: NDArray[np.int32]) -> Sums:
    """Return the used cells by bin, process, layer and operation."""
    proc, layer, op = groups.T.astype(np.int64)
    low = (proc + 1) << 12 | layer << 8 | op
    order = np.argsort(low)
    at, which = np.nonzero(bins[order, :, 0].T)
    key = at << 37 | low[order][which]
    return Sums(key.astype(np.uint64), _limbs(bins[order[which], at]))


def _limbs(used: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return counts and bytes as ``Sums`` have them."""
    return np.stack([used[:, 0], used[:, 1] & LOW, used[:, 1] >> LIMB], axis=1)


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
