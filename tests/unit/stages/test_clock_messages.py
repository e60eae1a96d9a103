"""Clocks of a run corrected by samples of messages whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.partition import column
from sigmatrace.stages.clock import CheckedClock, Clock, MessageClock
from sigmatrace.stages.clock_calibration import calibrated
from sigmatrace.stages.clock_columns import unix_ns
from sigmatrace.stages.clock_messages import check, corrected, lines_of
from sigmatrace.stages.clock_sample import Sample
from sigmatrace.stages.skew_lines import Messages
from sigmatrace.stages.skew_ties import compared
from sigmatrace.text import count_text
from tests.factories import make_run
from tests.skew_worlds import BASE_NS, Truth, World, full, star

BOOT = 10**15
"""TSC at ``BASE_NS``, of counters that tick once in a ns."""


def run_of(clocks, seconds=10, without_pairs=(), hz=(), pairs_at=()):
    """A host each, whose TSC counts ns of the wall clock, if its header says something else, too.

    Pairs are read once a second, if it is not said when.
    """
    processes = [
        {"host": f"node{n}", "boot_id": f"boot{n}", "start_ns": BASE_NS, "tsc_hz": round(rate)}
        for n, rate in enumerate(hz or [1e9] * clocks)
    ]
    pairs = [
        {
            "proc": n,
            "tsc": BOOT + at,
            "wall_ns": BASE_NS + at,
            "width_tsc": 40,
            "source": "realtime",
        }
        for n in range(clocks)
        if n not in without_pairs
        for at in pairs_at or range(0, (seconds + 1) * 10**9, 10**9)
    ]
    return make_run(processes=processes, clocks=pairs)


def sample_of(messages):
    """The ends of messages; clocks are processes."""
    flow = np.arange(1, messages.src.size + 1, dtype=np.uint64)
    ends = [(messages.send_ns, messages.src, False), (messages.receive_ns, messages.dst, True)]
    parts = [
        Sample(
            flow,
            (times - BASE_NS + BOOT).astype(np.uint64),
            clock.astype(np.int32),
            np.full(flow.size, is_receive),
        )
        for times, clock, is_receive in ends
    ]
    return Sample.joined(parts)


def found(world, **options):
    truth = Truth(world)
    run = run_of(world.clocks, int(world.seconds), **options)
    before = calibrated(run)
    sample = sample_of(truth.messages)
    return truth, run, before, sample, corrected(before, sample, run)


def test_maps_are_right_to_the_bound_and_in_order():
    truth, _, before, sample, after = found(World(4, full(4), offset_ns=1e6, step=(2, 4.0, 5e6)))
    rows = after.hosts.to_pylist()
    reference = [row["host"] for row in rows].index(rows[0]["reference"])
    for proc, row in enumerate(rows):
        t = np.array([1e9, 3e9, 6e9, 9.5e9])
        shown, right = (truth.clock(one, t) for one in (proc, reference))
        tsc = (shown - BASE_NS + BOOT).astype(np.uint64)
        made, unknown = unix_ns(after, tsc, np.full(t.size, proc, np.int32))
        assert unknown == 0 and np.abs(made - right).max() <= row["bound_ns"] + 3
        every = np.arange(0, 10**10, 7_654_321, dtype=np.int64) + BOOT
        made, _ = unix_ns(after, every.astype(np.uint64), np.full(every.size, proc, np.int32))
        assert (np.diff(made) >= 0).all()  # no map runs backwards
    assert [row["steps"] for row in rows] == [0, 0, 1, 0]
    told = after.ledger["messages"]
    t_ns, _ = unix_ns(before, sample.t_tsc, sample.proc)
    send, receive = sample.pairs()
    assert told["received_before_sent"] == (t_ns[send] > t_ns[receive]).sum() > 0
    assert told["received_before_sent_after"] == 0
    assert sum(row["violations_before"] for row in rows) == 2 * told["received_before_sent"]
    assert any("node2: steps, or drifts otherwise" in line for line in lines_of(after))


def test_facts_and_chunks_are_in_corrected_time():
    chunk = {"schema": 0, "count": 5, "first_tsc": BOOT + 10**9, "last_tsc": BOOT + 2 * 10**9}
    truth = Truth(World(2, full(2), offset_ns=1e9))
    run = run_of(2)
    run = run.with_results(
        {"chunks": make_run(chunks=[{"proc": p, **chunk} for p in (0, 1)]).tables["chunks"]}
    )
    clocks = corrected(calibrated(run), sample_of(truth.messages), run)
    moved = 1 - [r["host"] for r in clocks.hosts.to_pylist()].index(
        clocks.ledger["messages"]["reference"]
    )
    bound = clocks.hosts["bound_ns"][moved].as_py()
    t = np.array([0, 10**9, 2 * 10**9]) + BASE_NS - truth.offset[moved]  # true, about
    right = truth.clock(1 - moved, (t - BASE_NS) / (1 + truth.drift[moved]))
    assert np.abs(clocks.span_ns[moved, 0] - right[0]) <= bound + 3
    rows = [row for row in clocks.chunks.to_pylist() if row["proc"] == moved]
    assert abs(rows[0]["first_ns"] - right[1]) <= bound + 3
    assert abs(rows[0]["last_ns"] - right[2]) <= bound + 3
    assert clocks.facts["base_ns"] == clocks.span_ns[:, 0].min()
    assert clocks.facts["last_ns"] == clocks.span_ns[:, 1].max()
    errors = column(clocks.quality, "error_ns")
    assert errors[1 - moved] < 100 and bound <= errors[moved] < bound + 100


def test_corrected_too_the_run_reaches_to_the_last_event():
    chunk = {"schema": 0, "count": 5, "first_tsc": BOOT + 10**9, "last_tsc": BOOT + 10**12}
    run = run_of(2)
    chunks = make_run(chunks=[{"proc": p, **chunk} for p in (0, 1)]).tables["chunks"]
    run = run.with_results({"chunks": chunks})
    messages = Truth(World(2, full(2), offset_ns=1e9)).messages
    clocks = corrected(calibrated(run), sample_of(messages), run)
    assert clocks.hosts.num_rows
    beyond_ns = clocks.facts["last_ns"] - column(clocks.chunks, "last_ns").max()
    assert 0 <= beyond_ns < 1000  # 1000 s behind the last message


def test_hosts_that_cannot_be_tied_are_named():
    """3 only receives, 4 says nothing."""
    _, _, _, _, after = found(World(5, [*full(3), (0, 3)], offset_ns=1e6, seed=3))
    rows = {row["host"]: row for row in after.hosts.to_pylist()}
    assert [row["tied"] for row in rows.values()] == [True] * 3 + [False] * 2
    assert np.isinf([rows[f"node{n}"]["bound_ns"] for n in (3, 4)]).all()
    assert rows["node4"]["messages"] == 0 and rows["node4"]["offset_ns"] == 0
    lines = list(lines_of(after))
    assert "3 of 5 hosts to node" in lines[0]
    assert "node4: as it is: no message" in lines[1]
    assert "node3: corrected without a bound: messages lead in one direction alone" in lines[2]
    told = after.ledger["messages"]
    assert told["no_messages"] == {"count": 1, "first": ["node4"]}
    assert told["one_sided"] == {"count": 1, "first": ["node3"]}
    assert np.isinf(column(after.quality, "error_ns")).tolist() == [False] * 3 + [True] * 2


def test_a_process_that_was_not_calibrated_is_tied_by_messages():
    """Its clock is taken from the start of its file: off by its uptime, 11 days."""
    truth = Truth(World(3, star(3), seed=6))
    run, sample = run_of(3, without_pairs=(2,)), sample_of(truth.messages)
    ends = [truth.clock(2, np.array([at]))[0] - BASE_NS + BOOT for at in (1e9, 9e9)]
    chunk = {"proc": 2, "schema": 0, "count": 5, "first_tsc": ends[0], "last_tsc": ends[1]}
    run = run.with_results({"chunks": make_run(chunks=[chunk]).tables["chunks"]})
    before = calibrated(run)
    after = corrected(before, sample, run)
    assert column(before.quality, "calibrated").tolist() == [True, True, False]
    shown = truth.clock(2, np.array([1e9, 9e9]))
    tsc = (shown - BASE_NS + BOOT).astype(np.uint64)
    wrong, _ = unix_ns(before, tsc, np.full(2, 2, np.int32))
    made, _ = unix_ns(after, tsc, np.full(2, 2, np.int32))
    rows = after.hosts.to_pylist()
    reference = [row["host"] for row in rows].index(rows[2]["reference"])
    right = truth.clock(reference, np.array([1e9, 9e9]))
    assert np.abs(wrong - right).min() > 10**14
    assert rows[2]["tied"] and reference != 2
    assert np.abs(made - right).max() <= rows[2]["bound_ns"] + 3
    assert after.ledger["messages"]["received_before_sent_after"] == 0
    assert (after.span_ns[2] == made).all() and rows[2]["bound_ns"] < 1e5
    assert after.facts["base_ns"] == after.span_ns[:2, 0].min()


@pytest.mark.parametrize("pairs_at", [(0, 600_000_000), (0,)])
@pytest.mark.parametrize("hz", [(0.99e9, 1.033e9), (1.03e9, 0.99e9), (1e9, 1.61e9)])
def test_short_runs_whose_headers_are_wrong_have_no_early_message_left(hz, pairs_at):
    """A ping-pong of 60 ms: clocks are read at begin and end, or once, of processes killed."""
    truth = Truth(World(2, full(2), 40, seconds=0.06, least_ns=(3e5, 4e5), queue_ns=2e5, seed=9))
    run = run_of(2, hz=hz, pairs_at=pairs_at)
    before = calibrated(run)
    after = corrected(before, sample_of(truth.messages), run)
    told = after.ledger["messages"]
    assert told["received_before_sent"] > 0 and told["left_aside"] == 0
    assert told["received_before_sent_after"] == told["worst_violation_after_ns"] == 0
    rows = after.hosts.to_pylist()
    ends = [truth.clock(one, np.linspace(0, 6e7, 50)) - BASE_NS + BOOT for one in (0, 1)]
    made = [
        unix_ns(after, t.astype(np.uint64), np.full(50, n, np.int32))[0] for n, t in enumerate(ends)
    ]
    assert np.abs(made[1] - made[0]).max() <= max(row["bound_ns"] for row in rows) + 3
    assert [row["violations_after"] for row in rows] == [0, 0]


def test_what_contradicts_itself_is_counted_before_and_after_and_against_the_stated_error():
    truth = Truth(World(2, full(2), offset_ns=1e6))
    receive_ns = truth.messages.receive_ns.copy()
    receive_ns[100:900:50] -= 30_000_000  # wrong matches, which no clock explains
    wrong = sample_of(replace(truth.messages, receive_ns=receive_ns))
    run = run_of(2)
    after = corrected(calibrated(run), wrong, run)
    told = after.ledger["messages"]
    t_ns, _ = unix_ns(after, wrong.t_tsc, wrong.proc)
    send, receive = wrong.pairs()
    early = t_ns[send] - t_ns[receive]
    assert told["received_before_sent_after"] == (early > 0).sum() == 16
    assert told["beyond_error_after"] == 16
    assert told["worst_violation_after_ns"] == early.max() > 29_000_000
    assert told["worst_violation_ns"] > 29_000_000
    (line,) = [one for one in lines_of(after) if "after" in one]
    assert line.endswith(
        " before, 16 after; of these 16 by more than the stated errors, at most by "
        f"{count_text(early.max())} ns"
    )


@pytest.mark.parametrize(("late_ns", "beyond"), [(0, 0), (-20, 0), (-500, 3)])
def test_only_what_is_beyond_the_error_of_calibration_calls_for_a_correction(late_ns, beyond):
    truth = Truth(World(2, full(2), offset_ns=0, drift_ppm=0))
    receive_ns = truth.messages.receive_ns.copy()
    receive_ns[:3] = truth.messages.send_ns[:3] + late_ns
    sample = sample_of(replace(truth.messages, receive_ns=receive_ns))
    clocks = check(calibrated(run_of(2)), sample)
    told = clocks.ledger["messages"]
    assert told["looked_at"] == truth.messages.src.size
    assert told["received_before_sent"] == (3 if late_ns < 0 else 0)
    assert told["beyond_error"] == beyond and told["worst_violation_ns"] == -late_ns
    other = CheckedClock().instead(clocks)
    assert (other is None) == (beyond == 0) and not list(lines_of(clocks))
    if other is not None:
        assert isinstance(other[0], MessageClock)
        assert other[1].startswith(
            "3 of 1 000 messages between hosts received before they were sent"
        )


@pytest.mark.parametrize(
    ("links", "names"),
    [
        (full(3), ""),
        ([(0, 1), (1, 2), (2, 0)], ""),
        ([(0, 1), (1, 0)], "node2"),
        ([(0, 1), (1, 2)], "node0, node1, node2"),
        ([(0, 1)], "node0, node1, node2"),
    ],
)
def test_hosts_without_messages_in_both_directions_are_named(links, names):
    truth = Truth(World(3, links, offset_ns=0, drift_ppm=0))
    clocks = check(calibrated(run_of(3)), sample_of(truth.messages))
    lines = list(lines_of(clocks))
    assert [line.partition(":")[0].strip() for line in lines] == ([names] if names else [])
    assert all("not compared with other hosts" in line for line in lines)


def test_one_clock_has_nothing_to_be_compared_with():
    clocks = check(calibrated(run_of(1)), Sample.none())
    assert clocks.ledger["messages"]["not_checked"]["count"] == 0 and not list(lines_of(clocks))


def test_without_messages_clocks_stay():
    run = run_of(2)
    clocks = calibrated(run)
    after = corrected(clocks, Sample.none(), run)
    t = np.arange(BOOT, BOOT + 10**10, 10**8).astype(np.uint64)
    for proc in (0, 1):
        procs = np.full(t.size, proc, np.int32)
        assert (unix_ns(after, t, procs)[0] == unix_ns(clocks, t, procs)[0]).all()
    assert list(lines_of(after)) == [
        "clocks     not corrected: no message between hosts was seen at both ends"
    ]


def test_which_stage_works_by_which_method():
    assert type(Clock("calibration")) is Clock and type(Clock()) is CheckedClock
    assert type(Clock("messages")) is MessageClock and MessageClock("messages").summary == "before"
    assert [Clock(how).is_summed for how in ("calibration", "auto", "messages")] == [
        False,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="auto, calibration, messages"):
        Clock("ptp")


ISLANDS = [(0, 1), (1, 0), (1, 2), (2, 0), (3, 4), (4, 3)]


@pytest.mark.parametrize("bridge", [[], [(2, 3)]])
def test_hosts_in_groups_apart_are_named_though_they_have_messages_both_ways(bridge):
    truth = Truth(World(5, [*ISLANDS, *bridge], offset_ns=0, drift_ppm=0))
    clocks = check(calibrated(run_of(5)), sample_of(truth.messages))
    assert clocks.ledger["messages"]["not_checked"] == {"count": 2, "first": ["node3", "node4"]}
    assert ["not compared" in line for line in lines_of(clocks)] == [True]


def test_groups_apart_are_not_said_to_have_messages_in_one_direction_alone():
    run = run_of(5)
    truth = Truth(World(5, ISLANDS, offset_ns=1e6))
    told = corrected(calibrated(run), sample_of(truth.messages), run).ledger["messages"]
    assert told["apart"] == {"count": 2, "first": ["node3", "node4"]}
    assert told["tied"] == 3
    assert [told[key]["count"] for key in ("one_sided", "no_messages", "contradictory")] == [0] * 3


@given(
    clocks=st.integers(1, 7),
    links=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14),
)
def test_who_is_compared_is_who_is_reached_there_and_back(clocks, links):
    links = [(a, b) for a, b in links if a != b and max(a, b) < clocks]
    reach = {one: {one} for one in range(clocks)}
    for _ in range(clocks):
        for a, b in links:
            for found in reach.values():
                found |= {b} if a in found else set()
    groups = [{b for b in reach[a] if a in reach[b]} for a in range(clocks)]
    src, dst = np.array(links, np.int64).reshape(-1, 2).T
    found = set(np.flatnonzero(compared(src, dst, clocks)).tolist())
    most = max(map(len, groups))
    assert found in groups and len(found) == most if most > 1 else not found


def test_one_message_each_way_is_not_said_to_be_a_contradiction_alone():
    run = run_of(2)
    messages = Messages(
        *(np.array(ends, np.int64) for ends in ([0, 1], [1, 0])),
        BASE_NS + np.array([10**9, 2 * 10**9]),
        BASE_NS + np.array([10**9 + 5000, 2 * 10**9 - 3000]),
    )
    clocks = corrected(calibrated(run), sample_of(messages), run)
    told = clocks.ledger["messages"]
    assert told["received_before_sent"] == 1 and told["received_before_sent_after"] == 0
    assert told["contradictory"]["count"] == 1 == told["tied"]
    assert "its messages are too few, or contradict each other" in list(lines_of(clocks))[1]
