"""Sums over the chunks of all files: of their records, and of what is missing among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SCHEMAS = 256
"""Numbers that a schema may have."""


def numbered(parts: Sequence[np.ndarray]) -> tuple[NDArray[np.int32], np.ndarray]:
    """Return for each row of all parts the number of its part, and the rows; they have one dtype.

    numpy would compare the fields of each part's dtype with those of the one before.
    """
    numbers = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
    return numbers, np.concatenate([part.view(np.uint8) for part in parts]).view(parts[0].dtype)


def records(procs: NDArray[np.int32], chunks: np.ndarray, count: int) -> NDArray[np.int64]:
    """Return how many records chunks hold, i8 of shape ``(count, SCHEMAS)``.

    Args:
        procs: ``(n,)`` i4, of each chunk the process.
        chunks: ``(n,)`` of dtype ``index.CHUNK``.
        count: Of processes.
    """
    place = procs * np.int64(SCHEMAS) + chunks["schema"]
    # Sums of 64-bit floats are exact: no file has 2^53 bytes.
    totals = np.bincount(place, chunks["count"], count * SCHEMAS)
    return totals.astype(np.int64).reshape(count, SCHEMAS)


def gaps(procs: NDArray[np.int32], chunks: np.ndarray) -> Counter[int]:
    """Return by schema how many chunk numbers are missing below the largest of each thread.

    Args:
        procs: ``(n,)`` i4, of each chunk the process.
        chunks: ``(n,)`` of dtype ``index.CHUNK``.
    """
    found = Counter[int]()
    if not len(chunks):
        return found
    place = procs * np.int64(SCHEMAS) + chunks["schema"]
    order = np.lexsort((chunks["seq"], chunks["thread"], place))
    place, thread, seq = place[order], chunks["thread"][order], chunks["seq"][order]
    is_first = np.ones(len(seq), bool)
    is_first[1:] = (place[1:] != place[:-1]) | (thread[1:] != thread[:-1])
    is_other = is_first.copy()
    is_other[1:] |= seq[1:] != seq[:-1]
    first = np.flatnonzero(is_first)
    largest = seq[np.append(first[1:], len(seq)) - 1]
    # The largest number may be 2^64 - 1; what is missing is less than 2^64, and so the same.
    missing = largest + np.uint64(1) - np.add.reduceat(is_other, first, dtype=np.uint64)
    for at in np.flatnonzero(missing).tolist():
        found[int(place[first[at]]) % SCHEMAS] += int(missing[at])
    return found
