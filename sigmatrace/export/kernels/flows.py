"""Which arrows from send to receive a trace really has.

Ends of arrows are kept by stretch: the 2^14 consecutive numbers that some flows share above their
low bits. What both ends say of one stretch fits the processor's cache.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.export.kernels.packets import SINK
from sigmatrace.kernel import I8R, I8R2, I8W, I8W2, U2R, U2W, U4R, U4W, U8R, kernel

STRETCH_BITS = 14
KEY, TIME, PLACE, LOW, COUNT, GAPS, HEAD = range(7)
"""What is known of a head, ends of one stretch and track: ``stretch << 1 | is a receive``; ns,
place among the piece's ends, and place in the stretch of its first end; how many ends; whether
their places in the stretch do not follow each other. And how many numbers that are."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_STRETCH = 1 << STRETCH_BITS
_PROBES = 16


@kernel()
def _begin(heads, h, key, time, place, low):
    """Begin a head; one by one, as assigning a tuple to a row takes a second to compile."""
    heads[h, KEY], heads[h, TIME], heads[h, PLACE] = key, time, place
    heads[h, LOW], heads[h, COUNT], heads[h, GAPS] = low, 0, 0


@kernel(types.int64(U4R, I8R, U8R, U2R, I8R, U4W, U4W, I8W2))
def number_ends(order, starts, flow, shown, t, table, of_row, heads):
    """Give the ends of arrows the numbers of their heads.

    An end's exact place in the file matters only where a receive has the time of its send and
    stands on the same track. So ends share a head, and its place, but from the first one on that
    has the time of an end of the other direction.

    Args:
        order: u4[n], row numbers by track, in the order in which they are written.
        starts: i8[tracks + 1], where the rows of each track begin in ``order``.
        flow: u8[n], 0 = none.
        shown: u2[n]; those with the bit ``SINK`` are receives.
        t: i8[n], ns.
        table: u4[power of two], 0 at first: heads by key. Where a track has more keys than there
            is room for, there are more heads than would be needed.
        of_row: u4[n], output: by place in ``order`` the number of the head.
        heads: i8[n + 1, HEAD], output; the first one stands for rows without an end.

    Returns:
        How many heads there are.
    """
    _begin(heads, 0, -1, 0, 0, 0)
    last = np.uint32(0)
    mask = np.uint64(table.size - 1)
    for track in range(starts.size - 1):
        before = last
        now, direction, is_mixed = np.int64(0), np.int64(-1), False
        for i in range(np.uint64(starts[track]), np.uint64(starts[track + 1])):
            row = order[i]
            if flow[row] == 0:
                of_row[i] = 0
                continue
            is_sink = np.int64((shown[row] & SINK) != 0)
            is_mixed = (t[row] == now) & (is_mixed | (is_sink == 1 - direction))
            now, direction = t[row], is_sink
            key = np.int64(flow[row] >> np.uint64(STRETCH_BITS)) << 1 | is_sink
            low = np.int64(flow[row] & np.uint64(_STRETCH - 1))
            slot = np.uint64(key) * _MIX >> np.uint64(32) & mask
            probes = 0
            while table[slot] > before and heads[table[slot], KEY] != key and probes < _PROBES:
                slot = (slot + np.uint64(1)) & mask
                probes += 1
            own = table[slot]
            fits = own > before and heads[own, KEY] == key and not is_mixed
            if not fits or np.uint64(now - heads[own, TIME]) >= np.uint64(1 << 32):
                last += np.uint32(1)
                table[slot] = own = last
                _begin(heads, own, key, now, np.int64(i), low)
            if low != heads[own, LOW] + heads[own, COUNT]:
                heads[own, GAPS] = 1
            heads[own, COUNT] += 1
            of_row[i] = own
    return np.int64(last) + 1


@kernel(types.void(U4R, U4R, U8R, I8R, I8R2, I8W, U2W))
def place_ends(order, of_row, flow, t, heads, at, out):
    """Sort the ends of arrows by head; the order within a head stays.

    Args:
        order: As above, like ``of_row``, ``flow``, ``t`` and ``heads``.
        of_row: See there.
        flow: See there.
        t: See there.
        heads: See there.
        at: i8[heads], where each one's ends begin in ``out``; changed.
        out: u2, output, 2 words for an end: ns from the head's time; with ``GAPS`` a third one,
            its place in the stretch.
    """
    for i in range(order.size):
        head = of_row[i]
        if head == 0:
            continue
        row, word = order[i], np.uint64(at[head])
        since = t[row] - heads[head, TIME]
        out[word], out[word + np.uint64(1)] = np.uint16(since), np.uint16(since >> 16)
        if heads[head, GAPS]:
            out[word + np.uint64(2)] = np.uint16(flow[row] & np.uint64(_STRETCH - 1))
        at[head] += 2 + heads[head, GAPS]


@kernel()
def _is_before(time, place, other_time, other_place):
    """Does the viewer take one end before another one? By time, then by place in the file."""
    return time < other_time or (time == other_time and place < other_place)


@kernel()
def _head(heads, h):
    """Return a head's numbers; unsigned ones as numba asks others whether they count backwards."""
    end = np.uint64(heads[h, KEY] & 1)
    low, gaps = np.uint64(heads[h, LOW]), np.uint64(heads[h, GAPS])
    return end, heads[h, TIME], heads[h, PLACE], low, heads[h, COUNT], gaps


@kernel(types.UniTuple(types.int64, 2)(I8R2, I8R, U2R))
def count_arrows(heads, at, ends):
    """Count the messages with an arrow, and those with both ends but none.

    The viewer takes events by time, of equal times in the order of the file. An arrow begins at
    a send and ends at the next receive of the same flow; a receive before its send gets none.

    Args:
        heads: i8[h, HEAD], by ``KEY``; ``PLACE`` over the whole file.
        at: i8[h], where each one's ends begin in ``ends``.
        ends: u2, as ``place_ends`` wrote them.
    """
    # By end (send, receive) and place in the stretch: its time and place in the file, -1: none.
    times = np.zeros((2, _STRETCH), np.int64)
    places = np.full((2, _STRETCH), -1, np.int64)
    arrows = backwards = 0
    least, most = np.int64(_STRETCH), np.int64(-1)
    for h in range(heads.shape[0]):
        end, time, place, low, count, gaps = _head(heads, h)
        word = np.uint64(at[h])
        for i in range(count):
            k = np.uint64(ends[word + np.uint64(2)]) if gaps else low + np.uint64(i)
            t = time + (np.int64(ends[word]) | np.int64(ends[word + np.uint64(1)]) << 16)
            word += np.uint64(2) + gaps
            if places[end, k] < 0 or end != _is_before(t, place, times[end, k], places[end, k]):
                times[end, k], places[end, k] = t, place
            least, most = min(least, np.int64(k)), max(most, np.int64(k))
        if h + 1 < heads.shape[0] and (heads[h + 1, KEY] ^ heads[h, KEY]) <= 1:
            continue
        for k in range(np.uint64(least), np.uint64(most + 1)):
            if places[0, k] >= 0 and places[1, k] >= 0:
                shown = _is_before(times[0, k], places[0, k], times[1, k], places[1, k])
                arrows += shown
                backwards += not shown
            places[0, k] = places[1, k] = -1
        least, most = np.int64(_STRETCH), np.int64(-1)
    return arrows, backwards
