"""Bursts and how they fit each other, against plain sorted times."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.stages.bursts import Bursts, aligned, bursts_of

FLOOR_NS = 5
points = st.lists(st.tuples(st.integers(0, 2), st.integers(-100, 100)), max_size=30)


def made(rows: list[tuple[int, int]], floor_ns: int = FLOOR_NS) -> Bursts:
    key, t_ns = np.array(rows, np.int64).reshape(-1, 2).T
    return bursts_of(key, t_ns, floor_ns)


def plain(rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    of_member: dict[int, list[int]] = defaultdict(list)
    for key, t_ns in rows:
        of_member[key].append(t_ns)
    found = []
    for key, times in sorted(of_member.items()):
        times.sort()
        cuts = [k for k in range(1, len(times)) if times[k] - times[k - 1] > FLOOR_NS]
        for start, stop in itertools.pairwise([0, *cuts, len(times)]):
            found.append((key, times[start], times[stop - 1]))
    return found


@given(st.lists(points, min_size=1, max_size=4))
def test_bursts_are_those_of_sorted_times_however_they_are_split(
    parts: list[list[tuple[int, int]]],
) -> None:
    one = functools.reduce(lambda left, right: left.joined(right, FLOOR_NS), map(made, parts))
    rows = list(zip(one.key.tolist(), one.first.tolist(), one.last.tolist(), strict=True))
    assert rows == plain(list(itertools.chain(*parts)))


def rounds(members: int, count: int, late: int, width: int = 40) -> list[tuple[int, int]]:
    """Each member works for a while, in steps of 10, and comes a while after the one before."""
    return [
        (member, 10_000 * k + late * member + step)
        for k in range(count)
        for member in range(members)
        for step in range(0, width + 1, 10)
    ]


@pytest.mark.parametrize(("arrival", "since"), [("first", 0), ("last", 40)])
def test_rounds_with_a_barrier_fit(arrival: str, since: int) -> None:
    found = aligned(made(rounds(3, 6, 700)), FLOOR_NS, arrival)
    assert found is not None and found.key.tolist() == [0, 1, 2]
    want = [[10_000 * k + 700 * member for member in range(3)] for k in range(6)]
    assert found.first.tolist() == want
    assert (found.last - 40).tolist() == want


def test_the_widest_break_at_which_bursts_fit_counts() -> None:
    """Member 1 pauses within its bursts, too, longer than member 0 does between its steps."""
    rows = rounds(1, 5, 0) + [(1, 10_000 * k + t) for k in range(5) for t in (300, 310, 1500)]
    found = aligned(made(rows), FLOOR_NS, "last")
    assert found is not None
    assert found.last[:, 1].tolist() == [10_000 * k + 1500 for k in range(5)]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        rounds(1, 9, 0),  # one member
        rounds(3, 1, 100),  # one burst
        [*rounds(3, 6, 700), (1, 90_000)],  # one comes once more
        [(m, 1000 * k + 600 * m) for k in range(9) for m in range(4)],  # the last is far behind
        [(m, 10 * k) for k in range(99) for m in range(3)],  # no break
    ],
)
def test_what_does_not_fit_is_no_barrier(rows: list[tuple[int, int]]) -> None:
    assert aligned(made(rows), FLOOR_NS, "last") is None
    assert aligned(made(rows), FLOOR_NS, "first") is None
