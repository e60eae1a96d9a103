"""The search for corrections: lines are fitted, and what contradicts them is explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatrace.stages.skew_bends import bends, stands_out
from sigmatrace.stages.skew_hull import Hulls, distances
from sigmatrace.stages.skew_lines import Lines, Messages, Target, solve
from sigmatrace.stages.skew_ties import aligned, components, tied_without

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

REFINED = 3
"""How often lines are fitted: each time drifts and offsets that are left are smaller."""
CUTS = 10
"""How often messages are added to the programme that its last solution violates."""
BENDS = 8
"""A clock that seems to bend more often does not bend: it drifts unevenly all the time."""
ENDS = 16
"""With fewer messages before or behind it a bend is none, and these messages are wrong."""
TRIED = 4
"""After so many clocks that do not bend none other is looked at."""
PARTS = 64
"""Lines of clocks that drift unevenly are divided into at most so many parts, where few messages
are in the wrong order then."""
SHORT_PARTS = 256
"""The same, where many are, if ever fewer; parts so short have no bound if messages are rare."""
KNOTS = 8192
"""All clocks together have no more knots than this, for the programme's sake."""
FEW = 1e-3
"""So many messages may be in the wrong order until parts of lines are short enough."""
HELPS = 0.75
"""Bends of a clock that leave a larger share of the messages in the wrong order do not help."""
DIVIDED = 0.1
"""The same, for lines of all clocks in parts."""
ROUNDS = 40
"""How often something is looked for that explains what cannot be."""
PLACES = (0.002, 0.01, 0.05, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.95, 0.99, 0.998)
"""Quantiles of all messages at which the corrections' middle is sought."""
WEAK = 1e-4
"""The weight of a target that only keeps a clock from going anywhere."""
IN_PARTS = (0.1, 0.5, 0.9)
"""Shares of each part, where lines are divided, at which the middle is sought besides."""
REACH_IN_PARTS = (0.02, 0.06, *IN_PARTS, 0.25, 0.75, 0.94, 0.98)
"""The same, for the bounds: what is known at two of them is known of the part."""
ROWS = 3000
"""At most so many corners of hulls are in the first programme."""


class Search:
    """The search for corrections with given ranks of clocks, the lowest the best reference."""

    def __init__(self, messages: Messages, clocks: int, rank: Ints, loose: Bools) -> None:
        self.messages, self.clocks = messages, clocks
        self.root, self.lead = components(messages, clocks, rank)
        first = np.full(clocks, np.iinfo(np.int64).max)
        np.minimum.at(first, messages.src, messages.send_ns)
        np.minimum.at(first, messages.dst, messages.receive_ns)
        silent = first == np.iinfo(np.int64).max
        first[silent] = 0
        self.lines = Lines(messages, first, aligned(messages, clocks, rank), loose)
        self.aside = np.zeros(messages.src.size, bool)
        self.edges = np.zeros(0)
        self.unexplained = np.zeros(messages.src.size, bool)

    @property
    def is_root(self) -> Bools:
        """Which clocks are a reference."""
        root: Bools = self.root == np.arange(self.clocks)
        return root

    def run(self, is_last: bool = False) -> int | None:
        """Find the corrections; return a reference that has a bend, unless there is no other."""
        if not self.messages.src.size:
            return None
        for _ in range(REFINED):
            self._fit()
        tried: set[int] = set()
        for _ in range(ROUNDS):
            bad = self._violated()
            if not bad.any():
                return None
            alone = bad & stands_out(self.messages, self.took(), self.aside)
            if alone.any():
                self.aside |= alone
                self._fit()
                continue
            clock = self._culprit(bad, tried)
            if clock is None or len(tried) == TRIED or not self._can_help(clock, bad):
                break
            can_stay = is_last or not self.is_root[clock] or (self.root == clock).sum() == 1
            if not can_stay and self._seems_to_bend(clock):
                return clock
            if not (can_stay and self._bend(clock, int(bad.sum()))):
                tried.add(clock)
        self._divide()
        self._give_up()
        return None

    def _divide(self) -> None:
        """Divide the lines of all clocks into ever more parts, until they follow the clocks.

        So it is where clocks drift unevenly all the time, as those that NTP keeps do.
        """
        parts, before = 1, self._state()
        bad = self._violated()
        enough = FEW * self.aside.size
        first = int(bad.sum())
        kept = max(enough, DIVIDED * first)
        while bad.any() and 2 * parts * self.clocks <= KNOTS:
            if parts >= (SHORT_PARTS if kept < bad.sum() <= HELPS * first else PARTS):
                break
            parts *= 2
            send, receive = self.lines.corrected()
            low, high = min(send.min(), receive.min()), max(send.max(), receive.max())
            self.edges = np.linspace(low, high, parts + 1)
            self.lines.divide(self.edges)
            self._fit(cuts=2)
            if self._violated().sum() <= kept:
                self._fit()
            bad = self._violated()
            bad &= ~stands_out(self.messages, self.took(), self.aside)
        if bad.sum() > kept:
            self.lines.restore(*before)
            self.edges = self.edges[:0]

    def _state(self) -> tuple[list[Floats], list[Floats], list[Bools]]:
        lines = self.lines
        return [y.copy() for y in lines.y], [x.copy() for x in lines.x], list(lines.steps)

    def _give_up(self) -> None:
        """Leave aside what still cannot be, and fit the rest."""
        for _ in range(REFINED):
            bad = self._violated()
            self.unexplained |= bad
            self.aside |= bad
            if bad.any():
                self._fit()

    def took(self) -> Floats:
        """Return what messages took by the corrections so far, ``(messages,)`` f8 ns."""
        send, receive = self.lines.corrected()
        return receive - send

    def _violated(self) -> Bools:
        return (self.took() < 0) & ~self.aside

    def _culprit(self, bad: Bools, tried: set[int]) -> int | None:
        """Return the clock with most messages that cannot be, of those not tried."""
        count = 2 * self.count(bad) - self.is_root
        count[list(tried)] = 0
        return int(count.argmax()) if count.max() > 1 else None

    def _can_help(self, clock: int, bad: Bools) -> bool:
        """Say whether enough messages that cannot be are at a clock; else it need not be tried."""
        return bool(self.count(bad)[clock] > (1 - HELPS) * bad.sum())

    def _bend(self, clock: int, bad: int) -> bool:
        """Add knots to a clock; return whether that helps, else take them back."""
        lines = self.lines
        before = self._state()
        found = self._bends(clock)
        if found:
            lines.bend(clock, found)
            for _ in range(REFINED):
                self._fit()
                lines.tighten(clock, ~self.aside)
            self._fit()
            if self._violated().sum() < HELPS * bad:
                return True
        lines.restore(*before)
        return False

    def _seems_to_bend(self, clock: int) -> bool:
        """Say whether bends of a reference would explain what cannot be."""
        before = self._state()
        found = self._bends(clock)
        self.lines.restore(*before)
        return bool(found)

    def _bends(self, clock: int) -> list[tuple[float, float]]:
        """Return where a clock bends, seen by the others, which are fitted without it before."""
        lines, messages, aside = self.lines, self.messages, self.aside
        own = (messages.src == clock) | (messages.dst == clock)
        self.aside = aside | own
        for _ in range(REFINED if not self.aside.all() else 0):
            self._fit()
        self.aside = aside
        took = self.took()
        anchor = int(self.root[clock])
        if anchor == clock:
            partners = self.count(own & ~aside)
            partners[clock] = 0
            anchor = int(partners.argmax())
        others = tied_without(messages, own & ~aside, self.clocks, anchor)
        usable = own & ~aside & ~stands_out(messages, took, aside)
        out, into = (usable & (end == clock) for end in (messages.src, messages.dst))
        known = out & others[messages.dst], into & others[messages.src]
        if known[0].any() and known[1].any():
            out, into = known
        x = np.concatenate([lines.send[out], lines.receive[into]])
        limit = np.concatenate([took[out], -took[into]])
        found = bends(x, limit, np.repeat([True, False], [out.sum(), into.sum()]), BENDS)
        found = [one for one in found if min((x < one[0]).sum(), (x > one[1]).sum()) >= ENDS]
        return found if len(found) < BENDS else []

    def _fit(self, cuts: int = CUTS) -> None:
        """Fit the lines once."""
        hulls = self._hulls()
        target = self._target(hulls)
        fixed = self.is_root & (self.lead == np.arange(self.clocks))
        took = self.took()
        rows = hulls.row
        if rows.size > ROWS:
            rows = rows[np.argpartition(hulls.value, ROWS)[:ROWS]]
        y = np.zeros(int(self.lines.column[-1]))
        for _ in range(cuts):
            found = solve(self.lines, rows, took[rows], target, fixed)
            if found is None:
                break
            y = found
            left = took - self.lines.added(y, True) + self.lines.added(y, False)
            more = _worst(self.lines.stretches(), left, self.aside)
            more = more[~np.isin(more, rows)]
            if not more.size:
                break
            rows = np.concatenate([rows, more])
        self.lines.move(y)

    def _hulls(self) -> Hulls:
        """Return the hulls of what messages take, by pair and stretches between knots."""
        kept = np.flatnonzero(~self.aside)
        send, receive = self.lines.corrected()
        group = self.lines.stretches()[kept]
        src, dst = self.messages.src[kept], self.messages.dst[kept]
        t, took = ((send + receive) / 2)[kept], (receive - send)[kept]
        hulls = Hulls.of(group, src, dst, t, took)
        return Hulls(
            kept[hulls.row], *(getattr(hulls, n) for n in ("src", "dst", "t", "value", "joined"))
        )

    def _places(self, in_parts: Sequence[float]) -> Floats:
        """Return the times at which the middle is sought, and bounds."""
        send, receive = self.lines.corrected()
        places = [np.quantile((send + receive) / 2, PLACES)]
        places += [self.edges[:-1] + np.diff(self.edges) * share for share in in_parts]
        for clock in range(self.clocks):
            steps = np.concatenate([[False], self.lines.steps[clock], [False]])
            axis = self.lines.axis(clock)
            near = ~steps[1:-1] & (steps[:-2] | steps[2:])
            low, dx = axis[:-1][near], np.diff(axis)[near]
            places += [low + share * dx for share in (0.01, 0.1, 0.5, 0.9, 0.99)]
        return np.unique(np.concatenate(places))

    def _ways(self, hulls: Hulls, t: float) -> tuple[Floats, Floats]:
        """Return how far above, and below, the correction can be at a time, by clock."""
        least = hulls.between(t, self.clocks)
        least[self.root[:, None] != self.root[None, :]] = np.inf
        return distances(least, self.is_root)

    def _target(self, hulls: Hulls) -> Target:
        """Return the middle of what is possible, at some times."""
        lines, root = self.lines, self.root
        parts: list[tuple[NDArray[Any], ...]] = []
        free = ~self.is_root
        for t in self._places(IN_PARTS).tolist():
            above, below = self._ways(hulls, t)
            clock = np.flatnonzero(np.isfinite(above) & np.isfinite(below) & ~self.is_root)
            left, share = lines.at(clock, t)
            root_left, root_share = lines.at(root[clock], t)
            above, below = above[clock], below[clock]
            middle, half = (above - below) / 2, np.abs(above + below) / 2
            parts.append((left, share, root_left, root_share, middle, 1 / (half + 10.0)))
            free[clock] = False
        parts += [self._stay(one, 0.0) for one in np.flatnonzero(free).tolist()]
        for one in np.flatnonzero(self.is_root & (self.lead != np.arange(self.clocks))).tolist():
            parts.append(self._stay(one, -(lines.offset_ns[one] + lines.y[one])))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        columns[-1] = np.maximum(columns[-1] / columns[-1].max(), WEAK)
        return Target(*columns)

    def _stay(self, clock: int, value: Floats | float) -> tuple[NDArray[Any], ...]:
        """Return a target for all knots of a clock, beside which all others weigh more."""
        at = self.lines.column[clock] + np.arange(self.lines.x[clock].size)
        left = np.minimum(at, at[-2])
        share, none = (at - left).astype(np.float64), np.full(at.size, -1)
        values = np.broadcast_to(value, at.size)
        return left, share, none, share, values, np.full(at.size, WEAK)

    def reach(self) -> tuple[Floats, Floats]:
        """Return times ``(n,)``, and how far off each clock can be there, ``(n, clocks)``."""
        hulls, places = self._hulls(), self._places(REACH_IN_PARTS)
        return places, np.array([np.maximum(*self._ways(hulls, t)) for t in places.tolist()])

    def count(self, chosen: Bools) -> Ints:
        """Return the messages at each clock, of those chosen."""
        ends = np.concatenate([self.messages.src[chosen], self.messages.dst[chosen]])
        return np.bincount(ends, minlength=self.clocks)


def _worst(group: Ints, left: Floats, aside: Bools) -> Ints:
    """Return the messages that are violated most, one of each group."""
    bad = np.flatnonzero((left < 0) & ~aside)
    order = bad[np.lexsort((left[bad], group[bad]))]
    first = np.ones(order.size, bool)
    first[1:] = group[order][1:] != group[order][:-1]
    return order[first]
