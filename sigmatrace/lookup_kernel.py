"""Looks objects up by process and id."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.kernel import I4R, I4W, I8R, U4R, kernel


@kernel(types.void(I4R, U4R, I8R, I4W))
def find_objects_kernel(proc, thing, keys, found):
    """Look objects up; rows of one object in sequence cost one comparison each.

    Args:
        proc: ``(n,)`` i4, not negative.
        thing: ``(n,)`` u4.
        keys: ``(k,)`` i8, ascending.
        found: ``(n,)`` i4, output: place in ``keys``, -1 where it is not.

    Complexity O(n log k). Source: ``lookup.find_objects``.
    """
    last, at = np.int64(-1), np.int32(-1)
    for i in range(proc.size):
        key = np.int64(proc[i]) << 32 | np.int64(thing[i])
        if key != last:
            low, high = 0, keys.size
            while low < high:
                middle = (low + high) // 2
                if keys[middle] < key:
                    low = middle + 1
                else:
                    high = middle
            last = key
            at = np.int32(low if low < keys.size and keys[low] == key else -1)
        found[i] = at
