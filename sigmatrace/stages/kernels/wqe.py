# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels of the stages wqe and doorbell: doorbells and work queue elements of mlx5.

A slot is 64 bytes, as eight little-endian words; what is in it is big-endian. Segments are
multiples of 16 bytes, and a work queue element (WQE) takes whole slots. ``native/gpu/wqe.c``
decodes the same when it is recorded. Source: mlx5 PRM; rdma-core providers/mlx5/mlx5dv.h, wqe.h.
"""

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.kernel import I4R, U1R, U1W, U4R, U4W, U8R, U8W, kernel, tuple_of
from sigmatrace.trace_format import Op

_SEGMENT = 16
_SLOT = 64
_INLINE = 0x80000000
_INLINE_MAX = 1024
_FULL_VECTOR = 0x80000000
_FULL_VECTOR_BYTES = 48
_EXTENDED_4_BYTES = 0x08
_MASKED_CS = 0x14

_TRAVELS, _REMOTE, _ATOMIC, _WORD = 1, 2, 4, 8
_OPS = np.full(256, Op.NOP, np.uint8)
"""``(256,)`` u1, ``Op`` by opcode."""
_PARTS = np.zeros(256, np.uint8)
"""``(256,)`` u1, what follows the control segment, by opcode."""
for _opcode, _op, _parts in (
    (0x01, Op.SEND, _TRAVELS | _WORD),
    (0x08, Op.PUT, _TRAVELS | _REMOTE),
    (0x09, Op.PUT_DATA, _TRAVELS | _REMOTE | _WORD),
    (0x0A, Op.SEND, _TRAVELS),
    (0x0B, Op.SEND, _TRAVELS | _WORD),
    (0x10, Op.GET, _TRAVELS | _REMOTE),
    (0x11, Op.ATOMIC_FETCH, _TRAVELS | _REMOTE | _ATOMIC),
    (0x12, Op.ATOMIC_FETCH, _TRAVELS | _REMOTE | _ATOMIC),
    (0x14, Op.ATOMIC_FETCH, _TRAVELS | _REMOTE | _ATOMIC),
    (0x15, Op.ATOMIC_FETCH, _TRAVELS | _REMOTE | _ATOMIC),
    (0x19, Op.BIND, 0),
    (0x1B, Op.INVALIDATE, _WORD),
    (0x25, Op.BIND, 0),
):
    _OPS[_opcode], _PARTS[_opcode] = _op, _parts

_WORDS = tuple_of(*[U8R] * 8)
_DECODED = tuple_of(U1W, U1W, U8W, U4W, U8W, U4W, U4W, U4W, U1W, U1W, U1W)


@kernel()
def _swap(value):
    """Return a 32-bit number with its bytes in the other order."""
    value = np.uint32(value)
    low = (value & np.uint32(0xFF)) << np.uint32(24) | (value & np.uint32(0xFF00)) << np.uint32(8)
    return low | (value >> np.uint32(8)) & np.uint32(0xFF00) | value >> np.uint32(24)


@kernel()
def _be32(words, row, at):
    """Return the number at byte ``at`` (a multiple of 4) of the slots from ``row`` on."""
    word = words[at >> 3 & 7][row + (at >> 6)]
    return _swap(word >> np.uint64(32) if at & 4 else word & np.uint64(0xFFFFFFFF))


@kernel(types.int64(_WORDS, types.int64, types.int64, types.int64, _DECODED))
def _data(words, row, at, end, out):
    """Add up data and inline segments from byte ``at`` on; 0 when the last one ends elsewhere."""
    size = np.uint64(0)
    count = 0
    while at < end:
        here = int(_be32(words, row, at))
        length = _SEGMENT
        if here >= _INLINE:
            here -= _INLINE
            if here > _INLINE_MAX:
                return 0
            length = (4 + here + _SEGMENT - 1) // _SEGMENT * _SEGMENT
        if length > end - at:
            return 0
        size += np.uint64(here)
        count += 1
        at += length
    out[4][row] = size
    out[8][row] = count
    return 1


@kernel(types.int64(_WORDS, types.int64, types.int64, types.uint8, types.int64, _DECODED))
def _segments(words, row, end, opmod, has_av, out):
    """Decode what follows the control segment; 0 when its segments do not fit."""
    opcode = out[0][row]
    parts = _PARTS[opcode]
    at = _SEGMENT
    if has_av:
        if at + _SEGMENT > end:
            return 0
        to = _be32(words, row, at + 8)
        out[6][row] = to & np.uint32(0xFFFFFF)
        out[7][row] = _be32(words, row, at + 12) & np.uint32(0xFFFF)
        at += _FULL_VECTOR_BYTES if to & np.uint32(_FULL_VECTOR) else _SEGMENT
        if at > end:
            return 0
    if parts & _REMOTE:
        if at + _SEGMENT > end:
            return 0
        high = np.uint64(_be32(words, row, at)) << np.uint64(32)
        out[2][row] = high | np.uint64(_be32(words, row, at + 4))
        out[3][row] = _be32(words, row, at + 8)
        at += _SEGMENT
    if parts & _ATOMIC:
        masks = opcode == _MASKED_CS and opmod != _EXTENDED_4_BYTES
        at += 2 * _SEGMENT if masks else _SEGMENT
        if at > end:
            return 0
    if _data(words, row, at, end, out) == 0:
        return 0
    if parts & _ATOMIC:
        out[4][row] = 4 if opmod == _EXTENDED_4_BYTES else 8
    return 1


@kernel()
def _clear(row, out):
    """Take back what was written of a WQE that turned out to be none."""
    opcode, op, raddr, rkey, size_bytes, imm, remote_qpn, dlid, sges, _, _ = out
    opcode[row], op[row], raddr[row], rkey[row], size_bytes[row] = 0, 0, 0, 0, 0
    imm[row], remote_qpn[row], dlid[row], sges[row] = 0, 0, 0, 0


@kernel(types.int64(_WORDS, types.int64, types.int64, U8R, types.uint32, types.int64, _DECODED))
def decode_kernel(words, row, available, index, qpn, has_av, out):
    """Decode the WQE whose first slot is a row.

    Args:
        words: Eight ``(n,)`` u8.
        row: Of its first slot.
        available: Rows from there on that may be its slots.
        index: ``(n,)`` u8, index of each slot.
        qpn: Of its queue pair.
        has_av: Whether its segments begin with an address vector.
        out: Columns of ``stages.wqe.DECODED``, ``(n,)`` each; written at ``row``.

    Returns:
        How many slots it takes; 0 when its control segment is not of this index and queue pair,
        or its segments do not fit in its size. What it holds is then all 0.
    """
    first, second = _be32(words, row, 0), _be32(words, row, 4)
    segments = np.int64(second & np.uint32(0x3F))
    count = (segments * _SEGMENT + _SLOT - 1) // _SLOT
    own = np.uint32(index[row] & np.uint64(0xFFFF))
    if segments == 0 or count > available:
        return 0
    if (first >> np.uint32(8)) & np.uint32(0xFFFF) != own or second >> np.uint32(8) != qpn:
        return 0
    opcode = np.uint8(first & np.uint32(0xFF))
    out[0][row] = opcode
    out[1][row] = _OPS[opcode]
    if _PARTS[opcode] & _WORD:
        out[5][row] = _be32(words, row, 12)
    opmod = np.uint8(first >> np.uint32(24))
    end = segments * _SEGMENT
    if _PARTS[opcode] & _TRAVELS and _segments(words, row, end, opmod, has_av, out) == 0:
        _clear(row, out)
        return 0
    out[9][row] = count
    out[10][row] = (words[1][row] >> np.uint64(26) & np.uint64(3)) >= np.uint64(2)
    return count


@kernel(types.void(I4R, U8R, U8R, I4R, U4R, U1R, _WORDS, U1W, _DECODED))
def walk_kernel(proc, t_tsc, index, pair, qpn, has_av, words, kind, out):
    """Decode all slots: walk from WQE to WQE, slot by slot where there is none.

    Args:
        proc: ``(n,)`` i4.
        t_tsc: ``(n,)`` u8, of the doorbell that announced the slot; a WQE has one doorbell.
        index: ``(n,)`` u8, index of the slot in its queue.
        pair: ``(n,)`` i4, row of ``qpn`` and ``has_av``; -1 when the queue pair is not known.
        qpn: ``(q,)`` u4.
        has_av: ``(q,)`` u1, whether WQEs begin with an address vector.
        words: Eight ``(n,)`` u8, the slots.
        kind: ``(n,)`` u1, output, ``trace_format.WqeKind``; 0 when the queue pair is not known.
        out: ``(n,)`` each, all 0, output: opcode u1, op u1, raddr u8, rkey u4, size_bytes u8,
            imm u4, remote_qpn u4, dlid u4, sges u1, slots u1, signaled u1; at the row of the
            first slot.

    Rows lie as they were recorded. Complexity O(n). Source: docs/format.md 2.10.
    """
    row, size = 0, index.size
    while row < size:
        at = pair[row]
        if at < 0:
            kind[row] = 0
            row += 1
            continue
        available = 1
        while (
            available < 16
            and row + available < size
            and pair[row + available] == at
            and proc[row + available] == proc[row]
            and t_tsc[row + available] == t_tsc[row]
            and index[row + available] == index[row] + np.uint64(available)
        ):
            available += 1
        taken = decode_kernel(words, row, available, index, qpn[at], has_av[at], out)
        kind[row] = 1 if taken else 3
        for k in range(1, taken):
            kind[row + k] = 2
        row += max(taken, 1)


@kernel(types.void(U8R, U8R, U4W, U8W))
def doorbell_kernel(value, last, out_qpn, out_index):
    """Decode doorbells.

    Args:
        value: ``(n,)`` u8, the eight bytes, read as a little-endian number.
        last: ``(n,)`` u8, index of the queue before it.
        out_qpn: ``(n,)`` u4, output, number of the queue pair.
        out_index: ``(n,)`` u8, output, producer index after it, continued from ``last``.

    There are two dialects: the next free index without a size, or the first eight bytes of the last
    WQE. Either tells 16 bits; a queue has at most 32768 slots. Complexity O(n).
    """
    for i in range(value.size):
        first = _swap(value[i] & np.uint64(0xFFFFFFFF))
        second = _swap(value[i] >> np.uint64(32))
        slots = ((second & np.uint32(0x3F)) + np.uint32(3)) >> np.uint32(2)
        told = np.uint64((first >> np.uint32(8)) + slots)
        out_qpn[i] = second >> np.uint32(8)
        out_index[i] = last[i] + (told - last[i] & np.uint64(0xFFFF))
