"""Puts the rows of a partition into the order in which a track shows them."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.kernel import I8R, I8W, U1R, U4R, U4W, kernel

_RUN = 16


@kernel(types.Tuple((U4W, I8W))(U4R, types.int64, types.int64))
def group_rows(key, first, keys):
    """Return the row numbers grouped by key, and where each group begins.

    Args:
        key: u4[n], each from ``first`` on, and less than ``keys`` above it; ascending ones are
            quick.
        first: The smallest key.
        keys: How many keys there are.

    Returns:
        Row numbers u4[n], in their old order within a group, and offsets i8[keys + 1].
    """
    starts = np.zeros(keys + 1, np.int64)
    order = np.empty(key.size, np.uint32)
    is_grouped = True
    for row in range(1, key.size):
        is_grouped &= key[row - 1] <= key[row]
    if is_grouped:
        for row in range(key.size):
            order[row] = row
        stop = 0
        for k in range(keys):
            while stop < key.size and key[stop] == first + k:
                stop += 1
            starts[k + 1] = stop
        return order, starts
    for row in range(key.size):
        starts[key[row] - first + 1] += 1
    for k in range(keys):
        starts[k + 1] += starts[k]
    at = starts[:-1].copy()
    for row in range(key.size):
        order[at[key[row] - first]] = row
        at[key[row] - first] += 1
    return order, starts


@kernel()
def _follows(a, b, begin, length, depth):
    """Must row ``a`` stand after row ``b``? Outer calls stand before what they enclose."""
    if begin[a] != begin[b]:
        return begin[a] > begin[b]
    if length[a] != length[b]:
        return length[a] < length[b]
    return depth[a] > depth[b]


@kernel()
def _is_sorted(order, begin, length, depth):
    """Are the rows in order? Without branches where they follow each other, as they mostly do."""
    first, count = np.uint64(order[0]), np.uint64(order.size)
    if order[count - np.uint64(1)] - first == count - np.uint64(1):
        found = True
        for b in range(first + np.uint64(1), first + count):
            a = b - np.uint64(1)
            inner = (length[a] < length[b]) | ((length[a] == length[b]) & (depth[a] > depth[b]))
            found &= (begin[a] < begin[b]) | ((begin[a] == begin[b]) & (not inner))
        return found
    for i in range(1, order.size):
        if _follows(order[i - 1], order[i], begin, length, depth):
            return False
    return True


@kernel()
def _copy(source, start, count, out):
    """Copy ``source[start : start + count]``; numba compiles a slice for two seconds."""
    for k in range(count):
        out[k] = source[start + k]


@kernel(types.void(U4W, I8R, I8R, U1R))
def sort_rows(order, begin, length, depth):
    """Sort row numbers in place: by begin, then longer first, then outer first; stable.

    A merge sort that leaves runs alone which are in order already: a thread stores its calls
    in the order of their ends, which is nearly the order of their begins, and then this is
    one comparison a row.

    Args:
        order: u4[m], row numbers.
        begin: i8[n], ns.
        length: i8[n], ns.
        depth: u1[n], how many calls enclose the row's.
    """
    count = order.size
    if _is_sorted(order, begin, length, depth):
        return
    for start in range(0, count, _RUN):
        for i in range(start + 1, min(start + _RUN, count)):
            row = order[i]
            j = i
            while j > start and _follows(order[j - 1], row, begin, length, depth):
                order[j] = order[j - 1]
                j -= 1
            order[j] = row
    left = np.empty(count, np.uint32)
    width = _RUN
    while width < count:
        for start in range(0, count - width, 2 * width):
            middle = start + width
            stop = min(middle + width, count)
            if not _follows(order[middle - 1], order[middle], begin, length, depth):
                continue
            _copy(order, start, width, left)
            i, j, k = 0, middle, start
            while i < width:
                if j < stop and _follows(left[i], order[j], begin, length, depth):
                    order[k] = order[j]
                    j += 1
                else:
                    order[k] = left[i]
                    i += 1
                k += 1
        width *= 2


@kernel(types.UniTuple(types.int64, 2)(U4R, I8R, I8R))
def end_range(order, begin, length):
    """Return the earliest and the latest end of the slices among some rows.

    Args:
        order: u4[m], row numbers.
        begin: i8[n], ns.
        length: i8[n], ns; rows of 0 or less are instants and do not count.

    Returns:
        ns; the largest and the smallest i8 when there is no slice.
    """
    least, most = np.int64(2**63 - 1), np.int64(-(2**63))
    for row in order:
        if length[row] > 0:
            least = min(least, begin[row] + length[row])
            most = max(most, begin[row] + length[row])
    return least, most


@kernel(
    types.Tuple((I8W, types.int64))(U4R, U1R, U4R, types.int64, types.int64),
)
def pair_regions(order, kind, name, begin_kind, end_kind):
    """Find the end of each region of one thread: the next end of its name that is not taken.

    Args:
        order: u4[m], row numbers of the thread's marks in time order.
        kind: u1[n], kind of mark.
        name: u4[n].
        begin_kind: Kind of a begin.
        end_kind: Kind of an end.

    Returns:
        i8[m]: row of the end for a begin that has one, else -1; and how many ends had no begin.
    """
    ends = np.full(order.size, -1, np.int64)
    open_at = np.empty(order.size, np.int64)
    depth = 0
    stray = 0
    for i in range(order.size):
        row = order[i]
        if kind[row] == begin_kind:
            open_at[depth] = i
            depth += 1
        elif kind[row] == end_kind:
            k = depth - 1
            while k >= 0 and name[order[open_at[k]]] != name[row]:
                k -= 1
            if k < 0:
                stray += 1
                continue
            ends[open_at[k]] = row
            depth -= 1
            for j in range(k, depth):
                open_at[j] = open_at[j + 1]
    return ends, stray
