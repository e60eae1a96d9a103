# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels of the traffic stage: counts and bytes by key, in one pass, without a sort."""

from __future__ import annotations

import numpy as np
from numba import int64, void

from sigmatrace.kernel import I4R, I8R, U1R, U4R, U8R, U8W, U8W2, kernel

# OpFlag and SIZE_BITS_UNKNOWN of trace_format: a cached kernel does not see a change elsewhere.
_SIZE_UNKNOWN, _NESTED, _SIZE_BITS_UNKNOWN = 1, 32, 255


@kernel()
def _slot(key, shift, table):
    """Return the slot of ``key`` in an open-addressing table, its own or the free one."""
    slot = (key * np.uint64(0x9E3779B97F4A7C15)) >> shift
    while table[slot, 0] != key + np.uint64(1) and table[slot, 0] != 0:
        slot = (slot + np.uint64(1)) & np.uint64(table.shape[0] - 1)
    return slot


@kernel()
def _shift(table):
    """Return by how much a hash is shifted so that it is a slot of ``table``."""
    shift = np.uint64(64)
    size = table.shape[0]
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    return shift


@kernel()
def _enter(key, slot, cells, table, out_key):
    """Give a key that is new a cell; return the number of cells in use then."""
    table[slot, 0] = key + np.uint64(1)
    table[slot, 1] = cells
    out_key[cells] = key
    return cells + 1


@kernel()
def _add_to_cell(sums, cell, size):
    """Add an operation to the sums of a cell."""
    sums[cell, 0] += np.uint64(1)
    sums[cell, 1] += size & np.uint64(0xFFFFFFFF)
    sums[cell, 2] += size >> np.uint64(32)


@kernel()
def _size_bits(size, flags):
    """Return the class of a size as mode ``aggregate`` records it (docs/format.md 2.5)."""
    if flags & _SIZE_UNKNOWN:
        return np.uint64(_SIZE_BITS_UNKNOWN)
    bits = np.uint64(0)
    while size != np.uint64(0):
        size >>= np.uint64(1)
        bits += np.uint64(1)
    return bits


@kernel(int64(U4R, U1R, U1R, U8R, int64, int64, U8W2, U8W, U8W2))
def size_kernel(channel, op, flags, size_bytes, start, cells, table, out_key, sums):
    """Sum operations by (channel, class of sizes, operation, nested).

    Args:
        channel: ``(n,)`` u4, number of the channel in the run.
        op: ``(n,)`` u1.
        flags: ``(n,)`` u1, ``trace_format.OpFlag``; those with NESTED (32) are nested.
        size_bytes: ``(n,)`` u8.
        start: First row to look at.
        cells: Cells in use already.
        table: ``(slots, 2)`` u8, hash table of key + 1 (0: free) and its cell; slots is a power
            of two above the cells.
        out_key: ``(capacity,)`` u8, output: channel (32 bits), bit length of the size or 255 when
            it is not known (8), operation (8), nested (1), from the highest bit in use down.
        sums: ``(capacity + 1, 3)`` u8, output, added to: count, bytes in two limbs (sum of the
            low and of the high 32 bits). The last row holds the number of cells in use on
            return.

    Returns:
        The first row not yet taken in: n, or less when there was no room for another cell.

    Any order. Complexity O(n) expected. Source: docs/format.md 2.5.
    """
    one = np.uint64(1)
    shift = _shift(table)
    i = start
    while i < channel.size:
        key = np.uint64(channel[i]) << np.uint64(17)
        key |= _size_bits(size_bytes[i], flags[i]) << np.uint64(9)
        key |= (np.uint64(op[i]) << one) | np.uint64(flags[i] & _NESTED != 0)
        slot = _slot(key, shift, table)
        if table[slot, 0] == 0:
            if cells == out_key.size:
                break
            cells = _enter(key, slot, cells, table, out_key)
        _add_to_cell(sums, table[slot, 1], size_bytes[i])
        i += 1
    sums[out_key.size, 0] = np.uint64(cells)
    return i


@kernel(int64(I8R, int64, int64, I4R, U1R, U1R, U1R, U8R, int64, int64, U8W2, U8W, U8W2))
def bin_kernel(
    t_ns,
    first_bin,
    shift,
    proc,
    layer,
    op,
    flags,
    size_bytes,
    start,
    cells,
    table,
    out_key,
    sums,
):
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
        start: As in ``size_kernel``, and so are the rest.
        cells: Cells in use already.
        table: ``(slots, 2)`` u8.
        out_key: ``(capacity,)`` u8, output: bin (27 bits), process + 1 (25), layer (4),
            operation (8), from the highest bit down.
        sums: ``(capacity + 1, 3)`` u8, output, added to: count, bytes in two limbs.

    Returns:
        The first row not yet taken in.

    Any order. Complexity O(n) expected.
    """
    bits = _shift(table)
    i = start
    while i < t_ns.size:
        if flags[i] & _NESTED:
            i += 1
            continue
        key = np.uint64((t_ns[i] >> shift) - first_bin) << np.uint64(37)
        key |= np.uint64(np.int64(proc[i]) + 1) << np.uint64(12)
        key |= (np.uint64(layer[i]) << np.uint64(8)) | np.uint64(op[i])
        slot = _slot(key, bits, table)
        if table[slot, 0] == 0:
            if cells == out_key.size:
                break
            cells = _enter(key, slot, cells, table, out_key)
        _add_to_cell(sums, table[slot, 1], size_bytes[i])
        i += 1
    sums[out_key.size, 0] = np.uint64(cells)
    return i


@kernel(void(U8R, U8W2))
def fill_kernel(key, table):
    """Enter keys into an empty hash table of the kernels above; cell k is that of ``key[k]``.

    Args:
        key: ``(cells,)`` u8, distinct, any order.
        table: ``(slots, 2)`` u8, zeros, output; slots is a power of two above the cells.

    Complexity O(n) expected.
    """
    bits = _shift(table)
    for cell in range(key.size):
        slot = _slot(key[cell], bits, table)
        table[slot, 0] = key[cell] + np.uint64(1)
        table[slot, 1] = cell
