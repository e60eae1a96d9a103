"""From packed records to columns in one pass over memory."""

from __future__ import annotations

import numba
import numpy as np

_WORDS = numba.types.Array(numba.uint64, 1, "C", readonly=True, aligned=False)
_CALLS = numba.types.Array(numba.uint8, 1, "C", readonly=True)
_U8, _U4, _I4, _U1 = (kind[::1] for kind in (numba.uint64, numba.uint32, numba.int32, numba.uint8))
_NUMBERS = (_WORDS, _CALLS, numba.uint32, numba.uint32)
_OPS = numba.types.Tuple((_U8, _U8, _U4, _U4, _U1, _U1, _U1, _U1, _U4))  # type: ignore[no-untyped-call]
_COMPLETIONS = numba.types.Tuple((_U8, _U8, _U4, _U4, _I4, _U1, _U1, _U1, _U1))  # type: ignore[no-untyped-call]


@numba.njit(numba.int64(*_NUMBERS, _OPS), nogil=True, cache=True)
def split_ops(
    words: np.ndarray,
    calls: np.ndarray,
    first_channel: int,
    channel_count: int,
    columns: tuple[np.ndarray, ...],
) -> int:
    """Fill the columns of ``op`` records; return how many have an unknown channel.

    Args:
        words: The n records, u8 of shape (4 n,), at any alignment.
        calls: Number in the run by call, u1 of shape (256,).
        first_channel: Number in the run of the process's channel 0.
        channel_count: Channels of the process.
        columns: Of shape (n,), in the order of the record's fields.
    """
    t_tsc, size_bytes, channel, ordinal, op, call, depth, flags, aux = columns
    unknown = 0
    for i in range(len(t_tsc)):
        t_tsc[i] = words[4 * i]
        size_bytes[i] = words[4 * i + 1]
        third, fourth = words[4 * i + 2], words[4 * i + 3]
        own = np.uint32(third)
        if own >= channel_count:
            unknown += 1
        channel[i] = first_channel + own
        ordinal[i] = np.uint32(third >> np.uint64(32))
        op[i] = np.uint8(fourth)
        call[i] = calls[np.uint8(fourth >> np.uint64(8))]
        depth[i] = np.uint8(fourth >> np.uint64(16))
        flags[i] = np.uint8(fourth >> np.uint64(24))
        aux[i] = np.uint32(fourth >> np.uint64(32))
    return unknown


@numba.njit(numba.int64(*_NUMBERS, _COMPLETIONS), nogil=True, cache=True)
def split_completions(
    words: np.ndarray,
    calls: np.ndarray,
    first_channel: int,
    channel_count: int,
    columns: tuple[np.ndarray, ...],
) -> int:
    """Fill the columns of ``completion`` records.

    Args:
        words: As for ``split_ops``, like all that follow.
        calls: See there.
        first_channel: See there.
        channel_count: See there.
        columns: See there.
    """
    t_tsc, size_bytes, channel, ordinal, status, op, call, depth, flags = columns
    unknown = 0
    for i in range(len(t_tsc)):
        t_tsc[i] = words[4 * i]
        size_bytes[i] = words[4 * i + 1]
        third, fourth = words[4 * i + 2], words[4 * i + 3]
        own = np.uint32(third)
        if own >= channel_count:
            unknown += 1
        channel[i] = first_channel + own
        ordinal[i] = np.uint32(third >> np.uint64(32))
        status[i] = np.int32(np.uint32(fourth))
        op[i] = np.uint8(fourth >> np.uint64(32))
        call[i] = calls[np.uint8(fourth >> np.uint64(40))]
        depth[i] = np.uint8(fourth >> np.uint64(48))
        flags[i] = np.uint8(fourth >> np.uint64(56))
    return unknown
