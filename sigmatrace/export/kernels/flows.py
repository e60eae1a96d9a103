"""Which arrows from send to receive a trace really has.

Ends of arrows are kept by stretch: the 2^14 consecutive numbers that some flows share above their
low bits. What both ends say of one stretch fits the processor's cache.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.export.kernels.packets import SINK
from sigmatrace.kernel import I4W, I8R, I8R2, I8W, U2R, U2W, U8R, U8W, kernel

STRETCH_BITS = 14
TIME_BITS, TIE_BITS = 52, 10
"""An end's time is ns from the run's zero (52 days either way); below it, its place among those
of the same time on its track."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_STRETCH = 1 << STRETCH_BITS
_TIME_MAX, _TIE_MAX = (1 << TIME_BITS) - 1, (1 << TIE_BITS) - 1


@kernel(types.int64(I8R, I8R, U8R, U2R, types.int64, U8W, I4W, I4W, U8W, I8W, I8W))
def number_ends(order, starts, flow, shown, room, table, cell, of_row, key, track, count):
    """Give the ends of arrows the numbers of their heads: stretch, end and track.

    Args:
        order: i8[n], row numbers by track, in the order in which they are written.
        starts: i8[tracks + 1], where the rows of each track begin in ``order``.
        flow: u8[n], 0 = none.
        shown: u2[n]; those with the bit ``SINK`` are receives.
        room: How many heads there may be.
        table: u8[power of two > room], zeros at first.
        cell: i4, likewise, to work in.
        of_row: i4[n], output: by place in ``order`` the number of the head, -1 without an end.
        key: u8[room], output: ``stretch << 1 | is a receive``.
        track: i8[room], output: the track's place in ``starts``.
        count: i8[room], output: how many ends; zeros at first.

    Returns:
        How many heads there are; -1 when there is no room.
    """
    used = 0
    mask = table.size - 1
    for at in range(starts.size - 1):
        first = used
        for i in range(starts[at], starts[at + 1]):
            row = order[i]
            if flow[row] == 0:
                of_row[i] = -1
                continue
            is_sink = np.uint64((shown[row] & SINK) != 0)
            own = (flow[row] >> np.uint64(STRETCH_BITS)) << np.uint64(1) | is_sink
            slot = np.int64((own * _MIX) >> np.uint64(32)) & mask
            while table[slot] != own + np.uint64(1) and table[slot] != 0:
                slot = (slot + 1) & mask
            if table[slot] == 0:
                if used == room:
                    return -1
                table[slot], cell[slot] = own + np.uint64(1), used
                key[used], track[used] = own, at
                used += 1
            of_row[i] = cell[slot]
            count[cell[slot]] += 1
        if used > first:
            table[:] = 0  # another track's heads are others
    return used


@kernel(types.void(I8R, I8R, I4W, U8R, I8R, types.int64, I8W, I8W, U2W))
def place_ends(order, starts, of_row, flow, t, zero, at, out_time, out_low):
    """Sort the ends of arrows by head; the order within a head stays.

    Args:
        order: As above, like ``starts``, ``of_row`` and ``flow``.
        starts: See there.
        of_row: See there.
        flow: See there.
        t: i8[n], ns.
        zero: ns.
        at: i8[heads], where each one's ends begin; changed.
        out_time: i8[ends], output: ns from ``zero`` and place among equals, see ``TIME_BITS``.
        out_low: u2[ends], output: place in the stretch.
    """
    for track in range(starts.size - 1):
        equals = 0
        for i in range(starts[track], starts[track + 1]):
            row = order[i]
            is_equal = i > starts[track] and t[order[i - 1]] == t[row]
            equals = min(equals + 1, _TIE_MAX) if is_equal else 0
            if of_row[i] < 0:
                continue
            place = at[of_row[i]]
            at[of_row[i]] = place + 1
            time = min(max(t[row] - zero, -_TIME_MAX), _TIME_MAX)
            out_time[place] = time << TIE_BITS | equals
            out_low[place] = np.uint16(flow[row] & np.uint64(_STRETCH - 1))


@kernel()
def _is_before(time, place, other_time, other_place):
    """Does the viewer take one end before another one? By time, then by place in the file."""
    a, b = time >> TIE_BITS, other_time >> TIE_BITS
    if a != b:
        return a < b
    return place < other_place if place != other_place else time < other_time


@kernel(types.UniTuple(types.int64, 2)(U8R, I8R2, I8R, U2R))
def count_arrows(key, heads, time, low):
    """Count the messages with an arrow, and those with both ends but none.

    The viewer takes events by time, of equal times in the order of the file. An arrow begins at
    a send and ends at the next receive of the same flow; a receive before its send gets none.

    Args:
        key: u8[h] of heads, ascending.
        heads: i8[h, 3]: where its ends begin in ``time`` and ``low``, how many, and its track's
            place in the file.
        time: i8[n].
        low: u2[n].
    """
    # By end (send, receive) and place in the stretch: its time and place in the file, -1: none.
    times = np.zeros((2, _STRETCH), np.int64)
    places = np.full((2, _STRETCH), -1, np.int64)
    arrows = backwards = 0
    h = 0
    while h < key.size:
        stop = h
        while stop < key.size and key[stop] >> np.uint64(1) == key[h] >> np.uint64(1):
            end = np.int64(key[stop] & np.uint64(1))
            start, size, place = heads[stop]
            for i in range(start, start + size):
                k = low[i]
                if places[end, k] < 0 or end == _is_before(
                    times[end, k], places[end, k], time[i], place
                ):
                    times[end, k], places[end, k] = time[i], place
            stop += 1
        for one in range(h, stop):
            start, size, place = heads[one]
            for i in range(start, start + size):
                k = low[i]
                if places[0, k] >= 0 and places[1, k] >= 0:
                    shown = _is_before(times[0, k], places[0, k], times[1, k], places[1, k])
                    arrows += shown
                    backwards += not shown
                places[0, k] = places[1, k] = -1
        h = stop
    return arrows, backwards
