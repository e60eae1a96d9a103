"""Offsets and drifts of clocks from messages between them.

No message is received before it was sent. Each bounds the difference of two clocks' corrections
(``skew_hull.py``); what all of them allow together is a polytope. In its middle lies the best
estimate, for what a message takes at least in one direction and in the other is not known apart;
how far it reaches from there is the bound of the error, as long as clocks drift evenly between
the knots of the correction. Messages that were late tell less, and do no harm.

Where no correction of straight lines is possible, single messages that stand out from their
neighbours are taken for wrong matches and left aside; else a clock steps, or drifts otherwise from
somewhere on, and gets knots there (``skew_bends.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sigmatrace.stages.skew_lines import Messages
from sigmatrace.stages.skew_search import Search

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

REFERENCES = 4
"""How many clocks are tried as the reference, where one after the other seems to bend."""
STRANGE = 0.01
"""A clock with a larger share of messages that nothing explains has no bound."""
BRIEF = 0.01
"""Stretches between bends that are a smaller share of the time have no part in the bound."""


@dataclass(frozen=True)
class Correction:
    """What is to be added to a clock: linear between knots, and continued at both ends.

    Attributes:
        at_ns: ``(knots,)`` i8, at least 2, ascending, by the clock as it is.
        add_ns: ``(knots,)`` i8.
    """

    at_ns: Ints
    add_ns: Ints

    def of(self, t_ns: Ints) -> Ints:
        """Return what is to be added to times ``(n,)`` i8."""
        left = np.clip(np.searchsorted(self.at_ns, t_ns, side="right") - 1, 0, self.at_ns.size - 2)
        dx = (t_ns - self.at_ns[left]).astype(np.float64)
        slope = np.diff(self.add_ns) / np.diff(self.at_ns)
        return self.add_ns[left] + np.rint(dx * slope[left]).astype(np.int64)

    @property
    def drift_ppm(self) -> float:
        """What is added over all, in us a second, steps left out."""
        dx, dy = np.diff(self.at_ns).astype(np.float64), np.diff(self.add_ns).astype(np.float64)
        even = dx >= 0.01 * dx.sum()
        return float(dy[even].sum() / dx[even].sum() * 1e6)


@dataclass(frozen=True)
class Skew:
    """Corrections of clocks, and how good they are.

    Attributes:
        corrections: By clock.
        reference: ``(clocks,)`` i8, the clock that each is corrected to; itself: it stays.
        bound_ns: ``(clocks,)`` f8, the correction to the reference is off by at most this; inf:
            nothing bounds it on both sides.
        bends: ``(clocks,)`` i8, how often each steps or drifts otherwise.
        parts: Into how many parts all lines are divided, where clocks drift unevenly; else 1.
        messages: ``(clocks,)`` i8, messages at each.
        left_aside: ``(messages,)`` bool, wrong matches: no correction would put them in order.
    """

    corrections: tuple[Correction, ...]
    reference: Ints
    bound_ns: Floats
    bends: Ints
    parts: int
    messages: Ints
    left_aside: Bools


def estimate(
    messages: Messages,
    clocks: int,
    preferred: Sequence[int] = (),
    spans: Ints | None = None,
    loose: Bools | None = None,
) -> Skew:
    """Estimate the corrections of clocks.

    Args:
        messages: Both ends of messages between different clocks.
        clocks: How many there are.
        preferred: Clocks that are the best references, best first; of the others the one with
            more messages.
        spans: ``(clocks, 2)`` i8 ns, times of each clock in which the bound is to hold, beside
            those of its messages; none where the first one is above the second one.
        loose: ``(clocks,)`` bool, clocks whose rate may be wrong by any factor; else none is.

    A clock is corrected to the reference that it is tied to: the best one of all clocks that
    messages lead to from it, and back, if through others. What messages lead to in one direction
    alone is corrected as little as causality wants, and has no bound.
    """
    count = np.bincount(np.concatenate([messages.src, messages.dst]), minlength=clocks)
    rank = np.empty(clocks, np.int64)
    rank[np.argsort(-count, kind="stable")] = np.arange(clocks)
    for place, clock in enumerate(preferred):
        rank[clock] = place - len(preferred)
    for turn in range(REFERENCES):
        found = Search(messages, clocks, rank, np.zeros(clocks, bool) if loose is None else loose)
        bent = found.run(is_last=turn + 1 == REFERENCES)
        if bent is None:
            break
        rank[bent] = 2 * clocks + turn  # a reference that bends: all others would seem to
    return _result(found, count, spans)


def _result(found: Search, count: Ints, spans: Ints | None) -> Skew:
    """Return what was found."""
    lines = found.lines
    corrections = []
    for clock in range(found.clocks):
        x, kept = np.unique(np.rint(lines.x[clock]).astype(np.int64), return_index=True)
        y = np.rint(lines.y[clock]).astype(np.int64)[kept]
        corrections.append(Correction(lines.first_ns[clock] + x, lines.offset_ns[clock] + y))
    bent = np.array([int(step.sum()) for step in lines.steps])
    aside = found.took() < 0
    bound = _bounds(found, spans)
    parts = max(found.edges.size - 1, 1)
    return Skew(tuple(corrections), found.root, bound, bent, parts, count, aside)


def _bounds(found: Search, spans: Ints | None) -> Floats:
    """Return how far off each correction can be, at any time of its clock."""
    bound = np.where(found.is_root, 0.0, np.inf)
    if not found.messages.src.size:
        return bound
    places, off = found.reach()
    for clock in np.flatnonzero(~found.is_root).tolist():
        axis, known = found.lines.axis(clock), np.isfinite(off[:, clock])
        if spans is not None and spans[clock, 0] <= spans[clock, 1]:
            beyond = (spans[clock] - found.lines.first_ns[clock]) - found.lines.x[clock][[0, -1]]
            axis[0] += min(beyond[0], 0)
            axis[-1] += max(beyond[1], 0)
        even = ~found.lines.steps[clock]
        ends = [
            _along(low, high, places[known], off[known, clock]) if part else (np.inf, np.inf)
            for (low, high), part in zip(itertools.pairwise(axis), even, strict=True)
        ]
        # Where nothing is known an error lies between those at both ends.
        for k in range(1, len(ends) - 1):
            if not np.isfinite(ends[k]).all():
                ends[k] = ends[k - 1][1], ends[k + 1][0]
        parts = [
            max(both)
            for both, part, length in zip(ends, even, np.diff(axis), strict=True)
            if part and length >= BRIEF * (axis[-1] - axis[0])
        ]
        bound[clock] = max(parts, default=np.inf)
    strange = found.count(found.unexplained) > STRANGE * found.count(np.ones_like(found.aside))
    bound[strange & ~found.is_root] = np.inf
    return bound


def _along(low: float, high: float, places: Floats, bounds: Floats) -> tuple[float, float]:
    """Return bounds of an error at one time and at another, if it is linear in between.

    Args:
        low: Begin.
        high: End.
        places: ``(n,)`` f8, ascending, where it is known.
        bounds: ``(n,)`` f8.
    """
    inside = (places >= low) & (places <= high)
    t, bound = places[inside], bounds[inside]
    if t.size < 2:
        return float("inf"), float("inf")
    left, right = (t[0] - low) / (t[-1] - t[0]), (high - t[-1]) / (t[-1] - t[0])
    ends = bound[0] + bound[-1]
    return float(bound[0] + left * ends), float(bound[-1] + right * ends)
