# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernel that adds sums by key."""

from __future__ import annotations

import numpy as np
from numba import int64

from sigmatrace.kernel import U8R, U8R2, U8W, U8W2, kernel


@kernel(int64(U8R, U8R2, U8R, U8R2, U8W, U8W2))
def add_kernel(left_key, left, right_key, right, out_key, out):
    """Merge two ``stages.sums.Sums``.

    Args:
        left_key: ``(n,)`` u8, distinct, ascending.
        left: ``(n, k)`` u8, k at least 3: column 2 takes what column 1 has beyond 32 bits.
        right_key: ``(m,)`` u8, likewise.
        right: ``(m, k)`` u8.
        out_key: ``(n + m,)`` u8, output.
        out: ``(n + m, k)`` u8, output.

    Returns:
        The number of distinct keys, ascending in ``out_key``.

    Complexity O(n + m).
    """
    at = i = j = 0
    while i < left_key.size or j < right_key.size:
        is_left = j == right_key.size or (i < left_key.size and left_key[i] <= right_key[j])
        is_right = i == left_key.size or (j < right_key.size and right_key[j] <= left_key[i])
        out_key[at] = left_key[i] if is_left else right_key[j]
        for column in range(out.shape[1]):
            total = left[i, column] if is_left else np.uint64(0)
            total += right[j, column] if is_right else np.uint64(0)
            out[at, column] = total
        out[at, 2] += out[at, 1] >> np.uint64(32)
        out[at, 1] &= np.uint64(0xFFFFFFFF)
        i += is_left
        j += is_right
        at += 1
    return at
