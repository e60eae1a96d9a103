"""Bursts: activity of members without a pause longer than a floor, and how they fit each other.

What a member (a process, a GPU) did is kept as intervals, joined where no more than a floor lies
between them: however many events there are, a run has at most as many of them as floors fit in it.

Whether the k-th burst of each member belongs to one barrier is judged by what a barrier is: no
member begins with what follows before all have come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
BREAK = 4.0
"""A pause between bursts is at least this many times longer than any within one. Of evenly spread
events neighbouring gaps, sorted, hardly differ, so that far less would do; but what lies within a
burst and what between two differs by orders of magnitude where there is a barrier."""
TRIED = 16
"""Breaks that are tried, the widest first."""


@dataclass(frozen=True)
class Bursts:
    """Intervals by member and time.

    Attributes:
        key: ``(n,)`` i8, member, ascending.
        first, last: ``(n,)`` i8, Unix ns, ascending within a member.
    """

    key: Ints
    first: Ints
    last: Ints

    def joined(self, other: Bursts, floor_ns: int) -> Bursts:
        """Return the bursts of both; associative and commutative."""
        return _united(
            np.concatenate([self.key, other.key]),
            np.concatenate([self.first, other.first]),
            np.concatenate([self.last, other.last]),
            floor_ns,
        )


def bursts_of(key: Ints, t_ns: Ints, floor_ns: int) -> Bursts:
    """Return the bursts of events in any order; quickest where neighbours are near in time."""
    if not key.size:
        return Bursts(key, t_ns, t_ns)
    apart = (np.diff(key) != 0) | (np.abs(np.diff(t_ns)) > floor_ns)
    at = np.flatnonzero(np.append(True, apart))
    first, last = np.minimum.reduceat(t_ns, at), np.maximum.reduceat(t_ns, at)
    return _united(key[at], first, last, floor_ns)


def _united(key: Ints, first: Ints, last: Ints, floor_ns: int) -> Bursts:
    """Join intervals of a member between which there is at most the floor."""
    # As brackets, those that close a floor later: where none is open a burst is over.
    t_ns = np.concatenate([first, last + floor_ns])
    step = np.repeat(np.array([1, -1], np.int64), first.size)
    order = np.lexsort((-step, t_ns, np.concatenate([key, key])))
    ends = np.flatnonzero(np.cumsum(step[order]) == 0)
    begins = np.append(0, ends + 1)[: ends.size]
    place = order[begins]
    return Bursts(key[place], first[place], t_ns[order[ends]] - floor_ns)


@dataclass(frozen=True)
class Aligned:
    """Bursts of m members, n of each, the k-th of which belong together.

    Attributes:
        key: ``(m,)`` i8, ascending.
        first, last: ``(n, m)`` i8, Unix ns.
    """

    key: Ints
    first: Ints
    last: Ints


def aligned(bursts: Bursts, floor_ns: int, arrival: str) -> Aligned | None:
    """Return bursts that fit each other, split at the widest break at which they do; None: at none.

    Each member has as many of them, at least two, and there are at least two members.

    Args:
        bursts: As they are kept.
        floor_ns: Of them.
        arrival: "first" or "last", when a member arrives at a barrier: with its burst's begin, or
            with its end.
    """
    for least_ns in _breaks(bursts, floor_ns):
        found = _split(bursts, least_ns)
        if found is not None:
            came = found.first if arrival == "first" else found.last
            if np.all(came[:-1].max(axis=1) < found.first[1:].min(axis=1)):
                return found
    return None


def _breaks(bursts: Bursts, floor_ns: int) -> Iterator[int]:
    """Yield longest pauses within bursts, those first that the next longer pause exceeds most."""
    gap = bursts.first[1:] - bursts.last[:-1]
    gap = np.unique(np.append(gap[np.diff(bursts.key) == 0], floor_ns))
    factor = gap[1:] / gap[:-1]
    order = np.argsort(-factor, kind="stable")[:TRIED]
    yield from gap[order[factor[order] >= BREAK]].tolist()


def _split(bursts: Bursts, within_ns: int) -> Aligned | None:
    """Return bursts between which there are longer pauses, where each member has as many."""
    apart = (np.diff(bursts.key) != 0) | (bursts.first[1:] - bursts.last[:-1] > within_ns)
    at = np.append(0, np.flatnonzero(apart) + 1)
    key, count = np.unique(bursts.key[at], return_counts=True)
    if key.size < 2 or count.min() < 2 or count.min() != count.max():
        return None
    last = bursts.last[np.append(at[1:], bursts.key.size) - 1]
    shape = key.size, int(count[0])
    return Aligned(key, bursts.first[at].reshape(shape).T, last.reshape(shape).T)
