from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.stages.skew_bends import bends, stands_out
from sigmatrace.stages.skew_hull import Hulls, distances, lower_hulls
from sigmatrace.stages.skew_lines import Messages

points = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(-50, 50)), min_size=1, max_size=40
)


def below(points, t):
    """The lower hull of points at a time: the least of all chords over it."""
    at = [y for x, y in points if x == t]
    for (x0, y0), (x1, y1) in itertools.permutations(points, 2):
        if x0 < t < x1:
            at.append(y0 + (y1 - y0) * (t - x0) / (x1 - x0))
    return min(at)


@settings(max_examples=200, deadline=None, database=None)
@given(points)
def test_hulls_are_below_all_chords_and_no_corner_is_too_much(given_points):
    group, t, value = (np.array(one) for one in zip(*given_points, strict=True))
    kept = lower_hulls(group, t.astype(float), value.astype(float))
    for number in np.unique(group):
        mine = [(x, y) for g, x, y in given_points if g == number]
        corners = [(int(t[k]), int(value[k])) for k in kept if group[k] == number]
        times = [x for x, _ in corners]
        assert times == sorted(set(times))
        assert (times[0], times[-1]) == (min(x for x, _ in mine), max(x for x, _ in mine))
        for x in range(times[0], times[-1] + 1):
            found = np.interp(x, times, [y for _, y in corners])
            assert found == pytest.approx(below(mine, x))
        for (x0, y0), (x1, y1), (x2, y2) in zip(corners, corners[1:], corners[2:], strict=False):
            assert (y1 - y0) * (x2 - x1) < (y2 - y1) * (x1 - x0)


def test_hulls_say_by_pair_what_they_are_at_a_time():
    t = np.array([0.0, 10, 0, 4, 10, 20, 30])
    value = np.array([5.0, 7, 8, 0, 8, 1, 1])
    src, dst = np.array([0, 0, 1, 1, 1, 1, 1]), np.array([1, 1, 0, 0, 0, 0, 0])
    hulls = Hulls.of(np.array([0, 0, 1, 1, 1, 2, 2]), src, dst, t, value)
    inf = np.inf
    assert hulls.between(5, 2).tolist() == [[inf, 6], [pytest.approx(8 / 6), inf]]
    assert hulls.between(25, 2).tolist() == [[inf, inf], [1, inf]]
    assert hulls.between(15, 2)[1, 0] == inf  # between two stretches


@settings(max_examples=100, deadline=None, database=None)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_ways_are_the_shortest_ones(clocks, seed):
    rng = np.random.default_rng(seed)
    least = rng.integers(0, 100, (clocks, clocks)).astype(float)
    least[rng.random((clocks, clocks)) < 0.4] = np.inf
    roots = np.zeros(clocks, bool)
    roots[rng.integers(0, clocks)] = True
    every = least.copy()
    np.fill_diagonal(every, 0)
    for k in range(clocks):
        every = np.minimum(every, every[:, k : k + 1] + every[k])
    (root,) = np.flatnonzero(roots)
    to, of = distances(least, roots)
    assert to.tolist() == every[:, root].tolist() and of.tolist() == every[root].tolist()


def sides(x, line, rng):
    """Limits on both sides of a line."""
    is_above = rng.random(x.size) < 0.5
    gap = rng.exponential(5.0, x.size) + 1
    return line + np.where(is_above, gap, -gap), is_above


@pytest.mark.parametrize("breaks", [(), (400.0,), (250.0, 700.0)])
def test_bends_are_found_between_the_points_around_them(breaks):
    rng = np.random.default_rng(1)
    x = rng.permutation(np.arange(1000.0))
    line = 0.01 * x + sum(1000.0 * (x > one) for one in breaks)
    found = bends(x, *sides(x, line, rng), 16)
    assert len(found) == len(breaks)
    for (low, high), one in zip(found, breaks, strict=True):
        assert one - 10 < low <= one + 1 and one <= high < one + 10


def test_a_line_that_turns_has_bends_where_it_turns():
    rng = np.random.default_rng(2)
    x = np.arange(2000.0)
    line = np.abs(x - 1000)
    ((low, high),) = bends(x, *sides(x, line, rng), 16)
    assert 900 < low < high < 1100


def test_no_more_bends_than_asked_for():
    x = np.arange(1000.0)
    rng = np.random.default_rng(3)
    assert len(bends(x, *sides(x, 1000 * np.sin(x / 30), rng), 4)) == 4


def test_one_message_alone_stands_out_and_a_step_does_not():
    rng = np.random.default_rng(4)
    send = np.arange(1000)
    took = 1000 + rng.exponential(300, 1000)
    took[600:] -= 1e6
    took[[100, 300]] -= 20_000
    took[800] += 1e9  # a late one
    pair = np.zeros(1000, np.int64)
    found = stands_out(Messages(pair, pair + 1, send, send), took, np.zeros(1000, bool))
    assert np.flatnonzero(found).tolist() == [100, 300]
    aside = np.zeros(1000, bool)
    aside[100] = True
    found = stands_out(Messages(pair, pair + 1, send, send), took, aside)
    assert np.flatnonzero(found).tolist() == [300]
    few = Messages(*(np.arange(3) for _ in range(4)))
    assert not stands_out(few, np.array([1.0, -1e9, 1.0]), np.zeros(3, bool)).any()
