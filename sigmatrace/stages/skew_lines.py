"""Corrections of clocks while they are sought: piecewise lines, and what sets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROOM_NS = 5.0
"""A message is to arrive at least this long after it was sent: knots and times are rounded."""
SLOPE_MAX = 1e-3
"""No clock goes wrong by more of the time that passes, but where it steps, or is loose."""
LOOSE_SLOPE = 10.0
"""By how much more of the time that passes a loose clock may have to go faster."""
PRICE = 1e4
"""What a ns of causality violated costs, in ns away from the middle of what is possible."""


@dataclass(frozen=True)
class Messages:
    """Messages between clocks, ``(n,)`` each.

    Attributes:
        src: i8, number of the clock that sends.
        dst: i8, number of the clock that receives, another one.
        send_ns: i8, by the sender's clock.
        receive_ns: i8, by the receiver's.
    """

    src: Ints
    dst: Ints
    send_ns: Ints
    receive_ns: Ints


class Lines:
    """A piecewise linear correction of each clock, and where messages lie on it.

    Args:
        messages: What is known.
        first_ns: ``(clocks,)`` i8, earliest time of each clock's messages.
        offset_ns: ``(clocks,)`` i8, about what is to be added to each clock.
        loose: ``(clocks,)`` bool, clocks whose rate may be wrong by any factor.

    Attributes:
        x: By clock its knots in ns after ``first_ns``, f8.
        y: By clock what is added there, beside ``offset_ns``, f8 ns.
        steps: By clock which of the stretches between knots may be as steep as they like.
    """

    def __init__(
        self, messages: Messages, first_ns: Ints, offset_ns: Ints, loose: NDArray[np.bool_]
    ) -> None:
        self.messages, self.first_ns, self.offset_ns = messages, first_ns, offset_ns
        self.loose = loose
        self.send = (messages.send_ns - first_ns[messages.src]).astype(np.float64)
        self.receive = (messages.receive_ns - first_ns[messages.dst]).astype(np.float64)
        last = np.ones(first_ns.size)
        np.maximum.at(last, messages.src, self.send)
        np.maximum.at(last, messages.dst, self.receive)
        self.x = [np.array([0.0, end]) for end in last]
        self.y = [np.zeros(2) for _ in last]
        self.steps = [np.zeros(1, bool) for _ in last]
        begin_ns = first_ns + offset_ns
        self._begin = (begin_ns - begin_ns[:1]).astype(np.float64)
        self._settle()

    def _settle(self) -> None:
        """Work out where messages lie after knots have changed."""
        self.column = np.cumsum([0, *(x.size for x in self.x)])
        src, dst = self.messages.src, self.messages.dst
        self._sent, self._got = self._place(src, self.send), self._place(dst, self.receive)

    def _place(self, clock: Ints, x: Floats) -> tuple[Ints, Floats]:
        """Return the variable of the knot before each time, and the share of the next one."""
        knots = np.concatenate(self.x)
        stretch = np.zeros(x.size, np.int64)
        bent = np.flatnonzero(np.diff(self.column) > 2)
        if bent.size:
            order = np.argsort(clock, kind="stable")
            begin = np.searchsorted(clock[order], np.arange(len(self.x) + 1))
            for number in bent.tolist():
                mine = order[begin[number] : begin[number + 1]]
                at = np.searchsorted(self.x[number], x[mine], side="right") - 1
                stretch[mine] = np.clip(at, 0, self.x[number].size - 2)
        left = self.column[clock] + stretch
        return left, (x - knots[left]) / (knots[left + 1] - knots[left])

    def bend(self, clock: int, brackets: list[tuple[float, float]]) -> None:
        """Add knots around places where a clock steps, or drifts otherwise from there on."""
        self._add(clock, np.ravel(brackets), brackets)
        self._settle()

    def divide(self, times: Floats) -> None:
        """Add knots to all clocks at times on the common axis, but not into steps."""
        for clock in range(len(self.x)):
            x, axis, steps = self.x[clock], self.axis(clock), self.steps[clock]
            inside = times[(times > axis[0]) & (times < axis[-1])]
            at = np.searchsorted(axis, inside, side="right") - 1
            self._add(clock, np.interp(inside, axis, x)[~steps[at]], [])
        self._settle()

    def _add(self, clock: int, knots: Floats, brackets: list[tuple[float, float]]) -> None:
        x, y = self.x[clock], self.y[clock]
        new = np.unique(np.concatenate([x, knots]))
        middle = (new[1:] + new[:-1]) / 2
        old = self.steps[clock][np.clip(np.searchsorted(x, middle) - 1, 0, x.size - 2)]
        here = [any(low <= t <= high for low, high in brackets) for t in middle.tolist()]
        self.x[clock], self.y[clock], self.steps[clock] = new, np.interp(new, x, y), old | here

    def tighten(self, clock: int, usable: NDArray[np.bool_]) -> None:
        """Move the knots around each step as near to it as messages tell when it was.

        A message that is in order by the line before the step alone was before it, and likewise
        behind it.
        """
        x, y = self.x[clock], self.y[clock]
        send, receive = self.corrected()
        for out, end, own in (
            (True, self.messages.src, self.send),
            (False, self.messages.dst, self.receive),
        ):
            mine = np.flatnonzero(usable & (end == clock))
            at = own[mine]
            # How much may be added to what the clock shows then; of receives, must be.
            limit = (receive - send)[mine] * (1 if out else -1) + np.interp(at, x, y)
            for left in np.flatnonzero(self.steps[clock]).tolist():
                self._narrow(x, y, left, at, limit if out else -limit, 1 if out else -1)
        self._settle()

    def _narrow(
        self, x: Floats, y: Floats, left: int, at: Floats, limit: Floats, sign: int
    ) -> None:
        """Narrow a step from knot ``left`` on: ``sign * y`` is at most a limit at messages."""
        if left == 0 or left + 2 >= x.size:
            return
        inside = (at > x[left]) & (at < x[left + 1])
        lines = [
            y[k] + (at[inside] - x[k]) * (y[k + 1] - y[k]) / (x[k + 1] - x[k])
            for k in (left - 1, left + 1)
        ]
        fits = [sign * line <= limit[inside] for line in lines]
        low = at[inside][fits[0] & ~fits[1]].max(initial=x[left])
        high = at[inside][fits[1] & ~fits[0]].min(initial=x[left + 1])
        if low < high:
            ends = np.array([low, high])
            k = np.array([left - 1, left + 1])
            y[left : left + 2] = y[k] + (ends - x[k]) * (y[k + 1] - y[k]) / (x[k + 1] - x[k])
            x[left : left + 2] = ends

    def restore(self, y: list[Floats], x: list[Floats], steps: list[NDArray[np.bool_]]) -> None:
        """Take back what was changed since these were its own."""
        self.x, self.y, self.steps = x, y, steps
        self._settle()

    def added(self, y: Floats, sent: bool) -> Floats:
        """Return what some corrections add to the times at one end of the messages."""
        left, share = self._sent if sent else self._got
        value: Floats = y[left] + share * (y[left + 1] - y[left])
        return value

    def corrected(self) -> tuple[Floats, Floats]:
        """Return when messages were sent and received, in ns on a common axis."""
        y = np.concatenate(self.y)
        send = self._begin[self.messages.src] + self.send + self.added(y, True)
        return send, self._begin[self.messages.dst] + self.receive + self.added(y, False)

    def stretches(self) -> Ints:
        """Return a number by pair of clocks and stretches of both between their knots."""
        knots = int(self.column[-1])
        number: Ints = self._sent[0] * knots + self._got[0]
        return number

    def axis(self, clock: int) -> Floats:
        """Return the knots of a clock on the common axis."""
        on_axis: Floats = self._begin[clock] + self.x[clock] + self.y[clock]
        return on_axis

    def at(self, clock: Ints, t: float) -> tuple[Ints, Floats]:
        """Return the variable of the knot before a time on the common axis, and the share after."""
        left, share = np.empty(clock.size, np.int64), np.empty(clock.size)
        for place, number in enumerate(clock.tolist()):
            axis = self.axis(number)
            knot = min(max(int(np.searchsorted(axis, t, side="right")) - 1, 0), axis.size - 2)
            left[place] = self.column[number] + knot
            share[place] = (t - axis[knot]) / (axis[knot + 1] - axis[knot])
        return left, share

    def rows(self, chosen: Ints) -> tuple[Ints, Ints, Floats]:
        """Return (row, column, factor) of how much later than sent messages were received."""
        entries = []
        for sign, (left, share) in ((1.0, self._sent), (-1.0, self._got)):
            left, share = left[chosen], share[chosen]
            entries += [(left, sign * (1 - share)), (left + 1, sign * share)]
        number = np.arange(chosen.size)
        columns, factors = zip(*entries, strict=True)
        return np.tile(number, 4), np.concatenate(columns), np.concatenate(factors)

    def move(self, y: Floats) -> None:
        """Add to the corrections, ``(knots,)`` f8 ns."""
        for number, own in enumerate(self.y):
            own += y[self.column[number] : self.column[number + 1]]


@dataclass(frozen=True)
class Target:
    """Where corrections should lie, if causality allows it.

    Attributes:
        left: ``(n,)`` i8, knot before.
        share: ``(n,)`` f8, share of the next knot.
        root: ``(n,)`` i8, knot before, of the clock that this is relative to; -1: to 0.
        root_share: ``(n,)`` f8.
        value: ``(n,)`` f8 ns.
        weight: ``(n,)`` f8.
    """

    left: Ints
    share: Floats
    root: Ints
    root_share: Floats
    value: Floats
    weight: Floats


def solve(
    lines: Lines, rows: Ints, took: Floats, target: Target, fixed: NDArray[np.bool_]
) -> Floats | None:
    """Return what to add at the knots, ``(knots,)`` f8 ns; None: no solution was found.

    A linear programme: the sum of what violates causality, at ``PRICE``, and of the distances from
    the target is least.

    Args:
        lines: The corrections so far.
        rows: Messages that count.
        took: ``(rows,)`` f8, ns from send to receive, by the corrections so far.
        target: Where corrections should lie.
        fixed: ``(clocks,)`` bool, those that stay as they are.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, eye_array, hstack, vstack

    knots, n, m = int(lines.column[-1]), rows.size, target.value.size
    row, column, factor = lines.rows(rows)
    causal = csr_array((factor, (row, column)), shape=(n, knots))
    near = _near(target, knots)
    steep, most = _slopes(lines)
    none = csr_array
    matrix = vstack(
        [
            hstack([causal, -eye_array(n), none((n, m))]),
            hstack([near, none((m, n)), -eye_array(m)]),
            hstack([-near, none((m, n)), -eye_array(m)]),
            hstack([steep, none((most.size, n + m))]),
        ]
    )
    most_of = [took - ROOM_NS, target.value, -target.value, most]
    unit = max(1.0, float(np.abs(took).max(initial=0)) / 1e6)
    free = ~np.repeat(fixed, np.diff(lines.column))
    wide = np.where(free, np.inf, 0.0)
    low = np.concatenate([-wide, np.zeros(n + m)])
    high = np.concatenate([wide, np.full(n + m, np.inf)])
    cost = np.concatenate([np.zeros(knots), np.full(n, PRICE), target.weight])
    bounds = np.column_stack([low, high])
    found = linprog(cost, matrix, np.concatenate(most_of) / unit, bounds=bounds, method="highs")
    return None if found.x is None else np.asarray(found.x[:knots]) * unit


def _near(target: Target, knots: int) -> Any:
    """Return the matrix of the target's corrections."""
    from scipy.sparse import csr_array

    n = np.arange(target.value.size)
    relative = target.root >= 0
    root = np.where(relative, target.root, 0)
    factors = [1 - target.share, target.share]
    factors += [relative * (target.root_share - 1), relative * -target.root_share]
    columns = [target.left, target.left + 1, root, root + 1]
    at = np.tile(n, 4), np.concatenate(columns)
    return csr_array((np.concatenate(factors), at), shape=(n.size, knots))


def _slopes(lines: Lines) -> tuple[Any, Floats]:
    """Return a matrix of differences of neighbouring knots, and what they may be at most."""
    from scipy.sparse import csr_array

    left, sign, most = [], [], []
    for number, (x, y, step) in enumerate(zip(lines.x, lines.y, lines.steps, strict=True)):
        at, dx, dy = lines.column[number] + np.arange(x.size - 1), np.diff(x), np.diff(y)
        left += [at[~step], at]
        sign += [np.ones(int((~step).sum())), -np.ones(at.size)]
        is_loose = bool(lines.loose[number])
        limit = LOOSE_SLOPE if is_loose else SLOPE_MAX
        # Times do not run backwards, not even where the correction is as steep as it likes.
        down = np.where(step | is_loose, dx - 1, SLOPE_MAX * dx)
        most += [limit * dx[~step] - dy[~step], down + dy]
    at, factor = np.concatenate(left), np.concatenate(sign)
    n = np.arange(at.size)
    entries = (np.concatenate([factor, -factor]), (np.tile(n, 2), np.concatenate([at + 1, at])))
    return csr_array(entries, shape=(at.size, int(lines.column[-1]))), np.concatenate(most)
