"""Records taken apart into planes of bytes, and put together again (``docs/format.md`` 1.6)."""

from __future__ import annotations

import numpy as np
from numba import int64, void

from sigmatrace.kernel import I8R, I8R2, I8W, U1R, U1W, U4R, U4W, U8R, U8W, kernel

NONE, PREVIOUS = 0, 1
"""What predicts a column, as the format numbers it; else the latest record of the same key."""
ONE = np.uint64(1)


@kernel()
def _load(words: np.ndarray, step: int, at: int, width: int, out: np.ndarray) -> None:
    """Fill ``out`` with the numbers that begin at word ``at`` of each record."""
    low, each = np.uint64(at), np.uint64(step)  # unsigned: indices that cannot count from the end
    if width == 4:
        for i in range(len(out)):
            out[i] = words[np.uint64(i) * each + low]
    else:
        for i in range(len(out)):
            first = np.uint64(i) * each + low
            out[i] = np.uint64(words[first]) | np.uint64(words[first + ONE]) << np.uint64(32)


@kernel()
def _store(numbers: np.ndarray, step: int, at: int, width: int, words: np.ndarray) -> None:
    """Undo ``_load``."""
    low, each = np.uint64(at), np.uint64(step)
    for i in range(len(numbers)):
        words[np.uint64(i) * each + low] = numbers[i]
    if width == 8:
        for i in range(len(numbers)):
            words[np.uint64(i) * each + low + ONE] = numbers[i] >> np.uint64(32)


@kernel()
def _folded(rest: np.uint64, unused: np.uint64) -> np.uint64:
    """Return 2 d for a difference d >= 0, else -2 d - 1: small ones are small.

    Args:
        rest: The difference, modulo the numbers of a column.
        unused: Bits by which these are shorter than 64.
    """
    high = np.int64(rest << unused)
    return np.uint64((high << 1) ^ (high >> 63)) >> unused


@kernel()
def _unfolded(rest: np.uint64) -> np.uint64:
    return (rest >> ONE) ^ (np.uint64(0) - (rest & ONE))


@kernel()
def _predict(
    words: np.ndarray, step: int, column: np.ndarray, latest: np.ndarray, rests: np.ndarray
) -> np.uint64:
    """Fill ``rests`` with what predictions leave of a column, and return its base.

    Arguments are those of ``split``.
    """
    at, width, how, key = column
    unused = np.uint64(64 - 8 * width)
    _load(words, step, at >> 2, width, rests)
    base: np.uint64 = rests[0]
    if how == NONE:
        base = rests.min()
        for i in range(len(rests)):
            rests[i] -= base
    elif how == PREVIOUS:
        before = base
        for i in range(len(rests)):
            number = rests[i]
            rests[i] = _folded(number - before, unused)
            before = number
    else:
        latest[:] = base
        first, each, mask = np.uint64(key >> 2), np.uint64(step), np.uint64(len(latest) - 1)
        for i in range(len(rests)):
            place = words[np.uint64(i) * each + first] & mask
            number = rests[i]
            rests[i] = _folded(number - latest[place], unused)
            latest[place] = number
    return base


@kernel(int64(U4R, int64, I8R2, U8W, U8W, U8W, I8W, U1W))
def split(
    words: np.ndarray,
    step: int,
    columns: np.ndarray,
    latest: np.ndarray,
    rests: np.ndarray,
    bases: np.ndarray,
    planes: np.ndarray,
    out: np.ndarray,
) -> int:
    """Take records apart into planes; return how many bytes these have.

    Args:
        words: The records, one behind the other.
        step: Words of a record.
        columns: Of shape (columns, 4): ``at``, ``width``, ``how`` and ``key`` of each.
        latest: Scratch; its length, a power of two, is the number of keys.
        rests: Scratch of shape (records,).
        bases: Of shape (columns,), filled: the number that predicts the first one.
        planes: Of shape (columns,), filled: how many planes each column has.
        out: Filled: the planes; room for as many as the columns are wide.
    """
    used = 0
    for c in range(len(columns)):
        bases[c] = _predict(words, step, columns[c], latest, rests)
        bits = np.uint64(0)
        for i in range(len(rests)):
            bits |= rests[i]
        count = 0
        while count < 8 and bits >> np.uint64(8 * count):
            plane = out[used : used + len(rests)]
            shift = np.uint64(8 * count)
            for i in range(len(rests)):
                plane[i] = rests[i] >> shift
            used += len(rests)
            count += 1
        planes[c] = count
    return used


@kernel()
def _undo(
    words: np.ndarray, step: int, column: np.ndarray, latest: np.ndarray, numbers: np.ndarray
) -> None:
    """Make rests numbers, but those without a prediction; ``latest`` holds the column's base."""
    how, key = column[2:]
    if how == PREVIOUS:
        number = latest[0]
        for i in range(len(numbers)):
            number += _unfolded(numbers[i])
            numbers[i] = number
    else:
        first, each, mask = np.uint64(key >> 2), np.uint64(step), np.uint64(len(latest) - 1)
        for i in range(len(numbers)):
            place = words[np.uint64(i) * each + first] & mask
            latest[place] += _unfolded(numbers[i])
            numbers[i] = latest[place]


@kernel(void(U1R, int64, I8R2, U8R, I8R, U8W, U8W, U4W))
def restore(
    stored: np.ndarray,
    step: int,
    columns: np.ndarray,
    bases: np.ndarray,
    planes: np.ndarray,
    latest: np.ndarray,
    rests: np.ndarray,
    words: np.ndarray,
) -> None:
    """Put records together again of their planes.

    Args:
        stored: The planes, as many as ``planes`` says.
        step: As of ``split``.
        columns: As there.
        bases: As there, given.
        planes: As there, given.
        latest: As there.
        rests: As there.
        words: Filled: the records.
    """
    used = 0
    for c in range(len(columns)):
        at, width, how = columns[c, :3]
        least = bases[c] if how == NONE else np.uint64(0)
        if planes[c] == 0:
            rests[:] = least
        for k in range(planes[c]):
            plane = stored[used : used + len(rests)]
            shift = np.uint64(8 * k)
            if k == 0:
                for i in range(len(rests)):
                    rests[i] = least + plane[i]
            else:
                for i in range(len(rests)):
                    rests[i] += np.uint64(plane[i]) << shift
            used += len(rests)
        if how != NONE:
            latest[:] = bases[c]
            _undo(words, step, columns[c], latest, rests)
        _store(rests, step, at >> 2, width, words)


@kernel()
def _length(block: np.ndarray, at: int, nibble: int) -> tuple[np.int64, int]:
    """Return a length that begins with four bits of a token, and where its bytes end."""
    length = np.int64(nibble)
    more = np.int64(255 if nibble == 15 else 0)
    while more == 255 and at < len(block):
        more = np.int64(block[at])
        at += 1
        length += more
    return length, at


@kernel(int64(U1R))
def block_bytes(block: np.ndarray) -> np.int64:
    """Return how many bytes an LZ4 block unpacks to, as its lengths tell; -1 if it cannot be.

    Arrow does not say when a block yields too little, and takes matches of distance 0.
    Source: LZ4 Block Format Description.
    """
    size = len(block)
    at = total = np.int64(0)
    while at < size:
        token = block[at]
        literals, at = _length(block, at + 1, token >> 4)
        total += literals
        at += literals
        if at + 2 > size:  # the last sequence has no match
            return total if at == size else np.int64(-1)
        distance = np.int64(block[at]) | np.int64(block[at + 1]) << 8
        if distance == 0 or distance > total:
            return np.int64(-1)
        matched, at = _length(block, at + 2, token & 15)
        total += matched + 4
    return np.int64(-1)
