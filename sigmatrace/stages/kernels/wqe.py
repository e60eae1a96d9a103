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

_SEGMENT = 16
_SLOT = 64
_INLINE = 0x80000000
_INLINE_MAX = 1024
_FULL_VECTOR = 0x80000000
_FULL_VECTOR_BYTES = 48
_EXTENDED_4_BYTES = 0x08
_WAIT, _MASKED_CS, _MASKED_FA, _DUMP = 0x0F, 0x14, 0x15, 0x23

# Op of trace_format: kernels import numpy and numba alone; a test compares.
_SEND, _PUT, _GET, _ATOMIC_FETCH, _PUT_DATA, _BIND, _INVALIDATE, _NOP = 1, 3, 4, 6, 10, 11, 12, 13

_TRAVELS, _REMOTE, _ATOMIC, _WORD = 1, 2, 4, 8
_OPS = np.full(256, _NOP, np.uint8)
"""``(256,)`` u1, ``Op`` by opcode."""
_PARTS = np.zeros(256, np.uint8)
"""``(256,)`` u1, what follows the control segment, by opcode."""
for _opcode, _op, _parts in (
    (0x01, _SEND, _TRAVELS | _WORD),
    (0x08, _PUT, _TRAVELS | _REMOTE),
    (0x09, _PUT_DATA, _TRAVELS | _REMOTE | _WORD),
    (0x0A, _SEND, _TRAVELS),
    (0x0B, _SEND, _TRAVELS | _WORD),
    (0x10, _GET, _TRAVELS | _REMOTE),
    (0x11, _ATOMIC_FETCH, _TRAVELS | _REMOTE | _ATOMIC),
    (0x12, _ATOMIC_FETCH, _TRAVELS | _REMOTE | _ATOMIC),
    (0x14, _ATOMIC_FETCH, _TRAVELS | _REMOTE | _ATOMIC),
    (0x15, _ATOMIC_FETCH, _TRAVELS | _REMOTE | _ATOMIC),
    (0x19, _BIND, 0),
    (0x1B, _INVALIDATE, _WORD),
    (0x25, _BIND, _WORD),
):
    _OPS[_opcode], _PARTS[_opcode] = _op, _parts

_WORDS = tuple_of(*[U8R] * 8)
_COUNT_U8, _COUNT_U4, _COUNT_U1 = 11, 10, 12
_DECODED = tuple_of(
    tuple_of(*[U8W] * _COUNT_U8), tuple_of(*[U4W] * _COUNT_U4), tuple_of(*[U1W] * _COUNT_U1)
)
_RADDR, _SIZE, _LADDR, _OPERAND, _COMPARE, _OPERAND_MASK, _COMPARE_MASK = range(7)
_DC_KEY, _RMAC, _DGID_PREFIX, _DGID_INTERFACE = range(7, 11)
_RKEY, _IMM, _LKEY, _INLINE_BYTES, _REMOTE_QPN, _DLID = range(11, 17)
_FLOW_LABEL, _STREAM, _WAIT_INDEX, _WAIT_CQN = range(17, 21)
_OPCODE, _OPMOD, _OP, _SGES, _SLOTS, _CE, _FENCE, _SOLICITED = range(21, 29)
_HAS_AV, _SL, _TCLASS, _HOP_LIMIT = range(29, 33)
"""Places in what ``decode_kernel`` found, in the order of ``stages.wqe.DECODED``."""
_SLOTS_MAX = 16
_SLOT_WORDS = 16


@kernel()
def _swap(value):
    """Return a 32-bit number with its bytes in the other order."""
    value = np.uint32(value)
    low = (value & np.uint32(0xFF)) << np.uint32(24) | (value & np.uint32(0xFF00)) << np.uint32(8)
    return low | (value >> np.uint32(8)) & np.uint32(0xFF00) | value >> np.uint32(24)


@kernel()
def _u8(raw, at):
    """Return the 64-bit number at byte ``at``."""
    return np.uint64(raw[at >> 2]) << np.uint64(32) | np.uint64(raw[(at >> 2) + 1])


@kernel(types.int64(U4R, types.int64, types.int64, U8W))
def _data(raw, at, end, found):
    """Add up data and inline segments from byte ``at`` on; 0 when the last one ends elsewhere.

    A count of 0 is taken as it stands: that it means 2 GiB is not verified.
    """
    is_first = True
    while at < end:
        here = np.int64(raw[at >> 2])
        length = np.int64(_SEGMENT)
        is_inline = here >= _INLINE
        if is_inline:
            here -= _INLINE
            if here > _INLINE_MAX:
                return 0
            length = (4 + here + _SEGMENT - 1) // _SEGMENT * _SEGMENT
        if length > end - at:
            return 0
        if is_inline:
            found[_INLINE_BYTES] += np.uint64(here)
        elif is_first:
            found[_LKEY], found[_LADDR] = raw[(at >> 2) + 1], _u8(raw, at + 8)
            is_first = False
        found[_SIZE] += np.uint64(here)
        found[_SGES] += np.uint64(1)
        at += length
    return 1


@kernel(types.int64(U4R, types.int64, types.int64, U8W))
def _vector(raw, at, end, found):
    """Decode the address vector at byte ``at``; where it ends, 0 when that is beyond ``end``."""
    if at + _SEGMENT > end:
        return 0
    to, low = raw[(at >> 2) + 2], raw[(at >> 2) + 3]
    found[_HAS_AV], found[_DC_KEY], found[_REMOTE_QPN] = 1, _u8(raw, at), to & np.uint32(0xFFFFFF)
    found[_SL], found[_DLID] = low >> np.uint32(24) & np.uint32(0xF), low & np.uint32(0xFFFF)
    if not to & np.uint32(_FULL_VECTOR):
        return at + _SEGMENT
    if at + _FULL_VECTOR_BYTES > end:
        return 0
    mac = _u8(raw, at + 20)
    found[_RMAC] = mac >> np.uint64(16)
    found[_TCLASS] = mac >> np.uint64(8) & np.uint64(0xFF)
    found[_HOP_LIMIT] = mac & np.uint64(0xFF)
    found[_FLOW_LABEL] = raw[(at >> 2) + 7] & np.uint32(0xFFFFF)
    found[_DGID_PREFIX], found[_DGID_INTERFACE] = _u8(raw, at + 32), _u8(raw, at + 40)
    return at + _FULL_VECTOR_BYTES


@kernel(types.int64(U4R, types.int64, types.int64, types.int64, types.int64, U8W))
def _operands(raw, at, end, opcode, opmod, found):
    """Decode the operands of an atomic; where they end, 0 when that is beyond ``end``."""
    masked_cs = opcode == _MASKED_CS
    short = (masked_cs or opcode == _MASKED_FA) and opmod == _EXTENDED_4_BYTES
    stop = at + (2 * _SEGMENT if masked_cs and not short else _SEGMENT)
    if stop > end:
        return 0
    if short:
        found[_OPERAND], found[_COMPARE] = raw[at >> 2], raw[(at >> 2) + 1]
        if masked_cs:
            found[_OPERAND_MASK], found[_COMPARE_MASK] = raw[(at >> 2) + 2], raw[(at >> 2) + 3]
    else:
        found[_OPERAND], found[_COMPARE] = _u8(raw, at), _u8(raw, at + 8)
        if masked_cs:
            found[_OPERAND_MASK], found[_COMPARE_MASK] = _u8(raw, at + 16), _u8(raw, at + 24)
    found[_SIZE] = 4 if short else 8
    return stop


@kernel(types.int64(U4R, types.int64, types.int64, types.int64, types.int64, U8W))
def _segments(raw, end, opcode, opmod, has_av, found):
    """Decode what follows the control segment; 0 when its segments do not fit."""
    parts = _PARTS[opcode]
    at = np.int64(_SEGMENT)
    if has_av:
        at = _vector(raw, at, end, found)
        if at == 0:
            return 0
    if parts & _REMOTE:
        if at + _SEGMENT > end:
            return 0
        found[_RADDR], found[_RKEY] = _u8(raw, at), raw[(at >> 2) + 2]
        at += _SEGMENT
    if parts & _ATOMIC:
        at = _operands(raw, at, end, opcode, opmod, found)
        if at == 0:
            return 0
    moved = found[_SIZE]
    if _data(raw, at, end, found) == 0:
        return 0
    if parts & _ATOMIC:
        found[_SIZE] = moved
    return 1


@kernel()
def _local(raw, end, opcode, found):
    """Decode what WAIT and DUMP, which reach no peer, do here; what is cut off is left out."""
    if end >= 2 * _SEGMENT and opcode == _WAIT:
        found[_WAIT_INDEX], found[_WAIT_CQN] = raw[6], raw[7] & np.uint32(0xFFFFFF)
    elif end >= 2 * _SEGMENT and opcode == _DUMP and raw[4] < np.uint32(_INLINE):
        found[_LKEY], found[_LADDR] = raw[5], _u8(raw, 24)


@kernel(types.int64(U4R, types.int64, types.uint64, types.uint32, types.int64, U8W))
def decode_kernel(raw, available, index, qpn, has_av, found):
    """Decode the WQE that some slots begin with.

    Args:
        raw: ``(16 n,)`` u4, the slots, in the byte order of this machine.
        available: Slots that may be its own.
        index: Of the first one, in its queue.
        qpn: Of the queue pair.
        has_av: Whether the segments begin with an address vector.
        found: ``(33,)`` u8, output, in the order of ``stages.wqe.DECODED``.

    Returns:
        How many slots it takes; 0 when its control segment is not of this index and queue pair,
        or its segments do not fit in its size.
    """
    found[:] = 0
    segments = np.int64(raw[1] & np.uint32(0x3F))
    count = (segments * _SEGMENT + _SLOT - 1) // _SLOT
    own = np.uint32(index & np.uint64(0xFFFF))
    if segments == 0 or count > available:
        return 0
    if (raw[0] >> np.uint32(8)) & np.uint32(0xFFFF) != own or raw[1] >> np.uint32(8) != qpn:
        return 0
    opcode, opmod = np.int64(raw[0] & np.uint32(0xFF)), np.int64(raw[0] >> np.uint32(24))
    found[_OPCODE], found[_OPMOD], found[_OP], found[_SLOTS] = opcode, opmod, _OPS[opcode], count
    found[_STREAM] = raw[2] >> np.uint32(8) & np.uint32(0xFFFF)
    found[_FENCE] = raw[2] >> np.uint32(5) & np.uint32(7)
    found[_CE], found[_SOLICITED] = (
        raw[2] >> np.uint32(2) & np.uint32(3),
        raw[2] >> np.uint32(1) & np.uint32(1),
    )
    if _PARTS[opcode] & _WORD:
        found[_IMM] = raw[3]
    end = segments * _SEGMENT
    _local(raw, end, opcode, found)
    if _PARTS[opcode] & _TRAVELS and _segments(raw, end, opcode, opmod, has_av, found) == 0:
        return 0
    return count


@kernel()
def _store(found, row, out):
    """Write what was found into a row of the columns."""
    wide, middle, narrow = out
    for k in range(_COUNT_U8):
        wide[k][row] = found[k]
    for k in range(_COUNT_U4):
        middle[k][row] = found[_COUNT_U8 + k]
    for k in range(_COUNT_U1):
        narrow[k][row] = found[_COUNT_U8 + _COUNT_U4 + k]


@kernel()
def _load(words, row, raw, at):
    """Read a slot into ``raw`` from ``at`` on, in the byte order of this machine."""
    w0, w1, w2, w3, w4, w5, w6, w7 = words
    k = 0
    for word in (w0[row], w1[row], w2[row], w3[row], w4[row], w5[row], w6[row], w7[row]):
        raw[at + k] = _swap(word & np.uint64(0xFFFFFFFF))
        raw[at + k + 1] = _swap(word >> np.uint64(32))
        k += 2


@kernel()
def _in_a_row(row, pair, proc, t_tsc, index):
    """Return how many slots from a row on may belong to one WQE."""
    count = 1
    while (
        count < _SLOTS_MAX
        and row + count < index.size
        and pair[row + count] == pair[row]
        and proc[row + count] == proc[row]
        and t_tsc[row + count] == t_tsc[row]
        and index[row + count] == index[row] + np.uint64(count)
    ):
        count += 1
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
        out: ``(n,)`` each, all 0, output: columns of ``stages.wqe.DECODED``, those of 8, 4 and 1
            bytes apart; at the row of the first slot.

    Rows lie as they were recorded. Complexity O(n). Source: docs/format.md 2.10.
    """
    raw = np.empty(_SLOTS_MAX * _SLOT_WORDS, np.uint32)
    found = np.empty(_COUNT_U8 + _COUNT_U4 + _COUNT_U1, np.uint64)
    row = 0
    while row < index.size:
        at = pair[row]
        if at < 0:
            kind[row] = 0
            row += 1
            continue
        available = _in_a_row(row, pair, proc, t_tsc, index)
        _load(words, row, raw, 0)
        slots = min(available, (np.int64(raw[1] & np.uint32(0x3F)) + 3) // 4)
        for k in range(1, slots):
            _load(words, row + k, raw, k * _SLOT_WORDS)
        taken = decode_kernel(raw, available, index[row], qpn[at], has_av[at], found)
        kind[row] = 1 if taken else 3
        for k in range(1, taken):
            kind[row + k] = 2
        if taken:
            _store(found, row, out)
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
