"""From packed records to columns in one pass over memory."""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint32, uint64

from sigmatrace.kernel import I4W, U1R, U1W, U4W, U8W, kernel, tuple_of

_WORDS = types.Array(uint64, 1, "C", readonly=True, aligned=False)
_NUMBERS = (_WORDS, U1R, uint32, uint32, uint64)
_OPS = tuple_of(U8W, U8W, U4W, U4W, U1W, U1W, U1W, U1W, U4W)
_COMPLETIONS = tuple_of(U8W, U8W, U4W, U4W, I4W, U1W, U1W, U1W, U1W)


@kernel()
def _split_head(
    words: np.ndarray,
    i: int,
    row: int,
    first_channel: int,
    channel_count: int,
    head: tuple[np.ndarray, ...],
) -> int:
    """Put record ``i`` into a row of the four columns that begin both.

    Returns 1 if its channel is unknown.
    """
    t_tsc, size_bytes, channel, ordinal = head
    third = words[4 * i + 2]
    own = np.uint32(third)
    t_tsc[row] = words[4 * i]
    size_bytes[row] = words[4 * i + 1]
    channel[row] = first_channel + own
    ordinal[row] = np.uint32(third >> np.uint64(32))
    return int(own >= channel_count)


@kernel(int64(*_NUMBERS, _OPS))
def split_ops(
    words: np.ndarray,
    calls: np.ndarray,
    first_channel: int,
    channel_count: int,
    start: int,
    columns: tuple[np.ndarray, ...],
) -> int:
    """Fill the columns of ``op`` records; return how many have an unknown channel.

    Args:
        words: The n records, u8 of shape (4 n,), at any alignment.
        calls: Number in the run by call, u1 of shape (256,).
        first_channel: Number in the run of the process's channel 0.
        channel_count: Channels of the process.
        start: Row of the first record.
        columns: Of shape (start + n or more,), in the order of the record's fields.
    """
    t_tsc, size_bytes, channel, ordinal, op, call, depth, flags, aux = columns
    head = (t_tsc, size_bytes, channel, ordinal)
    unknown = 0
    for i in range(len(words) // 4):
        row = start + np.uint64(i)
        unknown += _split_head(words, i, row, first_channel, channel_count, head)
        fourth = words[4 * i + 3]
        op[row] = np.uint8(fourth)
        call[row] = calls[np.uint8(fourth >> np.uint64(8))]
        depth[row] = np.uint8(fourth >> np.uint64(16))
        flags[row] = np.uint8(fourth >> np.uint64(24))
        aux[row] = np.uint32(fourth >> np.uint64(32))
    return unknown


@kernel(int64(*_NUMBERS, _COMPLETIONS))
def split_completions(
    words: np.ndarray,
    calls: np.ndarray,
    first_channel: int,
    channel_count: int,
    start: int,
    columns: tuple[np.ndarray, ...],
) -> int:
    """Fill the columns of ``completion`` records.

    Args:
        words: As for ``split_ops``, like all that follow.
        calls: See there.
        first_channel: See there.
        channel_count: See there.
        start: See there.
        columns: See there.
    """
    t_tsc, size_bytes, channel, ordinal, status, op, call, depth, flags = columns
    head = (t_tsc, size_bytes, channel, ordinal)
    unknown = 0
    for i in range(len(words) // 4):
        row = start + np.uint64(i)
        unknown += _split_head(words, i, row, first_channel, channel_count, head)
        fourth = words[4 * i + 3]
        status[row] = np.int32(np.uint32(fourth))
        op[row] = np.uint8(fourth >> np.uint64(32))
        call[row] = calls[np.uint8(fourth >> np.uint64(40))]
        depth[row] = np.uint8(fourth >> np.uint64(48))
        flags[row] = np.uint8(fourth >> np.uint64(56))
    return unknown
