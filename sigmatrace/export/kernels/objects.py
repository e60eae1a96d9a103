"""How many requests a queue had outstanding, over time."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.kernel import I8R, I8W, U4R, kernel


@kernel(types.int64(U4R, I8R, I8R, I8W, I8W))
def outstanding_kernel(order, t, code, out_t, out_depth):
    """Return how many requests of one queue were posted and not completed, over time.

    Positions count modulo 2^32 and are unwrapped here. They, and not the rows, tell what was
    posted and completed: a record that was lost is made good by the next one. Before the first
    row nothing counts as outstanding.

    Args:
        order: ``(n,)`` u4, row numbers by time, of equal times posts first.
        t: ``(n,)`` i8, ns.
        code: ``(n,)`` i8, position << 1, and 1 for a completion, which ends all up to its position.
        out_t: ``(n,)`` i8 or more, output, ascending and distinct.
        out_depth: ``(n,)`` i8 or more, output, not negative: what holds from then on.

    Returns:
        How many values there are.

    Complexity O(n). Source: docs/verbs.md section 2 (positions).
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
