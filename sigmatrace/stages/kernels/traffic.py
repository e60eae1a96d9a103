# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg"
"""Kernels of the traffic stage: counts and bytes by key, in one pass, without a sort."""

from __future__ import annotations

import numpy as np
from numba import int64, types, void
from numba.cpython.unsafe.numbers import leading_zeros

from sigmatrace.kernel import I4R, I4W2, I8R, U1R, U4R, U8R, U8R2, U8W2, U8W3, U8W5, kernel

# OpFlag and SIZE_BITS_UNKNOWN of trace_format: a cached kernel does not see a change elsewhere.
_SIZE_UNKNOWN, _NESTED, _SIZE_BITS_UNKNOWN = 1, 32, 255


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
        table: As there. Keys: bin (27 bits), process + 1 (25), layer (4), operation (8), from the
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
        key = np.uint64((t_ns[i] >> shift) - first_bin) << np.uint64(37)
        key |= np.uint64(np.int64(proc[i]) + 1) << np.uint64(12)
        key |= (np.uint64(layer[i]) << np.uint64(8)) | np.uint64(op[i])
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


@kernel(types.UniTuple(int64, 7)(U4R, U1R, U8R, I8R))
def range_kernel(channel, op, size_bytes, t_ns):
    """Return which values there are, as far as ``cells_kernel`` needs it.

    Args:
        channel: ``(n,)`` u4, n at least 1, like all that follow.
        op: ``(n,)`` u1.
        size_bytes: ``(n,)`` u8.
        t_ns: ``(n,)`` i8.

    Returns:
        First and last channel, first and last operation, bit length of the largest size, first
        and last time. Any order. Complexity O(n).
    """
    first, last = channel[0], channel[0]
    first_op, last_op, sizes = op[0], op[0], np.uint64(0)
    begin, end = t_ns[0], t_ns[0]
    for i in range(channel.size):
        first, last = min(first, channel[i]), max(last, channel[i])
        sizes |= size_bytes[i]
        begin, end = min(begin, t_ns[i]), max(end, t_ns[i])
    for i in range(op.size):
        first_op, last_op = min(first_op, op[i]), max(last_op, op[i])
    length = 64 - np.int64(leading_zeros(sizes))
    return (
        *(np.int64(first), np.int64(last), np.int64(first_op), np.int64(last_op)),
        *(length, begin, end),
    )


@kernel(
    int64(U4R, U1R, U1R, U8R, I8R, I4R, U1R, int64, int64, int64, int64, U8W5, U8W3, I4W2, I4W2)
)
def cells_kernel(
    channel,
    op,
    flags,
    size_bytes,
    t_ns,
    proc,
    layer,
    low,
    low_op,
    first_bin,
    shift,
    sizes,
    bins,
    group,
    groups,
):
    """Sum operations as ``size_kernel`` and ``bin_kernel`` do, in tables that have every key.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1.
        flags: ``(n,)`` u1.
        size_bytes: ``(n,)`` u8, below 2^32.
        t_ns: ``(n,)`` i8.
        proc: ``(n,)`` i4.
        layer: ``(n,)`` u1.
        low: Smallest channel.
        low_op: Smallest operation.
        first_bin: As in ``bin_kernel``.
        shift: As there.
        sizes: ``(channels, classes + 1, operations, 2, 2)`` u8, zeros, output: count and bytes by
            channel from ``low``, bit length of the size (the last one: not known), operation from
            ``low_op``, and nested.
        bins: ``(groups, bins, 2)`` u8, zeros, output: count and bytes by row of ``groups`` and
            time bin.
        group: ``(channels, operations)`` i4, filled with -1, output: row of ``groups``.
        groups: ``(groups, 3)`` i4, output: process, layer, operation.

    Returns:
        How many groups there are; -1, with any output, where a channel is of two processes or
        layers, or groups are more than there is room for.

    Any order. Complexity O(n).
    """
    used = 0
    unknown = np.uint64(sizes.shape[1] - 1)
    for i in range(channel.size):
        at = np.uint64(channel[i]) - np.uint64(low)
        what, size, flag = np.uint64(op[i]) - np.uint64(low_op), size_bytes[i], flags[i]
        bits = np.uint64(64) - np.uint64(leading_zeros(size))
        bits = unknown if flag & _SIZE_UNKNOWN else bits
        nested = np.uint64(flag >> np.uint8(5)) & np.uint64(1)
        sizes[at, bits, what, nested, 0] += np.uint64(1)
        sizes[at, bits, what, nested, 1] += size
        if nested:
            continue
        own = group[at, what]
        if own < 0:
            own = _group_of(proc[i], layer[i], op[i], used, groups)
            if own < 0:
                return -1
            used = max(used, own + 1)
            group[at, what] = own
        row = np.uint64(own)
        if groups[row, 0] != proc[i] or groups[row, 1] != layer[i]:
            return -1
        place = np.uint64((t_ns[i] >> shift) - first_bin)
        bins[row, place, 0] += np.uint64(1)
        bins[row, place, 1] += size
    return used


@kernel()
def _group_of(proc, layer, op, used, groups):
    """Return the row of a group, a new one at ``used``; -1 when there is no room."""
    for row in range(used):
        if groups[row, 0] == proc and groups[row, 1] == layer and groups[row, 2] == op:
            return row
    if used == groups.shape[0]:
        return -1
    groups[used, 0], groups[used, 1], groups[used, 2] = proc, layer, op
    return used
