from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.schema import NO_GROUP, STAGE_TABLES, Fate
from sigmatrace.stages.clock_sample import PAIR_QUOTA, Rule, Sample, messages_of
from sigmatrace.stages.match import Match
from sigmatrace.trace_format import Dir, Layer, Op, OpFlag, Schema
from tests.factories import make_partition, make_run, make_table

EVERYTHING = 1 << 30
KINDS = pytest.mark.parametrize("sample_of", [Sample.of, Sample.of_few])
CLOCKS = np.array([0, 0, 1, 2], np.int32)  # of processes 0 to 3


def run_of(streams, messages=1000):
    """A run with an out-channel and an in-channel for each (src, dst, more of its route)."""
    channels, routes = [], []
    for group, (src, dst, *more) in enumerate(streams):
        for direction, proc in ((Dir.OUT, src), (Dir.IN, dst)):
            number = len(channels)
            channels.append({"channel": number, "proc": proc, "dir": direction, "layer": Layer.UCP})
            route = {"channel": number, "src_proc": src, "dst_proc": dst, "group": group}
            routes.append({**route, **(more[0] if more else {})})
    chunks = [{"proc": 0, "schema": Schema.OP, "count": messages}]
    run = make_run(processes=[{}] * 4, channels=channels, chunks=chunks)
    return run.with_results({"routes": make_table(STAGE_TABLES["routes"], routes)})


def part_of(run, rows):
    """A partition of operations (channel, op, ordinal, aux, flags), at times by their place."""
    names = ("channel", "op", "ordinal", "aux", "flags")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    proc = run.column("channels", "proc")
    more = {"t_tsc": range(1000, 1000 + len(rows)), "proc": [proc[row[0]] for row in rows]}
    part = make_partition(ops={**columns, **more} if rows else [])
    return type(part)(part.number, part.tables, frozenset(), run)


def both_ends(channel, count, flags=0):
    """Sends on a channel and receives on the next one."""
    sends = [(channel, Op.SEND, k, 0, flags) for k in range(count)]
    return [*sends, *((channel + 1, Op.RECV, k, k, flags) for k in range(count))]


@KINDS
def test_all_messages_between_clocks_are_taken_where_there_is_room(sample_of):
    run = run_of([(0, 2), (0, 1), (3, 2)])
    part = part_of(run, [row for channel in (0, 2, 4) for row in both_ends(channel, 20)])
    sample = sample_of(part, Rule.of(run, CLOCKS, EVERYTHING))
    flow = Match().apply(part, None).column("ops", "flow")
    chosen = np.flatnonzero(np.isin(part.column("ops", "channel"), (0, 1, 4, 5)))
    assert sample.flow.tolist() == flow[chosen].tolist()
    assert sample.t_tsc.tolist() == part.column("ops", "t_tsc")[chosen].tolist()
    assert sample.proc.tolist() == part.column("ops", "proc")[chosen].tolist()
    messages = messages_of(sample, sample.t_tsc.astype(np.int64), CLOCKS)
    assert sorted(zip(messages.src, messages.dst, strict=True)) == [(0, 1)] * 20 + [(2, 1)] * 20
    assert (messages.receive_ns - messages.send_ns == 20).all()


@KINDS
@pytest.mark.parametrize(
    "route",
    [
        {"lossy": 1},
        {"fate": Fate.ONE_SIDED},
        {"fate": Fate.SOURCE_AMBIGUOUS},
        {"group": NO_GROUP},
        {"dst_proc": -1},
        {"dst_proc": 1},
    ],
)
def test_what_is_not_to_be_trusted_is_not_taken(sample_of, route):
    run = run_of([(0, 2, route)])
    rule = Rule.of(run, CLOCKS, EVERYTHING)
    assert rule.is_empty
    assert sample_of(part_of(run, both_ends(0, 5)), rule).flow.size == 0


@KINDS
@pytest.mark.parametrize("flag", [OpFlag.FAILED, OpFlag.ORDER_UNCERTAIN])
def test_single_messages_that_are_not_sure_are_not_taken(sample_of, flag):
    run = run_of([(0, 2)])
    rule = Rule.of(run, CLOCKS, EVERYTHING)
    assert sample_of(part_of(run, both_ends(0, 5, flag)), rule).flow.size == 0
    others = [(0, Op.PUT, 0, 0, 0), (0, Op.FLUSH, 1, 0, 0), (0, Op.PUT_DATA, 2, 0, 0)]
    assert sample_of(part_of(run, others), rule).flow.size == 1


def test_arrivals_are_taken_in_the_order_of_posting():
    run = run_of([(0, 2)])
    rows = both_ends(0, 6)
    for place, (ordinal, aux) in zip((8, 9), ((2, 3), (3, 2)), strict=True):
        rows[place] = (1, Op.RECV, ordinal, aux, 0)
    part = part_of(run, rows)
    sample = Sample.of(part, Rule.of(run, CLOCKS, EVERYTHING))
    assert sample.flow.tolist() == Match().apply(part, None).column("ops", "flow").tolist()
    assert sample.flow[8] == sample.flow[3]


@KINDS
@settings(max_examples=25, deadline=None, database=None)
@given(st.integers(1, 6), st.integers(0, 400), st.integers(64, 4096), st.integers(0, 2**31))
def test_both_ends_decide_alike_wherever_they_lie(sample_of, streams, count, ends, seed):
    pairs = [(0, 2), (2, 0), (3, 0), (1, 3), (0, 2), (0, 3)][:streams]
    run = run_of(pairs, messages=2 * streams * count)
    rule = Rule.of(run, CLOCKS, ends)
    rows = [row for stream in range(streams) for row in both_ends(2 * stream, count)]
    rng = np.random.default_rng(seed)
    cut = np.sort(rng.integers(0, len(rows) + 1, 3))
    pieces = [rows[a:b] for a, b in zip([0, *cut], [*cut, len(rows)], strict=True)]
    sample = Sample.none()
    for piece in pieces:
        sample = Sample.joined([sample, sample_of(part_of(run, piece), rule)])
    whole = sample_of(part_of(run, rows), rule)
    assert sorted(sample.flow) == sorted(whole.flow)
    send, receive = sample.pairs()
    assert send.size == receive.size == sample.flow.size / 2
    assert (sample.flow[send] == sample.flow[receive]).all()
    assert not sample.is_receive[send].any() and sample.is_receive[receive].all()


@KINDS
def test_the_size_is_about_what_was_asked_for_and_sparse_pairs_are_kept(sample_of):
    count, few, ends = 200_000, 12, 20_000
    run = run_of([(0, 2), (3, 0)], messages=2 * (count + few))
    rule = Rule.of(run, CLOCKS, ends)
    part = make_partition(
        ops={
            "channel": np.repeat([0, 1, 2, 3], [count, count, few, few]),
            "op": np.repeat([Op.SEND, Op.RECV, Op.SEND, Op.RECV], [count, count, few, few]),
            "ordinal": np.concatenate([np.arange(n) for n in (count, count, few, few)]),
            "aux": np.concatenate([np.arange(n) for n in (count, count, few, few)]),
            "t_tsc": np.arange(2 * (count + few)),
            "proc": np.repeat([0, 2, 3, 0], [count, count, few, few]),
        }
    )
    sample = sample_of(type(part)(0, part.tables, frozenset(), run), rule)
    of_few = (sample.flow >> np.uint64(32)) == 2
    assert of_few.sum() == 2 * few  # all of them
    assert ends * 0.8 < sample.flow.size < ends * 1.5
    ordinal = np.sort(sample.flow[~of_few & ~sample.is_receive].astype(np.uint32))
    assert (ordinal[: PAIR_QUOTA // 2] == np.arange(PAIR_QUOTA // 2)).all()
    assert (np.diff(ordinal) < 500).all() and ordinal[-1] > count - 500


def test_flows_that_begin_anew_are_left_out():
    flow = np.array([5, 5, 5, 7, 7, 9, 8], np.uint64)
    is_receive = np.array([0, 0, 1, 0, 1, 0, 1], bool)
    none = np.zeros(7, np.uint64), np.zeros(7, np.int32)
    send, receive = Sample(flow, *none, is_receive).pairs()
    assert (send.tolist(), receive.tolist()) == ([3], [4])


@KINDS
def test_without_operations_or_routes_nothing_is_taken(sample_of):
    run = run_of([(0, 2)])
    rule = Rule.of(run, CLOCKS, EVERYTHING)
    assert sample_of(part_of(run, []), rule).flow.size == 0
    assert Rule.of(make_run(processes=[{}]), CLOCKS[:1], EVERYTHING).is_empty


def test_a_sample_of_few_of_many_short_streams_is_not_of_all_or_none_of_them():
    streams, each, ends = 4000, 30, 4096
    run = run_of([(0, 2)] * streams, messages=2 * streams * each)
    rule = Rule.of(run, CLOCKS, ends)
    channel = np.repeat(np.arange(2 * streams), each)
    part = make_partition(
        ops={
            "channel": channel,
            "op": np.where(channel % 2, Op.RECV, Op.SEND),
            "ordinal": np.tile(np.arange(each), 2 * streams),
            "aux": np.tile(np.arange(each), 2 * streams),
            "proc": np.where(channel % 2, 2, 0),
        }
    )
    sample = Sample.of_few(type(part)(0, part.tables, frozenset(), run), rule)
    send, receive = sample.pairs()
    assert send.size == receive.size == sample.flow.size / 2
    assert 256 < sample.flow.size < 3 * ends
    assert np.unique(sample.flow >> np.uint64(32)).size > 100


def test_a_sample_of_few_takes_arrivals_as_they_completed():
    run = run_of([(0, 2)])
    rows = both_ends(0, 6)
    rows[8], rows[9] = (1, Op.RECV, 2, 3, 0), (1, Op.RECV, 3, 2, 0)
    sample = Sample.of_few(part_of(run, rows), Rule.of(run, CLOCKS, EVERYTHING))
    send, receive = sample.pairs()
    assert (np.diff(sample.t_tsc[receive].astype(np.int64)) == 1).all()
    assert send.size == 6
