# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="assignment"
"""Kernels of the clock stage: time stamp counter to Unix time."""

from __future__ import annotations

import numpy as np
from numba import int64, types

from sigmatrace.kernel import F8R, I4R, I8R, I8W, U1R, U4R, U8R, kernel

LIMIT_NS = 2.0**61
"""Distances from a knot are held within this, so that nonsense cannot overflow."""

_FIRST, _LAST = -(2**63), 2**63 - 1


_BLOCK = 512
"""Rows that are looked at together: most lie in one part of one process's map."""
_EXACT = 2**53


@kernel()
def _is_one_part(t_tsc, proc, own, ref, knot, least, most):
    """Return whether rows are of one process and one part of its map, near enough to be exact."""
    off = np.uint8(0)
    for i in range(t_tsc.size):
        x = np.int64(t_tsc[i] - ref)
        far = np.uint64(x - knot + (_EXACT - 1)) >= np.uint64(2 * _EXACT - 1)
        off |= np.uint8(x < least) | np.uint8(x > most) | np.uint8(far) | np.uint8(proc[i] != own)
    return off == 0


@kernel()
def _convert_part(t_tsc, ref, knot, zero_ns, slope, out_ns):
    """Convert rows of one part of a map, without branches: several at a time."""
    for i in range(t_tsc.size):
        ns = np.float64(np.int64(t_tsc[i] - ref) - knot) * slope
        out_ns[i] = zero_ns + np.int64(np.rint(min(max(ns, -LIMIT_NS), LIMIT_NS)))


@kernel()
def _knot_of(x, low, high, knot_x):
    """Return the last knot that is not behind ``x``, or the first one of the map."""
    at, right = low, high
    while right - at > 1:
        middle = (at + right) // 2
        if knot_x[middle] <= x:
            at = middle
        else:
            right = middle
    return at


@kernel(int64(U8R, I4R, I4R, I8R, U8R, I8R, I8R, F8R, I8W))
def convert_kernel(t_tsc, proc, map_of_proc, begin, ref_tsc, knot_x, knot_y, slope, out_ns):
    """Convert TSC readings to Unix time along each process's piecewise-linear map.

    Args:
        t_tsc: ``(n,)`` u8, TSC ticks. Any order; runs of one process in time order are fast.
        proc: ``(n,)`` i4, process of each row.
        map_of_proc: ``(processes,)`` i4, number of the process's map.
        begin: ``(maps + 1,)`` i8, first knot of each map; each map has at least one knot.
        ref_tsc: ``(maps,)`` u8, TSC from which the map's ``knot_x`` count.
        knot_x: ``(knots,)`` i8, ticks from ``ref_tsc``, ascending within a map.
        knot_y: ``(knots,)`` i8, Unix ns at the knot.
        slope: ``(knots,)`` f8, ns per tick from this knot on; the first one serves before it too.
        out_ns: ``(n,)`` i8, output, Unix ns; rows of unknown processes get 0.

    Returns:
        How many rows name a process that does not exist.

    Ticks are subtracted as 64-bit integers (modulo 2^64, so a wrapped counter is no special
    case); only the distance from a knot is multiplied in float64: 2^53 ticks, 26 days at 4 GHz
    away from the nearest knot, are exact to 1 ns. Complexity O(n log knots), O(n) when ordered.
    Source: docs/format.md 1.4.
    """
    unknown = 0
    last_proc, at, low, high = -1, 0, 0, 0
    ref = np.uint64(0)
    least, most = np.int64(0), np.int64(0)  # x of which the knot ``at`` is the right one
    for start in range(0, t_tsc.size, _BLOCK):
        stop = min(start + _BLOCK, t_tsc.size)
        t, owner = t_tsc[start:stop], proc[start:stop]
        if last_proc >= 0 and _is_one_part(t, owner, last_proc, ref, knot_x[at], least, most):
            _convert_part(t, ref, knot_x[at], knot_y[at], slope[at], out_ns[start:stop])
            continue
        for i in range(start, stop):
            own = proc[i]
            if own < 0 or own >= map_of_proc.size:
                unknown += 1
                out_ns[i] = 0
                continue
            if own != last_proc:
                last_proc = own
                m = map_of_proc[own]
                low, high, ref = begin[m], begin[m + 1], ref_tsc[m]
                least, most = _LAST, _FIRST
            x = np.int64(t_tsc[i] - ref)
            if x < least or x > most:
                at = _knot_of(x, low, high, knot_x)
                least = knot_x[at] if at > low else _FIRST
                most = knot_x[at + 1] - 1 if at + 1 < high else _LAST
            ticks = np.float64(x - knot_x[at])
            if abs(x - knot_x[at]) >= _EXACT:
                ticks = np.float64(x) - np.float64(knot_x[at])
            out_ns[i] = knot_y[at] + round(min(max(ticks * slope[at], -LIMIT_NS), LIMIT_NS))
    return unknown


@kernel(types.void(U1R, U4R, I4R, F8R, I8W))
def call_kernel(op, aux, proc, ns_per_tick, out_ns):
    """Turn ``aux`` of outgoing operations (how long the call took) into ns.

    Args:
        op: ``(n,)`` u1, ``trace_format.Op``.
        aux: ``(n,)`` u4, TSC ticks for operations other than RECV (2); 2^32-1 is a lower bound.
        proc: ``(n,)`` i4, process of each row; ``convert_kernel`` found none that is unknown.
        ns_per_tick: ``(processes,)`` f8.
        out_ns: ``(n,)`` i8, output; 0 for RECV, whose ``aux`` is no time.

    Any order. Complexity O(n). Source: docs/format.md 2.1.
    """
    for i in range(op.size):
        timed = op[i] != 2
        out_ns[i] = round(np.float64(aux[i]) * ns_per_tick[proc[i]]) * timed
