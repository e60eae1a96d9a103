from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.schema import STAGE_TABLES, TIMELINE_BINS
from sigmatrace.stages.traffic import Traffic
from sigmatrace.stages.traffic_sums import bin_shift
from sigmatrace.trace_format import Layer, Op, OpFlag
from tests.factories import START_NS, make_partition, make_run, make_table, two_by_two

# Process, source, destination, layer: a channel of each combination.
CHANNELS = list(itertools.product(range(3), range(-1, 3), range(-1, 3), range(5)))
ANY = (0, 2**64 - 1)


def channel(proc, src, dst, layer):
    return CHANNELS.index((proc, src, dst, layer))


def thing(number):
    """Two endpoints take turns."""
    return 5 + number % 2


@functools.cache
def run_of():
    channels = [
        {"proc": proc, "object": thing(number), "layer": layer}
        for number, (proc, _, _, layer) in enumerate(CHANNELS)
    ]
    routes = [
        {
            "src_proc": src,
            "dst_proc": dst,
            "src_name": f"end {src}",
            "dst_name": f"end {dst} of {thing(number)}",
        }
        for number, (_, src, dst, _) in enumerate(CHANNELS)
    ]
    run = make_run(processes=[{}, {}], channels=channels)
    return run.with_results({"routes": make_table(STAGE_TABLES["routes"], routes)})


def part(number, rows, aggregates=()):
    """Rows: (t, proc, src, dst, layer, op, depth, size, flags); no number depends on the depth."""
    names = ("t_ns", "proc", "src_proc", "dst_proc", "layer", "op", "depth", "size_bytes", "flags")
    dtypes = ("i8", "i4", "i4", "i4", "u1", "u1", "u1", "u8", "u1")
    ops = {
        name: np.array([row[i] for row in rows], dtype)
        for i, (name, dtype) in enumerate(zip(names, dtypes, strict=True))
    }
    ops["channel"] = np.array([channel(*row[1:5]) for row in rows], "u4")
    return replace(make_partition(number, ops=ops, aggregates=list(aggregates)), run=run_of())


def resolved_of(*parts, order=None):
    stage = Traffic()
    summaries = [stage.summarize(one) for one in parts]
    merged = two_by_two(stage, [summaries[k] for k in order or range(len(parts))])
    return stage.resolve(merged, run_of())


def traffic(*parts, order=None):
    stage, resolved = Traffic(), resolved_of(*parts, order=order)
    tables = stage.results(resolved)
    for name, table in tables.items():
        want = make_table(STAGE_TABLES[name], []).schema
        assert table.schema.equals(want), name
    return (
        tables["traffic"].to_pylist(),
        tables["timeline"].to_pylist(),
        stage.facts(resolved),
        stage.account(resolved),
    )


def sizes(*parts, order=None):
    return resolved_of(*parts, order=order).tables["sizes"].to_pylist()


def test_operations_and_aggregates_meet_in_one_row():
    rows = [
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 100, 0),
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 0, OpFlag.SIZE_UNKNOWN),
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 2, 7, OpFlag.NESTED),
        (START_NS, 1, 0, 1, Layer.UCP, Op.RECV, 0, 100, 0),
        (START_NS, 1, 0, 1, Layer.UCP, Op.RECV, 1, 50, OpFlag.NESTED | OpFlag.INLINE),
        (START_NS, 1, 0, 1, Layer.UCT, Op.SEND, 1, 60, 0),
        (START_NS, 1, 1, 0, Layer.UCP, Op.GET, 0, 5, 0),
    ]
    near, far = channel(0, 0, 1, Layer.UCP), channel(1, 1, -1, Layer.OFI)
    below = {"channel": near, "op": Op.SEND, "size_bits": 1, "count": 2, "size_bytes": 2}
    aggregates = [
        {"channel": near, "op": Op.SEND, "size_bits": 7, "count": 10, "size_bytes": 1000},
        {"channel": near, "op": Op.SEND, "size_bits": 255, "count": 3, "size_bytes": 0},
        {**below, "depth": 1, "flags": OpFlag.NESTED},
        {**below, "depth": 1, "flags": 0},
        {"channel": far, "op": Op.PUT, "size_bits": 63, "count": 2, "size_bytes": 2**63},
        {"channel": far, "op": Op.PUT, "size_bits": 64, "count": 1, "size_bytes": 2**63},
        {"channel": 9999, "op": Op.PUT, "size_bits": 2, "count": 1, "size_bytes": 3},
        {"channel": near, "op": Op.SEND, "size_bits": 7, "count": 0, "size_bytes": 0},
    ]
    table, timeline, _, account = traffic(part(0, rows, aggregates))
    got = {
        (r["src_proc"], r["dst_proc"], r["layer"], r["op"], r["nested"]): (
            r["count"],
            r["size_bytes"],
            r["size_unknown"],
        )
        for r in table
    }
    assert got == {
        (0, 1, Layer.UCP, Op.SEND, 0): (17, 1102, 4),
        (0, 1, Layer.UCP, Op.SEND, 1): (3, 9, 0),
        (0, 1, Layer.UCP, Op.RECV, 0): (1, 100, 0),
        (0, 1, Layer.UCP, Op.RECV, 1): (1, 50, 0),
        (0, 1, Layer.UCT, Op.SEND, 0): (1, 60, 0),
        (0, 1, Layer.UCP, Op.GET, 0): (1, 5, 0),  # its bytes flow back
        (1, -1, Layer.OFI, Op.PUT, 0): (3, 2**64 - 1, 0),
        (-1, -1, 0, Op.PUT, 0): (1, 3, 0),
    }
    assert len(table) == len(got)
    assert account["operations"] == 7
    assert account["in_timeline"] == sum(r["count"] for r in timeline) == 5
    assert account["aggregated_operations"] == 21
    assert account["size_unknown"] == 4
    assert account["size_bytes"] == 322 + 1007 + 2**64
    assert account["byte_sums_beyond_u64"] == 1
    sides = {one["name"]: (one["left"], one["right"]) for one in account["balance"]}
    assert sides == {
        "operations = op records": (7, "records.op"),
        "aggregated operations = those that aggregate records stand for": (
            21,
            "capture.aggregated_operations",
        ),
        "aggregated bytes = those that aggregate records stand for": (
            1007 + 2**64,
            "capture.aggregated_bytes",
        ),
        "operations by size = operations": (28, [7, 21]),
    }


def test_sizes_of_an_endpoint():
    rows = [
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 100, 0),
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 127, 0),
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 128, 0),
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 0, 0),
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 0, OpFlag.SIZE_UNKNOWN),
        (START_NS, 1, 1, 0, Layer.UCP, Op.GET, 0, 2**64 - 1, 0),
    ]
    near, back = channel(0, 0, 1, Layer.UCP), channel(1, 1, 0, Layer.UCP)
    names = {"src_name": "end 0", "dst_name": f"end 1 of {thing(near)}"}
    ends = {"src_proc": 0, "dst_proc": 1, "layer": Layer.UCP, "nested": 0}
    send = {"proc": 0, "object": thing(near), **ends, **names, "op": Op.SEND}
    assert sizes(part(0, rows)) == [
        {**send, "least_bytes": 0, "most_bytes": 0, "count": 1, "size_bytes": 0},
        {**send, "least_bytes": 0, "most_bytes": 2**64 - 1, "count": 1, "size_bytes": 0},
        {**send, "least_bytes": 64, "most_bytes": 127, "count": 2, "size_bytes": 227},
        {**send, "least_bytes": 128, "most_bytes": 255, "count": 1, "size_bytes": 128},
        {
            **{"proc": 1, "object": thing(back), **ends, "op": Op.GET},
            **{"src_name": f"end 0 of {thing(back)}", "dst_name": "end 1"},
            **{"least_bytes": 2**63, "most_bytes": 2**64 - 1},
            **{"count": 1, "size_bytes": 2**64 - 1},
        },
    ]


def test_a_class_that_no_size_has_is_not_known():
    row = {"channel": 0, "op": Op.SEND, "count": 2, "size_bytes": 9}
    odd = [{**row, "size_bits": bits} for bits in (65, 254)]
    (found,) = sizes(part(0, [], odd))
    assert (found["least_bytes"], found["most_bytes"], found["count"]) == (*ANY, 4)


def test_the_closing_lines_name_the_pairs_with_most_bytes_of_each_layer():
    rows = [
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 2048, 0),
        (START_NS, 1, 0, 1, Layer.UCP, Op.RECV, 0, 9999, 0),
        (START_NS, 1, 1, 0, Layer.UCP, Op.PUT, 0, 4096, 0),
        (START_NS, 1, 1, 0, Layer.UCP, Op.PUT, 0, 4096, 0),
        (START_NS, 0, 0, -1, Layer.UCT, Op.SEND, 0, 1, 0),
        (START_NS, 0, 0, 1, Layer.UCT, Op.SEND, 1, 7777, OpFlag.NESTED),
        (START_NS, 0, 0, 1, Layer.VERBS, Op.SEND, 2, 9000, 0),
    ]
    stage, run = Traffic(), run_of()
    resolved = stage.resolve(stage.summarize(part(0, rows)), run)
    assert stage.lines(resolved, run.with_results(stage.results(resolved))) == [
        "top ucp    rank 1 -> rank 0: 8 KiB in 2 operations",
        "           rank 0 -> rank 1: 2 KiB in 1 operation",
        "top uct    rank 0 -> unknown: 1 B in 1 operation",
        "top verbs  rank 0 -> rank 1: 8.79 KiB in 1 operation",
    ]


def test_sums_beyond_64_bits_are_told():
    rows = [(START_NS, 0, 0, 1, Layer.UCP, op, 0, 2**63, 0) for op in (Op.SEND, Op.SEND, Op.PUT)]
    stage, run = Traffic(), run_of()
    resolved = stage.resolve(stage.summarize(part(0, rows)), run)
    assert stage.lines(resolved, run.with_results(stage.results(resolved))) == [
        "sums       3 sums of bytes are beyond 64 bits and told as 16 EiB: sizes must be wrong",
        "top ucp    rank 0 -> rank 1: 16 EiB in 3 operations",
    ]


def test_aggregates_alone():
    row = {"channel": 0, "op": Op.SEND, "size_bits": 4, "count": 4, "size_bytes": 40}
    table, timeline, facts, _ = traffic(part(0, [], [row]))
    assert [row["count"] for row in table] == [4]
    assert timeline == [] and facts["timeline_ns"] == 0


def test_nothing():
    table, timeline, _, account = traffic(part(0, []))
    assert table == timeline == sizes(part(0, [])) == []
    assert account["operations"] == account["size_bytes"] == 0


ROW = st.tuples(
    st.one_of(st.integers(0, 10**5), st.integers(0, 10**13)),
    st.integers(0, 2),
    st.integers(-1, 2),
    st.integers(-1, 2),
    st.integers(0, 3),
    st.integers(1, 9),
    st.integers(0, 1),
    st.sampled_from([0, 1, 4095, 4096, 2**62]),
    st.sampled_from([0, 1, 32, 33]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=5), st.randoms())
def test_tables_equal_python_in_whatever_order_partitions_are_merged(pieces, random):
    moved = [[(START_NS + row[0], *row[1:]) for row in rows] for rows in pieces]
    order = list(range(len(pieces)))
    random.shuffle(order)
    table, timeline, facts, _ = traffic(
        *(part(k, rows) for k, rows in enumerate(moved)), order=order
    )
    rows = [row for piece in moved for row in piece]
    pairs, bins = defaultdict(lambda: [0, 0, 0]), defaultdict(lambda: [0, 0])
    first = min((row[0] for row in rows), default=0)
    shift = bin_shift(first, max((row[0] for row in rows), default=0))
    for t, proc, src, dst, layer, op, _, size, flags in rows:
        ends = (dst, src) if op == Op.GET else (src, dst)
        pair = pairs[(*ends, layer, op, flags // OpFlag.NESTED)]
        pair[0], pair[1], pair[2] = pair[0] + 1, pair[1] + size, pair[2] + flags % 2
        if flags < OpFlag.NESTED:
            cell = bins[(t >> shift) - (first >> shift), proc, layer, op]
            cell[0], cell[1] = cell[0] + 1, cell[1] + size
    assert {tuple(r.values())[:5]: list(r.values())[5:] for r in table} == {
        key: [c, min(s, 2**64 - 1), u] for key, (c, s, u) in pairs.items()
    }
    assert {tuple(r.values())[:4]: list(r.values())[4:] for r in timeline} == {
        key: [c, min(s, 2**64 - 1)] for key, (c, s) in bins.items()
    }
    if rows:
        assert facts == {"bin_ns": 1 << shift, "timeline_ns": first >> shift << shift}


def test_bins_are_as_wide_as_all_operations_need_however_they_are_split():
    early = (START_NS, 0, 0, 0, 0, Op.SEND, 0, 0, 0)
    late = [(START_NS + t, *early[1:8], OpFlag.NESTED) for t in (1024, 2097152)]
    facts = [
        traffic(*pieces)[2]
        for pieces in ([part(0, [early, *late])], [part(0, [early]), part(1, late)])
    ]
    assert facts[0] == facts[1]
    assert facts[0]["bin_ns"] == 2048


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=5), st.randoms())
def test_rows_of_the_timeline_are_bounded_the_same_way_in_whatever_order(pieces, random):
    moved = [[(START_NS + row[0], *row[1:]) for row in rows] for rows in pieces]
    order = list(range(len(pieces)))
    random.shuffle(order)
    parts = [part(k, rows) for k, rows in enumerate(moved)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sigmatrace.stages.traffic.TIMELINE_CELLS", 9)
        one = traffic(part(0, [row for rows in moved for row in rows]))[1:3]
        shuffled = traffic(*parts, order=order)[1:3]
    assert one == shuffled
    timeline, _ = one
    kinds = {(row["proc"], row["layer"], row["op"]) for row in timeline}
    outer = [row for rows in moved for row in rows if row[8] < OpFlag.NESTED]
    assert sum(row["count"] for row in timeline) == len(outer)
    assert len(timeline) <= max(9, len(kinds))
    assert len({row["bin"] for row in timeline}) <= TIMELINE_BINS


@settings(max_examples=30, deadline=None)
@given(st.lists(ROW, max_size=40))
def test_tables_do_not_depend_on_the_blocks_in_which_they_are_made(rows):
    one = part(0, [(START_NS + row[0], *row[1:]) for row in rows])
    want = sizes(one), traffic(one)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sigmatrace.stages.traffic_tables.BLOCK", 1)
        assert (sizes(one), traffic(one)[0]) == want


def as_aggregates(rows):
    """The rows that mode ``aggregate`` records of these, a thread for three (no sum overflows)."""
    count, size_bytes = Counter(), Counter()
    for number, (_, proc, src, dst, layer, op, depth, size, flags) in enumerate(rows):
        bits = 255 if flags & OpFlag.SIZE_UNKNOWN else size.bit_length()
        key = channel(proc, src, dst, layer), op, bits, depth, flags & OpFlag.NESTED, number // 3
        count[key] += 1
        size_bytes[key] += size
    names = ("channel", "op", "size_bits", "depth", "flags", "thread")
    return [
        {**dict(zip(names, key, strict=True)), "count": count[key], "size_bytes": size_bytes[key]}
        for key in count
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=5), st.randoms())
def test_sizes_equal_python_in_every_mode_and_order(pieces, random):
    moved = [[(START_NS + row[0], *row[1:]) for row in rows] for rows in pieces]
    order = list(range(len(pieces)))
    random.shuffle(order)
    singly = sizes(*(part(k, rows) for k, rows in enumerate(moved)), order=order)
    assert singly == sizes(*(part(k, [], as_aggregates(rows)) for k, rows in enumerate(moved)))
    want = defaultdict(lambda: [0, 0])
    for _, proc, src, dst, layer, op, _, size, flags in itertools.chain(*moved):
        ends = (dst, src) if op == Op.GET else (src, dst)
        bits = size.bit_length()
        limits = ANY if flags % 2 else (2**bits // 2, 2**bits - 1)
        number = channel(proc, src, dst, layer)
        cell = want[proc, thing(number), *ends, layer, op, flags // OpFlag.NESTED, *limits]
        cell[0], cell[1] = cell[0] + 1, cell[1] + size
    got = {}
    for row in singly:
        names = ("proc", "object", "src_proc", "dst_proc", "layer", "op", "nested")
        key = *(row[name] for name in names), row["least_bytes"], row["most_bytes"]
        got[key] = [row["count"], row["size_bytes"]]
    assert len(got) == len(singly)
    assert got == {key: [count, min(size, 2**64 - 1)] for key, (count, size) in want.items()}


@given(st.integers(0, 2**61), st.integers(0, 2**61))
def test_bins_are_as_narrow_as_their_number_allows(first, more):
    shift = bin_shift(first, first + more)
    assert ((first + more) >> shift) - (first >> shift) < TIMELINE_BINS
    if shift > 10:
        assert ((first + more) >> (shift - 1)) - (first >> (shift - 1)) >= TIMELINE_BINS
