"""Columns of packed chunks, and their differences to what an earlier record predicts."""

from __future__ import annotations

import numpy as np
from numba import int64, uint64, void

from sigmatrace.kernel import I4R, I4W, U1R, U8R, U8W, kernel


@kernel(void(U8R, I4W, I4W))
def link_equal(keys: np.ndarray, latest: np.ndarray, links: np.ndarray) -> None:
    """Find for each record the latest earlier one of the same key.

    Args:
        keys: Of shape (records,); their low bits count.
        latest: Scratch; its length, a power of two, is the number of keys.
        links: Filled: number of the record found, -1 where there is none.
    """
    mask = np.uint64(len(latest) - 1)
    latest[:] = -1
    for i in range(len(links)):
        key = keys[i] & mask
        links[i] = latest[key]
        latest[key] = i


@kernel(void(U8R, I4R, uint64, uint64, U8W))
def differences(
    values: np.ndarray, links: np.ndarray, base: int, top: int, out: np.ndarray
) -> None:
    """Fill ``out`` with how values differ from those that predict them; small ones are small.

    Args:
        values: Of shape (records,).
        links: Number of the record that predicts each one, or -1.
        base: Predicts where there is no link.
        top: Number of the highest bit of a value: 31 or 63.
        out: 2 d for a difference d >= 0, else -2 d - 1.
    """
    one = np.uint64(1)
    mask = ~np.uint64(0) >> np.uint64(63 - top)
    for i in range(len(out)):
        link = links[i]
        rest = (values[i] - (base if link < 0 else values[link])) & mask
        out[i] = ((rest << one) ^ (np.uint64(0) - (rest >> top))) & mask


@kernel(void(I4R, uint64, uint64, U8W))
def restore(links: np.ndarray, base: int, top: int, values: np.ndarray) -> None:
    """Undo ``differences`` in place; arguments as there."""
    one = np.uint64(1)
    mask = ~np.uint64(0) >> np.uint64(63 - top)
    for i in range(len(values)):
        rest = (values[i] >> one) ^ (np.uint64(0) - (values[i] & one))
        link = links[i]
        values[i] = (rest + (base if link < 0 else values[link])) & mask


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
