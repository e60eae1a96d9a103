"""The robust piecewise-linear fit of one time stamp counter to one wall clock.

Pairs (TSC, wall clock) are noisy by half their width, some are wide because the reader was
interrupted, a few are wrong, and the wall clock itself can be set while the program runs.
The fit keeps the narrowest pair of each quarter of a second as a knot, leaves out knots that
disagree with the neighbours on both sides, and takes lasting jumps for steps of the wall
clock. Steps are taken out: time stays on the clock of the longest part, so it never runs
backwards and durations are right; the steps are reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SPACING_NS = 0.25e9
"""Knots are at least about this far apart, so that their noise does not bend the time."""
SLEW = 1e-3
"""Rates of clocks differ by less; NTP slews by at most 500 ppm. More is a step."""
HEADER_ERROR = 2.0
"""A header's frequency is taken to be wrong by at most this factor; pairs that differ by more from
it say that the clock was set. Measured within 1 ms in a loaded virtual machine it was 61 % off."""
SLOPE_ERROR = 1e-4
"""Two knots whose widths allow a larger error of the rate give no rate."""
SLACK_NS = 10_000.0
"""A pair may lie this far off the fit, beyond half its width, before it is called bad."""
HZ_RANGE = (1e6, 1e11)


@dataclass(frozen=True)
class Fit:
    """One TSC's map to Unix time: knots, and what was found on the way.

    Attributes:
        ref_tsc: TSC from which ``x`` counts (difference modulo 2^64, read as signed).
        x: ``(knots,)`` i8, ticks, ascending.
        y: ``(knots,)`` i8, Unix ns.
        slope: ``(knots,)`` f8, ns per tick from this knot on.
        rate: ns per tick over all.
        shifts_ns: Offsets of the parts between steps, as taken out of the wall clock.
        steps: (Unix ns before, Unix ns after, jump in ns) of each step of the wall clock.
        error_ns: Bound of the error at the knots: half the worst width of those used.
        is_sure: Whether the rate is certain. It is not with a single pair, nor where so few pairs
            contradict the header that it may be wrong, or the clock may have been set.
    """

    ref_tsc: int
    x: Ints
    y: Ints
    slope: Floats
    rate: float
    shifts_ns: tuple[int, ...] = (0,)
    steps: tuple[tuple[int, int, int], ...] = ()
    error_ns: float = 0.0
    is_sure: bool = True

    def at(self, tsc: NDArray[np.uint64]) -> Ints:
        """Return Unix ns of some TSC readings (as ``kernels.clock.convert_kernel`` does)."""
        x = ticks_since(tsc, self.ref_tsc)
        knot = np.maximum(np.searchsorted(self.x, x, side="right") - 1, 0)
        ns = np.rint((x - self.x[knot]).astype(np.float64) * self.slope[knot])
        return self.y[knot] + np.clip(ns, -(2.0**61), 2.0**61).astype(np.int64)

    def residual_ns(self, tsc: NDArray[np.uint64], wall_ns: Ints) -> Ints:
        """Return how far pairs lie off the fit, given the best-fitting part between steps."""
        off = wall_ns - self.at(tsc)
        best = off - self.shifts_ns[0]
        for shift in self.shifts_ns[1:]:
            best = np.where(np.abs(off - shift) < np.abs(best), off - shift, best)
        return best


def ticks_since(tsc: NDArray[np.uint64], ref_tsc: int) -> Ints:
    """Return signed ticks from a reference, modulo 2^64."""
    return (np.asarray(tsc, dtype=np.uint64) - np.uint64(ref_tsc)).view(np.int64)


def single(tsc: int, wall_ns: int, rate: float) -> Fit:
    """Return the map through one point with a given rate in ns per tick."""
    knot = np.zeros(1, np.int64), np.array([wall_ns]), np.array([rate])
    return Fit(tsc, *knot, rate, is_sure=False)


def possible(
    tsc: NDArray[np.uint64], wall_ns: Ints, width: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Return which pairs can be readings at all: a date after 1970, less than 2^40 ticks wide."""
    return (wall_ns > 0) & (wall_ns < 2**62) & (width < 2**40) & (tsc > 0)


def narrow(width: NDArray[np.uint64], hz: float) -> NDArray[np.bool_]:
    """Return which pairs are not much wider than the good ones (at least two, if there are)."""
    if width.size <= 2:
        return np.ones(width.size, bool)
    ordered = np.sort(width).astype(np.float64)
    limit = max(8 * ordered[width.size // 4] + 1e-6 * (hz or 1e9), ordered[1])
    kept: NDArray[np.bool_] = width <= limit
    return kept


def fit(tsc: NDArray[np.uint64], wall_ns: Ints, width: NDArray[np.uint64], hz: float) -> Fit | None:
    """Fit a map to the pairs of one TSC and one wall clock.

    Args:
        tsc: ``(pairs,)`` u8, ticks, in any order.
        wall_ns: ``(pairs,)`` i8, Unix ns.
        width: ``(pairs,)`` u8, ticks between the readings around the wall clock's.
        hz: Ticks per second as the header says, 0 when it does not.

    Returns:
        The map, or None when no pair can be used.
    """
    good = possible(tsc, wall_ns, width)
    good[good] = narrow(width[good], hz)
    if not good.any():
        return None
    ref = int(tsc[good][0])
    x, y, w = ticks_since(tsc[good], ref), wall_ns[good], width[good].astype(np.float64)
    order = np.argsort(x, kind="stable")
    x, y, w = x[order], y[order], w[order]
    knots = _narrowest(x, y, w, hz)
    x, y, w = x[knots], y[knots], w[knots]
    rate, is_sure = _rate(x, y, w, hz)
    parts = _parts(x, y, w, rate)
    used, shift, steps = _remove_steps(x, y, parts, rate)
    x, w, y = x[used], w[used], y[used] - shift
    thin = _thin(x, y, w, rate)
    x, y, w = x[thin], y[thin], w[thin]
    slope = np.full(x.size, rate)
    if x.size > 1:
        slope[:-1] = np.diff(y) / np.diff(x)
        slope[-1] = slope[-2]
        rate = float((y[-1] - y[0]) / (x[-1] - x[0]))
    shifts = tuple(int(value) for value in np.unique(shift))
    return Fit(ref, x, y, slope, rate, shifts, steps, float(w.max() / 2 * rate), is_sure)


def _narrowest(x: Ints, y: Ints, w: Floats, hz: float) -> Ints:
    """Return the indexes of the narrowest pair of each bin of time."""
    span = float(x[-1]) - float(x[0])
    if span <= 0:
        return np.array([int(np.argmin(w))])
    ticks = SPACING_NS * 1e-9 * (hz or _guess_hz(x, y))
    bins = np.floor((x.astype(np.float64) - float(x[0])) / min(ticks, span / 2)).astype(np.int64)
    order = np.lexsort((w, bins))
    first = np.ones(order.size, bool)
    first[1:] = np.diff(bins[order]) > 0
    return np.sort(order[first])


def _guess_hz(x: Ints, y: Ints) -> float:
    span_ns = float(y[-1]) - float(y[0])
    hz = (float(x[-1]) - float(x[0])) / span_ns * 1e9 if span_ns > 0 else 1e9
    return min(max(hz, HZ_RANGE[0]), HZ_RANGE[1])


def _rate(x: Ints, y: Ints, w: Floats, hz: float) -> tuple[float, bool]:
    """Return ns per tick, and whether it is certain.

    It is the median between knots, or the header's when they cannot tell. With one or two of them
    the header says which one is right; what is near none of them is an estimate gone wrong, unless
    it is so far off that the clock must have been set.
    """
    header = 1e9 / hz if hz else 0.0
    dx = np.diff(x.astype(np.float64))
    rates = np.diff(y.astype(np.float64) - float(y[0])) / dx
    rates = rates[((w[1:] + w[:-1]) / 2 <= SLOPE_ERROR * dx) & (rates > 0)]
    if rates.size >= 3 or (rates.size and not header):
        return float(np.median(rates)), True
    if not rates.size:
        return header or 1.0, False
    nearest = float(rates[np.argmin(np.abs(rates - header))])
    alike = rates.size == 2 and float(np.ptp(rates)) <= SLEW * nearest
    is_sure = abs(nearest - header) <= SLEW * header or alike
    if is_sure or header / HEADER_ERROR <= nearest <= header * HEADER_ERROR:
        return nearest, is_sure
    return header, False


def _agree(x: Ints, y: Ints, w: Floats, rate: float, i: int, j: int) -> bool:
    """Say whether two knots can lie on one clock that is not set in between."""
    dx = float(x[j] - x[i])
    off = float(y[j] - y[i]) - dx * rate
    return abs(off) <= SLEW * abs(dx) * rate + float(w[i] + w[j]) * rate + 1000


def _parts(x: Ints, y: Ints, w: Floats, rate: float) -> list[list[int]]:
    """Split the knots where the wall clock jumps, and leave out those that come back."""
    parts: list[list[int]] = []
    for knot in range(x.size):
        if parts and _agree(x, y, w, rate, parts[-1][-1], knot):
            parts[-1].append(knot)
        else:
            parts.append([knot])
        for depth in (2, 3, 4):  # up to three strays in a row, before a clock that goes on
            if len(parts) <= depth:
                break
            strays = sum(len(part) for part in parts[-depth:-1])
            before = parts[-depth - 1]
            few = strays <= 3 and strays < len(before) + len(parts[-1])
            if few and _agree(x, y, w, rate, before[-1], parts[-1][0]):
                before.extend(parts[-1])
                del parts[-depth:]
                break
    for end in (0, -1):  # one stray knot at an end is a bad pair rather than a step
        if len(parts) > 1 and len(parts[end]) == 1 and max(map(len, parts)) > 1:
            del parts[end]
    return parts


def _remove_steps(
    x: Ints, y: Ints, parts: list[list[int]], rate: float
) -> tuple[Ints, Ints, tuple[tuple[int, int, int], ...]]:
    """Return the knots used, what to take from each one's wall clock, and the steps."""
    shift = [0]
    steps = []
    for before, after in pairwise(parts):
        i, j = before[-1], after[0]
        jump = int(y[j] - y[i]) - round(float(x[j] - x[i]) * rate)
        shift.append(shift[-1] + jump)
        steps.append((int(y[i]), int(y[j]), jump))
    longest = max(
        range(len(parts)), key=lambda p: (x[parts[p][-1]] - x[parts[p][0]], len(parts[p]), -p)
    )
    used = np.array([knot for part in parts for knot in part])
    lengths = [len(part) for part in parts]
    return used, np.repeat(np.array(shift) - shift[longest], lengths), tuple(steps)


def _thin(x: Ints, y: Ints, w: Floats, rate: float) -> list[int]:
    """Leave out knots so close to another one that their widths would bend the rate."""
    kept: list[int] = []
    for knot in range(x.size):
        while kept:
            i = kept[-1]
            dx = float(x[knot] - x[i])
            off = abs(float(y[knot] - y[i]) - dx * rate)
            if (w[i] + w[knot]) / 2 <= SLOPE_ERROR * dx and off <= 2 * SLEW * dx * rate:
                break
            if w[knot] >= w[i]:
                knot = -1
                break
            kept.pop()
        if knot >= 0:
            kept.append(knot)
    return kept
