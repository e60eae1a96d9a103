# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels that compare and number rows of several integer columns."""

from __future__ import annotations

import numpy as np
from numba import int64

from sigmatrace.kernel import I8W, U8R2, kernel


@kernel(int64(U8R2, I8W, I8W))
def number_rows_kernel(keys, table, out_id):
    """Number distinct rows densely, in the order in which they first appear.

    Args:
        keys: ``(n, columns)`` u8, one row per item, any order.
        table: ``(capacity,)`` i8, scratch filled with -1; capacity is a power of two > n.
        out_id: ``(n,)`` i8, output: equal rows get equal numbers, from 0.

    Returns:
        The number of distinct rows.

    Open addressing; rows are compared in full, so there are no false equals.
    Complexity O(n * columns) expected.
    """
    mask = table.size - 1
    count = 0
    for i in range(keys.shape[0]):
        h = np.uint64(0x9E3779B97F4A7C15)
        for c in range(keys.shape[1]):
            h = (h ^ keys[i, c]) * np.uint64(0xBF58476D1CE4E5B9)
            h = h ^ (h >> np.uint64(29))
        slot = np.int64(h & np.uint64(mask))
        while True:
            first = table[slot]
            if first < 0:
                table[slot] = i
                out_id[i] = count
                count += 1
                break
            same = True
            for c in range(keys.shape[1]):
                if keys[first, c] != keys[i, c]:
                    same = False
                    break
            if same:
                out_id[i] = out_id[first]
                break
            slot = (slot + 1) & mask
    return count
