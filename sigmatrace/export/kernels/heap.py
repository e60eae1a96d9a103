"""A binary heap of ends and the lanes that they free, the smallest end on top."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

from sigmatrace.kernel import kernel


@kernel()
def push(ends, lanes, count, end, lane):
    """Push onto a binary heap with the smallest end on top."""
    k = count
    while k > 0 and ends[(k - 1) // 2] > end:
        ends[k] = ends[(k - 1) // 2]
        lanes[k] = lanes[(k - 1) // 2]
        k = (k - 1) // 2
    ends[k] = end
    lanes[k] = lane
    return count + 1


@kernel()
def pop(ends, lanes, count):
    """Remove the top of the heap."""
    count -= 1
    end, lane = ends[count], lanes[count]
    k = 0
    while 2 * k + 1 < count:
        child = 2 * k + 1
        if child + 1 < count and ends[child + 1] < ends[child]:
            child += 1
        if ends[child] >= end:
            break
        ends[k] = ends[child]
        lanes[k] = lanes[child]
        k = child
    ends[k] = end
    lanes[k] = lane
    return count
