"""Estimates of clocks against known truth.

Every case asks for the same: errors within the bounds that are stated, and no message in the wrong
order that is matched rightly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.stages.skew import Correction, estimate
from sigmatrace.stages.skew_lines import Messages
from tests.skew_worlds import BASE_NS, Truth, World, both_ways, chain, full, ring, solved, star

ROUNDING_NS = 2


def check(world: World, *, bends: int | None = 0) -> tuple[Truth, object]:
    truth, skew = solved(world)
    errors = truth.errors(skew)
    assert np.isfinite(skew.bound_ns).all()
    assert (errors <= skew.bound_ns + ROUNDING_NS).all(), (errors, skew.bound_ns)
    assert truth.violations(skew) == 0
    if bends is not None:
        assert skew.bends.sum() == bends
    return truth, skew


GRAPHS = {
    "two": (2, full(2)),
    "full": (6, full(6)),
    "chain": (7, chain(7)),
    "star": (9, star(9)),
    "ring, one way": (6, ring(6)),
    "ring and a chord": (8, [*ring(8), (5, 1)]),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("seconds", [0.01, 10.0, 4 * 3600.0])
def test_offsets_of_seconds_and_drifts_of_100_ppm_lie_within_the_bounds(graph, seconds):
    clocks, edges = GRAPHS[graph]
    check(World(clocks, edges, seconds=seconds, seed=7))


@pytest.mark.parametrize("graph", ["two", "chain", "ring, one way"])
@pytest.mark.parametrize("drift_ppm", [4e4, 4e5])
def test_loose_clocks_may_drift_as_they_like(graph, drift_ppm):
    """A rate that nobody knows: no clock that is known drifts by more than 1000 ppm."""
    clocks, edges = GRAPHS[graph]
    world = World(clocks, edges, seconds=0.1, drift_ppm=drift_ppm, seed=5)
    truth, skew = solved(world, np.ones(clocks, bool))
    assert truth.violations(skew) == 0 and skew.bends.sum() == 0 and not skew.left_aside.any()
    assert (truth.errors(skew) <= skew.bound_ns + ROUNDING_NS).all()


def test_only_loose_clocks_may_drift_as_they_like():
    truth, skew = solved(World(2, full(2), 100, seconds=0.1, drift_ppm=4e4, seed=5))
    assert truth.violations(skew) > 0 and np.isinf(skew.bound_ns).any()


def test_clocks_that_are_right_stay_within_their_bounds():
    _, skew = check(World(4, full(4), offset_ns=0, drift_ppm=0))
    assert max(abs(one.drift_ppm) for one in skew.corrections) < 0.1


@pytest.mark.parametrize("clocks", [32, 128])
def test_many_clocks_in_a_sparse_graph(clocks):
    rng = np.random.default_rng(3)
    tree = [(one, int(rng.integers(0, one))) for one in range(1, clocks)]
    more = [(int(a), int(b)) for a, b in rng.integers(0, clocks, (clocks, 2)) if a != b]
    edges = list(dict.fromkeys([*both_ways(tree), *more]))
    check(World(clocks, edges, messages=40, seed=clocks))


def worlds():
    """Fair cases: enough messages, and of these wrong ones at most one in a hundred."""
    kinds = st.sampled_from([full, chain, star, ring])
    return st.builds(
        lambda clocks, kind, **more: World(clocks, kind(clocks), **more),
        st.integers(2, 7),
        kinds,
        messages=st.sampled_from([100, 400]),
        seconds=st.sampled_from([0.01, 1.0, 60.0, 7200.0]),
        offset_ns=st.sampled_from([0.0, 1e4, 1e6, 3e9]),
        drift_ppm=st.sampled_from([0.0, 1.0, 100.0]),
        queue_ns=st.sampled_from([100.0, 3000.0, 1e5]),
        load=st.sampled_from([1.0, 20.0]),
        wrong=st.sampled_from([0, 0, 1]),
        seed=st.integers(0, 2**32 - 1),
    )


def test_95_of_100_cases_lie_within_the_bound_and_none_breaks_causality():
    inside = []

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(worlds())
    def collect(world):
        truth, skew = solved(world)
        bound = skew.bound_ns
        assert np.isfinite(bound).all() or world.wrong
        inside.extend((truth.errors(skew) <= bound + ROUNDING_NS)[1:])
        assert truth.violations(skew) == 0 or world.wrong

    collect()
    assert len(inside) > 100 and np.mean(inside) >= 0.95


def test_the_median_error_is_at_most_half_of_the_asymmetry_of_least_delays():
    """Two clocks: what is not known is how the least delays of both ways differ, and no more.

    Half of their difference is the error of the best possible estimate. Queues are short beside
    the delays, and messages many, so that the least delays are seen all along the run.
    """
    errors, asymmetries = [], []
    for seed in range(31):
        world = World(2, full(2), messages=1500, queue_ns=200.0, least_ns=(1500, 30_000), seed=seed)
        truth, skew = solved(world)
        errors.append(truth.errors(skew).max())
        asymmetries.append(abs(truth.least_ns[0, 1] - truth.least_ns[1, 0]))
        assert errors[-1] <= skew.bound_ns.max() + ROUNDING_NS
    ratio = np.array(errors) / (np.array(asymmetries) / 2)
    assert np.median(errors) <= np.median(asymmetries) / 2 * 1.05
    assert np.median(ratio) <= 1.05


@pytest.mark.parametrize("load", [1, 100])
def test_load_in_one_direction_alone_moves_nothing_by_more_than_the_bound(load):
    truth, skew = check(World(2, full(2), messages=5000, load=load, queue_ns=1000))
    assert skew.bound_ns.max() < 10 * max(truth.least_ns.values())


@pytest.mark.parametrize("graph", ["two", "full", "chain", "star"])
def test_wrong_matches_are_left_aside_and_counted(graph):
    clocks, edges = GRAPHS[graph]
    world = World(clocks, edges, wrong=3, seed=5)
    truth, skew = check(world, bends=None)
    # A wrong match that makes a message late does no harm, and is none that stands out.
    send, receive = truth.messages.send_ns, truth.messages.receive_ns
    assert 0 < skew.left_aside.sum() <= truth.is_wrong.sum()
    assert not (skew.left_aside & ~truth.is_wrong).any()
    right = estimate(truth_without_wrong(world), clocks)
    assert skew.bound_ns.max() < 3 * right.bound_ns.max() and send.size == receive.size


def truth_without_wrong(world):
    return Truth(replace(world, wrong=0)).messages


@pytest.mark.parametrize("graph", ["two", "full", "chain"])
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("jump_ns", [1e5, 1e9])
def test_a_step_in_mid_run_is_found_where_it_is(graph, who, jump_ns):
    """Also one of the reference: another clock becomes it, where there are more than two."""
    clocks, edges = GRAPHS[graph]
    world = World(clocks, edges, messages=1000, step=(who, 6.1, jump_ns), seed=11)
    truth, skew = check(world, bends=1)
    bent = int(skew.bends.argmax())
    assert bent == who or clocks == 2
    reference = int(skew.reference[bent])
    shown, right = (truth.clock(one, np.array([5.7e9, 6.5e9])) for one in (bent, reference))
    change = np.diff(skew.corrections[bent].of(shown) - (right - shown))[0]
    assert abs(change) <= 2 * skew.bound_ns[bent]


@pytest.mark.parametrize("graph", ["two", "star", "full"])
def test_clocks_that_ntp_keeps_wander_and_are_followed(graph):
    """By 200 us to and fro in 20 minutes, where a message takes some us."""
    clocks, edges = GRAPHS[graph]
    world = World(clocks, edges, messages=2000, seconds=1800, seed=3)
    _, skew = check(replace(world, wander_ns=2e5, wander_s=1200.0))
    assert skew.parts > 4 and skew.bound_ns.max() < 100_000
    assert check(world)[1].parts == 1


def test_clocks_that_wander_too_fast_for_lines_leave_few_early_messages():
    """64 parts do not do for all messages: the rest is left aside, and bounds hold."""
    world = World(4, star(4), 1000, seconds=600, drift_ppm=20, wander_ns=1e5, wander_s=80, seed=2)
    truth, skew = solved(world)
    early = (truth.messages.send_ns > truth.messages.receive_ns).sum()
    assert truth.violations(skew) <= early // 100 and np.isfinite(skew.bound_ns).all()
    assert (truth.errors(skew) <= skew.bound_ns + ROUNDING_NS).all() and skew.parts == 64


def test_clocks_that_wander_still_faster_have_shorter_lines():
    world = World(3, full(3), 1000, seconds=600, drift_ppm=20, wander_ns=1e5, wander_s=60, seed=2)
    truth, skew = solved(world)
    assert truth.violations(skew) == 0 and skew.parts == 128
    assert (truth.errors(skew) <= skew.bound_ns + ROUNDING_NS).all()


def test_a_clock_that_stood_still_is_put_right():
    """A host that slept: its counter stood, those of others went on; nothing was sent meanwhile."""
    truth = Truth(World(3, full(3), messages=1000, step=(1, 5.0, -2e9), seed=2))
    woke = truth.clock(1, np.array([7e9]))[0]
    at_one = [
        (end == 1) & (times > woke - 2e9) & (times < woke)
        for end, times in (
            (truth.messages.src, truth.messages.send_ns),
            (truth.messages.dst, truth.messages.receive_ns),
        )
    ]
    # What the clock shows twice is what it showed while it slept, and after.
    names = ("src", "dst", "send_ns", "receive_ns")
    kept = Messages(*(getattr(truth.messages, n)[~(at_one[0] | at_one[1])] for n in names))
    skew = estimate(kept, 3)
    t = np.array([1e9, 2e9, 8e9, 9e9])
    for one in range(3):
        shown, right = (truth.clock(c, t) for c in (one, int(skew.reference[one])))
        error = np.abs(shown + skew.corrections[one].of(shown) - right).max()
        assert error <= skew.bound_ns[one] + ROUNDING_NS < 100_000
    assert skew.bends.tolist() == [0, 1, 0]


def test_one_way_traffic_is_corrected_no_more_than_causality_wants_and_has_no_bound():
    edges = [*full(2), (0, 2), (3, 0)]
    for offset in (0.0, 2e9):
        truth, skew = solved(World(4, edges, offset_ns=offset, drift_ppm=0, seed=4))
        assert truth.violations(skew) == 0
        assert skew.reference.tolist() == [0, 0, 2, 3] and np.isfinite(skew.bound_ns[:2]).all()
        if offset == 0:
            assert all(abs(skew.corrections[one].add_ns).max() < 10_000 for one in (2, 3))


def test_a_clock_without_messages_stays_and_groups_have_a_reference_each():
    edges = [*full(2), (3, 4), (4, 3)]
    truth, skew = solved(World(5, edges, seed=9))
    assert truth.violations(skew) == 0
    assert len(set(skew.reference[:2])) == 1 and len(set(skew.reference[3:])) == 1
    assert skew.reference[2] == 2 and not skew.corrections[2].add_ns.any()
    assert skew.messages.tolist() == [1000, 1000, 0, 1000, 1000]
    assert (truth.errors(skew) <= skew.bound_ns + ROUNDING_NS).all()


def test_the_preferred_clock_is_the_reference_and_stays():
    truth = Truth(World(5, star(5)))
    assert set(estimate(truth.messages, 5).reference) == {0}  # which has most messages
    skew = estimate(truth.messages, 5, preferred=[3])
    assert set(skew.reference) == {3} and not skew.corrections[3].add_ns.any()
    assert skew.bound_ns[3] == 0 and (truth.errors(skew) <= skew.bound_ns + ROUNDING_NS).all()


def test_the_bound_grows_beyond_the_messages():
    truth = Truth(World(2, full(2)))
    near = estimate(truth.messages, 2)
    day = 86_400 * 10**9
    spans = np.array([[BASE_NS - day, BASE_NS + day]] * 2)
    far = estimate(truth.messages, 2, spans=spans)
    one = int(near.bound_ns.argmax())
    assert far.bound_ns[one] > 1000 * near.bound_ns[one]
    t = np.array([0.9 * day])
    shown, right = (truth.clock(c, t) for c in (one, 1 - one))
    error = np.abs(shown + far.corrections[one].of(shown) - right).max()
    assert error <= far.bound_ns[one]


def test_no_messages():
    none = np.zeros(0, np.int64)
    skew = estimate(Messages(none, none, none, none), 3)
    assert skew.reference.tolist() == [0, 1, 2] and not skew.messages.any()
    assert all(not one.add_ns.any() for one in skew.corrections)


def test_a_correction_is_linear_between_knots_and_beyond_them():
    one = Correction(np.array([0, 1000, 2000]), np.array([0, 100, 0]))
    t = np.array([-1000, 0, 500, 1000, 1500, 3000])
    assert one.of(t).tolist() == [-100, 0, 50, 100, 50, -100]
