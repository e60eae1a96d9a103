"""Finds the objects that rows belong to, and how many requests a queue had outstanding."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.kernel import I4R, I4W, I8R, I8W, U4R, kernel


@kernel(types.void(I4R, U4R, I8R, I4W))
def find_objects(proc, thing, keys, found):
    """Look objects up; rows of one object in sequence cost one comparison each.

    Args:
        proc: i4[n], not negative.
        thing: u4[n], object id in its process.
        keys: i8[k], ``proc << 32 | object``, ascending.
        found: i4[n], output: place in ``keys``, -1 where it is not.
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


@kernel(types.int64(I8R, I8R, I8R, I8W, I8W))
def outstanding(order, t, code, out_t, out_depth):
    """Return how many requests of one queue were posted and not completed, over time.

    Positions count modulo 2^32 and are unwrapped here. They, and not the rows, tell what was
    posted and completed: a record that was lost is made good by the next one. Before the first
    row nothing counts as outstanding.

    Args:
        order: i8[n], row numbers by time, of equal times posts first.
        t: i8[n], ns.
        code: i8[n], position << 1, and 1 for a completion, which ends all up to its position.
        out_t: i8[>= n], output, ascending and distinct.
        out_depth: i8[>= n], output, not negative: what holds from then on.

    Returns:
        How many values there are.
    """
    used = 0
    posted = completed = last = np.int64(0)
    for i in range(order.size):
        row = order[i]
        position = code[row] >> 1
        last = position if i == 0 else last + np.int64(np.int32(position - last))
        if i == 0:
            posted = completed = last
        if code[row] & 1:
            completed = max(completed, last + 1)
        posted = max(posted, last + 1)
        depth = posted - completed
        if used > 0 and out_t[used - 1] == t[row]:
            out_depth[used - 1] = depth
        elif used == 0 or out_depth[used - 1] != depth:
            out_t[used], out_depth[used] = t[row], depth
            used += 1
    return used
