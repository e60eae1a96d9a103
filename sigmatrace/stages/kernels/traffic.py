# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg"
"""Kernels of the traffic stage: counts and bytes by key, in one pass, without a sort."""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint8, uint32, void
from numba.cpython.unsafe import numbers

from sigmatrace.kernel import (
    I4R,
    I8R,
    U1R,
    U4R,
    U8R,
    U8R2,
    U8W,
    U8W2,
    in_python,
    kernel,
)

# OpFlag and SIZE_BITS_UNKNOWN of trace_format: a cached kernel does not see a change elsewhere.
_SIZE_UNKNOWN, _NESTED, _SIZE_BITS_UNKNOWN = 1, 32, 255
leading_zeros = in_python(numbers.leading_zeros, lambda number: 64 - int(number).bit_length())


@kernel()
def _slot(key, table):
    """Return the slot of a key, its own or the free one, by linear probing.

    ``table`` is ``(slots + 1, 4)`` u8: key + 1 (0: free), count, bytes in two limbs (sum of the
    low and of the high 32 bits). The first number of its last row is how many slots are in use.
    """
    last = np.uint64(table.shape[0] - 2)
    slot = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32) & last
    while table[slot, 0] != key + np.uint64(1) and table[slot, 0] != 0:
        slot = (slot + np.uint64(1)) & last
    return slot


@kernel()
def _enter(key, slot, table):
    """Give a new key its slot; return 0 when more than half of the slots would be in use."""
    slots = np.uint64(table.shape[0] - 1)
    if np.uint64(2) * table[slots, 0] >= slots:
        return 0
    table[slots, 0] += np.uint64(1)
    table[slot, 0] = key + np.uint64(1)
    return 1


@kernel()
def _add(table, slot, size):
    """Add an operation to the sums of a slot."""
    table[slot, 1] += np.uint64(1)
    table[slot, 2] += size & np.uint64(0xFFFFFFFF)
    if size >> np.uint64(32):
        table[slot, 3] += size >> np.uint64(32)


@kernel()
def _size_bits(size, flags):
    """Return the class of a size as mode ``aggregate`` records it (docs/format.md 2.5)."""
    if flags & _SIZE_UNKNOWN:
        return np.uint64(_SIZE_BITS_UNKNOWN)
    return np.uint64(64) - np.uint64(leading_zeros(size))


@kernel(int64(U4R, U1R, U1R, U8R, int64, U8W2))
def size_kernel(channel, op, flags, size_bytes, start, table):
    """Sum operations by (channel, class of sizes, operation, nested).

    Args:
        channel: ``(n,)`` u4, number of the channel in the run.
        op: ``(n,)`` u1.
        flags: ``(n,)`` u1, ``trace_format.OpFlag``; those with NESTED (32) are nested.
        size_bytes: ``(n,)`` u8.
        start: First row to look at.
        table: ``(slots + 1, 4)`` u8, as of ``_slot``, output, added to; slots is a power of two.
            Keys: channel (32 bits), bit length of the size or 255 when it is not known (8),
            operation (8), nested (1), from the highest bit in use down.

    Returns:
        The first row not yet taken in: n, or less when there was no room for another key.

    Any order. Complexity O(n) expected. Source: docs/format.md 2.5.
    """
    for i in range(start, channel.size):
        key = np.uint64(channel[i]) << np.uint64(17)
        key |= _size_bits(size_bytes[i], flags[i]) << np.uint64(9)
        key |= (np.uint64(op[i]) << np.uint64(1)) | np.uint64(flags[i] & _NESTED != 0)
        slot = _slot(key, table)
        if table[slot, 0] == 0 and _enter(key, slot, table) == 0:
            return i
        _add(table, slot, size_bytes[i])
    return channel.size


@kernel(int64(I8R, int64, int64, I4R, U1R, U1R, U1R, U8R, int64, U8W2))
def bin_kernel(t_ns, first_bin, shift, proc, layer, op, flags, size_bytes, start, table):
    """Sum operations by (time bin, process, layer, operation), each layer's outermost ones.

    Args:
        t_ns: ``(n,)`` i8, Unix ns.
        first_bin: The bin ``t_ns >> shift`` that counts as 0; no row lies before it.
        shift: log2 of the bins' width in ns; bins number less than 2^20.
        proc: ``(n,)`` i4, process number from 0, at most 2^25 - 2.
        layer: ``(n,)`` u1, below 16.
        op: ``(n,)`` u1.
        flags: ``(n,)`` u1, ``trace_format.OpFlag``; rows with NESTED (32) are left out: the outer
            operation counts the same bytes.
        size_bytes: ``(n,)`` u8.
        start: As in ``size_kernel``.
        table: As there. Keys: process + 1 (25 bits), layer (4), operation (8), bin (27), from the
            highest bit down.

    Returns:
        The first row not yet taken in.

    Any order. Complexity O(n) expected; rows of one operation that follow each other in time are
    fast: each operation's latest slot is tried first.
    """
    latest = np.zeros(16, np.uint64)
    for i in range(start, t_ns.size):
        if flags[i] & _NESTED:
            continue
        key = np.uint64(np.int64(proc[i]) + 1) << np.uint64(39)
        key |= (np.uint64(layer[i]) << np.uint64(35)) | (np.uint64(op[i]) << np.uint64(27))
        key |= np.uint64((t_ns[i] >> shift) - first_bin)
        slot = latest[op[i] & np.uint8(15)]
        if table[slot, 0] != key + np.uint64(1):
            slot = _slot(key, table)
            if table[slot, 0] == 0 and _enter(key, slot, table) == 0:
                return i
            latest[op[i] & np.uint8(15)] = slot
        _add(table, slot, size_bytes[i])
    return t_ns.size


@kernel(void(U8R2, U8W2))
def refill_kernel(old, table):
    """Move all keys and sums into a larger, empty table (``_slot``).

    Complexity O(slots) expected.
    """
    for at in range(old.shape[0] - 1):
        if old[at, 0] != 0:
            key = old[at, 0] - np.uint64(1)
            slot = _slot(key, table)
            _enter(key, slot, table)
            for part in range(1, 4):
                table[slot, part] = old[at, part]


@kernel(types.UniTuple(int64, 5)(U1R, U8R, I8R))
def range_kernel(op, size_bytes, t_ns):
    """Return which values there are, as far as ``cells_kernel`` needs it.

    Args:
        op: ``(n,)`` u1, n at least 1, like all that follow.
        size_bytes: ``(n,)`` u8.
        t_ns: ``(n,)`` i8.

    Returns:
        Smallest and largest operation, bit length of the largest size, first
        and last time. Any order. Complexity O(n).
    """
    first_op, last_op, sizes = op[0], op[0], np.uint64(0)
    begin, end = t_ns[0], t_ns[0]
    for i in range(op.size):
        sizes |= size_bytes[i]
        begin, end = min(begin, t_ns[i]), max(end, t_ns[i])
    for i in range(op.size):
        first_op, last_op = min(first_op, op[i]), max(last_op, op[i])
    length = 64 - np.int64(leading_zeros(sizes))
    return np.int64(first_op), np.int64(last_op), length, begin, end


_BLOCK = 1024
"""Rows whose places are found together, in loops that a processor does several rows at a time."""


@kernel()
def _size_cells(channel, op, flags, size_bytes, low, low_op, classes, operations, out):
    """Write the row of ``sizes`` of each operation."""
    for i in range(channel.size):
        bits = np.uint32(64) - np.uint32(leading_zeros(size_bytes[i]))
        bits = np.uint32(classes - 1) if flags[i] & _SIZE_UNKNOWN else bits
        at = np.uint32(np.uint32(channel[i] - low) * classes) + bits
        at = np.uint32(at * operations) + np.uint32(op[i] - low_op)
        out[i] = np.uint32(at * np.uint32(2)) + np.uint32(flags[i] >> np.uint8(5) & np.uint8(1))


@kernel()
def _bin_cells(op, t_ns, low_op, first_bin, shift, bins, out):
    """Write the row of each operation among those of its channel's process and layer."""
    for i in range(op.size):
        out[i] = np.uint32(op[i] - low_op) * bins + np.uint32((t_ns[i] >> shift) - first_bin)


@kernel(
    void(
        *(U4R, U1R, U1R, U8R, I8R),
        *(uint32, uint8, int64, int64, uint32, uint32, U4R, uint32, U8W2, U8W2),
    )
)
def cells_kernel(
    channel,
    op,
    flags,
    size_bytes,
    t_ns,
    low,
    low_op,
    first_bin,
    shift,
    classes,
    operations,
    start,
    bins,
    out_sizes,
    out_bins,
):
    """Sum operations as ``size_kernel`` and ``bin_kernel`` do, in tables that have every key.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1.
        flags: ``(n,)`` u1.
        size_bytes: ``(n,)`` u8, below 2^32.
        t_ns: ``(n,)`` i8.
        low: Smallest channel.
        low_op: Smallest operation.
        first_bin: As in ``bin_kernel``.
        shift: As there.
        classes: Bit length of the largest size, and 2.
        operations: Numbers from the smallest to the largest operation.
        start: ``(channels,)`` u4, by channel from ``low``: row of ``out_bins`` of the first
            operation and bin of its process and layer.
        bins: How many bins there are.
        out_sizes: ``(channels * classes * operations * 2, 2)`` u8, output, added to: count and
            bytes by channel from ``low``, bit length of the size (the last one: not known),
            operation from ``low_op``, and nested.
        out_bins: ``(groups * operations * bins + 1, 2)`` u8, output, added to: count and bytes by
            process and layer, operation, and time bin; the last row is of nested operations.

    Any order. Complexity O(n). What depends on the channel is looked up while summing up: a
    processor that gathers several values at a time takes longer for it than for all the rest.
    """
    size_at, bin_at = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    last = np.uint64(out_bins.shape[0] - 1)
    for begin in range(0, channel.size, _BLOCK):
        stop = begin + _BLOCK
        c, o, f = channel[begin:stop], op[begin:stop], flags[begin:stop]
        size = size_bytes[begin:stop]
        _size_cells(c, o, f, size, low, low_op, classes, operations, size_at)
        _bin_cells(o, t_ns[begin:stop], low_op, first_bin, shift, bins, bin_at)
        for i in range(c.size):
            at = np.uint64(size_at[i])
            cell = np.uint64(bin_at[i] + start[np.uint64(c[i] - low)])
            cell = last if at & np.uint64(1) else cell
            out_sizes[at, 0] += np.uint64(1)
            out_sizes[at, 1] += size[i]
            out_bins[cell, 0] += np.uint64(1)
            out_bins[cell, 1] += size[i]


@kernel(int64(U8R2, U8R, U8W, U8W2))
def used_kernel(cells, head, out_key, out):
    """Collect the used rows of a table of ``cells_kernel``.

    Args:
        cells: ``(heads * wide, 2)`` u8, or more rows, which are left out: count and bytes.
        head: ``(heads,)`` u8, ascending: key of the first one of each ``wide`` rows; the others'
            keys follow it.
        out_key: ``(heads * wide,)`` u8, output.
        out: ``(heads * wide, 3)`` u8, output: ``stages.sums.Sums.sums``.

    Returns:
        The number of rows written, keys ascending. Complexity O(heads * wide).
    """
    wide = cells.shape[0] // max(head.size, 1)
    used = 0
    for first in range(head.size):
        for k in range(wide):
            count, total = cells[first * wide + k, 0], cells[first * wide + k, 1]
            if count:
                out_key[used] = head[first] + np.uint64(k)
                out[used, 0] = count
                out[used, 1] = total & np.uint64(0xFFFFFFFF)
                out[used, 2] = total >> np.uint64(32)
                used += 1
    return used
