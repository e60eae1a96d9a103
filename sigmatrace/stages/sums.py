"""Sums by key that cannot overflow: what stages merge over partitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LIMB = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True)
class Sums:
    """Counts and bytes by key.

    Attributes:
        key: ``(keys,)`` u8, distinct, ascending.
        sums: ``(keys, 3 or more)`` u8: count; bytes in two limbs, value ``high << 32 | low``
            with ``low`` below 2^32; other counts.
    """

    key: NDArray[np.uint64]
    sums: NDArray[np.uint64]


def sums_of(key: NDArray[np.uint64], sums: NDArray[np.uint64]) -> Sums:
    """Add up rows of equal keys, in any order; ``low`` may be any number."""
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.ones(key.size, bool)
    first[1:] = key[1:] != key[:-1]
    starts = np.flatnonzero(first)
    total = np.empty((starts.size, sums.shape[1]), np.uint64)
    # Column by column: of millions of keys only one column is there more than once.
    for number in range(total.shape[1]):
        column = _carried(sums, number)[order]
        total[:, number] = np.add.reduceat(column, starts) if key.size else column
    total[:, 2] += total[:, 1] >> LIMB
    total[:, 1] &= LOW
    return Sums(key[starts], total)


def add_all(parts: Sequence[Sums]) -> Sums:
    """Add sums of equal keys of one or more parts. Complexity O(keys log parts).

    Keys of partitions are mostly those of their own processes: then all is put side by side.
    """
    there = [part for part in parts if part.key.size]
    if len(there) < 2:
        return there[0] if there else parts[0]
    if all(left.key[-1] < right.key[0] for left, right in itertools.pairwise(there)):
        key, sums = ([getattr(part, name) for part in there] for name in ("key", "sums"))
        return Sums(np.concatenate(key), np.concatenate(sums))
    half = len(there) // 2
    return _merged(add_all(there[:half]), add_all(there[half:]))


def _merged(left: Sums, right: Sums) -> Sums:
    from sigmatrace.stages.kernels.sums import add_kernel

    size = left.key.size + right.key.size
    key, sums = np.empty(size, np.uint64), np.empty((size, left.sums.shape[1]), np.uint64)
    count = add_kernel(left.key, left.sums, right.key, right.sums, key, sums)
    return Sums(key[:count].copy(), sums[:count].copy())


def _carried(sums: NDArray[np.uint64], number: int) -> NDArray[np.uint64]:
    """Return a column of sums whose lower limb is cut to its 32 bits."""
    if number == 1:
        return sums[:, 1] & LOW
    return sums[:, 2] + (sums[:, 1] >> LIMB) if number == 2 else sums[:, number]


def column_sums(sums: Sums) -> tuple[NDArray[np.uint64], int]:
    """Return bytes as one u8 column, 2^64 - 1 where they are more, and how many are more."""
    carried = sums.sums[:, 2] + (sums.sums[:, 1] >> LIMB)
    over = carried > LOW
    value = (carried << LIMB) | (sums.sums[:, 1] & LOW)
    return np.where(over, np.uint64(2**64 - 1), value), int(over.sum())
