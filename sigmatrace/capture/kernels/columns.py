"""From packed records to columns in one pass over memory."""

from __future__ import annotations

import numpy as np
from numba import types, uint32, uint64

from sigmatrace.kernel import U1R, U1W, U4W, U8W, kernel, tuple_of

_WORDS = types.Array(uint64, 1, "C", readonly=True, aligned=False)
_COLUMNS = tuple_of(U8W, U8W, U4W, U4W, U1W, U1W, U1W, U1W, U4W)
_TILE = 128
"""Records taken apart at a time: small enough for the first cache, twice."""


@kernel()
def _put(words: np.ndarray, shift: int, out: np.ndarray) -> None:
    """Fill ``out`` with what stands in the words from bit ``shift`` on."""
    for i in range(len(out)):
        out[i] = words[np.uint64(i)] >> shift


@kernel(uint32(_WORDS, U1R, uint32, uint64, uint64, uint64, _COLUMNS))
def split(
    words: np.ndarray,
    calls: np.ndarray,
    first_channel: int,
    bytes_at: int,
    rest_at: int,
    start: int,
    columns: tuple[np.ndarray, ...],
) -> np.uint32:
    """Fill the columns of ``op`` or ``completion`` records; return their highest channel.

    Both have four words: time, size, channel and ordinal, and one of four bytes and a rest of
    32 bits. The words of some records are put apart first: loops over few arrays are ones of
    vectors, those over many are not.

    Args:
        words: The n records, u8 of shape (4 n,), at any alignment.
        calls: Number in the run by call, u1 of shape (256,).
        first_channel: Number in the run of the process's channel 0.
        bytes_at: Bit of the fourth word at which the bytes begin.
        rest_at: Bit of the fourth word at which the rest begins.
        start: Row of the first record.
        columns: Time, size, channel, ordinal, operation, call, depth, flags and rest, each of
            shape (start + n or more,), or of none: then it is not filled.
    """
    t_tsc, size_bytes, channel, ordinal, op, call, depth, flags, rest = columns
    first, second = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint64)
    third, fourth = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint64)
    highest = np.uint32(0)
    four = np.uint64(4)
    count = np.uint64(len(words)) // four
    at = np.uint64(0)
    while at < count:
        size = min(np.uint64(_TILE), count - at)
        tile = words[four * at : four * (at + size)]
        for i in range(size):
            first[i] = tile[four * i]
            second[i] = tile[four * i + np.uint64(1)]
            third[i] = tile[four * i + np.uint64(2)]
            fourth[i] = tile[four * i + np.uint64(3)]
        for i in range(size):
            highest = max(highest, np.uint32(third[i]))
        row, end = start + at, start + at + size
        _put(first, np.uint64(0), t_tsc[row:end])
        _put(second, np.uint64(0), size_bytes[row:end])
        numbers = channel[row:end]
        for i in range(len(numbers)):
            numbers[i] = first_channel + np.uint32(third[np.uint64(i)])
        _put(third, np.uint64(32), ordinal[row:end])
        _put(fourth, bytes_at, op[row:end])
        named = call[row:end]
        for i in range(len(named)):
            named[i] = calls[np.uint8(fourth[np.uint64(i)] >> (bytes_at + np.uint64(8)))]
        _put(fourth, bytes_at + np.uint64(16), depth[row:end])
        _put(fourth, bytes_at + np.uint64(24), flags[row:end])
        _put(fourth, rest_at, rest[row:end])
        at += size
    return highest
