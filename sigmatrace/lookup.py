"""From a process and an object's id in it to a place in a table of objects."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def object_keys(proc: NDArray[Any], thing: NDArray[Any]) -> NDArray[np.int64]:
    """Return process and object (or any number of 32 bits) as one key.

    Args:
        proc: ``(n,)`` i4; keys of negative ones are negative.
        thing: ``(n,)`` u4.
    """
    keys: NDArray[np.int64] = (proc.astype(np.int64) << 32) | thing.astype(np.int64)
    return keys


def find_objects(
    keys: NDArray[np.int64], proc: NDArray[np.int32], thing: NDArray[np.uint32]
) -> NDArray[np.int32]:
    """Return the place of each object in ``keys``; -1 where it is not.

    Args:
        keys: ``(k,)`` i8, ``object_keys``, ascending.
        proc: ``(n,)`` i4, not negative.
        thing: ``(n,)`` u4.

    Complexity O(n log k); O(n) where rows of one object follow each other.
    """
    from sigmatrace.lookup_kernel import find_objects_kernel

    found = np.empty(proc.size, np.int32)
    if found.size:  # else nothing is compiled for nothing
        find_objects_kernel(proc, thing, keys, found)
    return found
