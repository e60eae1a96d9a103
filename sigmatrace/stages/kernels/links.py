# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg"
"""Kernel of the stage links: the slots of time in which operations began, by channel."""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint32

from sigmatrace.kernel import I8R, U1R, U4R, U8W, kernel

# OpFlag and Op of trace_format: a cached kernel does not see a change elsewhere.
_NESTED_SHIFT, _GET = 5, 4
_BLOCK = 1024
"""Operations whose bits are found together, in a loop that a processor does several at a time."""


@kernel()
def _find(channel, op, flags, t_ns, low, mask, begin_ns, last_ns, shift, words, word, place):
    """Write where the bit of each operation is; return those that count, and those outside."""
    counted, outside = np.int64(0), np.int64(0)
    for i in range(channel.size):
        bit = mask >> np.uint32(op[i] & np.uint8(31)) & np.uint32(op[i] < np.uint8(32))
        bit &= ~np.uint32(flags[i] >> np.uint8(_NESTED_SHIFT)) & np.uint32(1)
        since = t_ns[i] - begin_ns
        within = min(max(since, np.int64(0)), last_ns)
        slot = np.uint32(np.uint64(within) >> np.uint64(shift))
        row = np.uint32(channel[i] - low) * np.uint32(2) + np.uint32(op[i] == np.uint8(_GET))
        word[i] = ((row + np.uint32(1)) * words + (slot >> np.uint32(6))) * bit
        place[i] = np.uint8(slot & np.uint32(63))
        counted += np.int64(bit)
        outside += np.int64(since != within) & np.int64(bit)
    return counted, outside


@kernel(
    types.UniTuple(int64, 2)(
        *(U4R, U1R, U1R, I8R, uint32, uint32, int64, int64, int64, uint32, U8W)
    )
)
def slots_kernel(channel, op, flags, t_ns, low, mask, begin_ns, last_ns, shift, words, bits):
    """Note the slots in which operations began, by channel and direction.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1.
        flags: ``(n,)`` u1; operations with NESTED (32) do not count.
        t_ns: ``(n,)`` i8.
        low: Smallest channel.
        mask: Bit k is set if operation k counts; none from 32 on does.
        begin_ns: Begin of slot 0; what lies before counts there.
        last_ns: Last ns of the last slot since ``begin_ns``; what lies behind counts there.
        shift: log2 of the width of a slot in ns.
        words: A 64th of the slots.
        bits: ``((1 + 2 channels) * words,)`` u8, output: bit s of row r (``words`` numbers) is set
            where an operation began in slot s; row 0 is of what does not count, rows 1 + 2 c and
            2 + 2 c are of channel ``low + c``, the latter of its GETs. Less than 2^32 numbers.

    Returns:
        Operations that count; those of them before the first or behind the last slot.

    Any order. Complexity O(n).
    """
    word, place = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint8)
    counted, outside = 0, 0
    for start in range(0, channel.size, _BLOCK):
        stop = start + _BLOCK
        c, o, f, t = channel[start:stop], op[start:stop], flags[start:stop], t_ns[start:stop]
        more = _find(c, o, f, t, low, mask, begin_ns, last_ns, shift, words, word, place)
        counted, outside = counted + more[0], outside + more[1]
        for i in range(c.size):
            bits[word[i]] |= np.uint64(1) << np.uint64(place[i])
    return counted, outside
