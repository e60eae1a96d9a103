from __future__ import annotations

import functools
from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.stages.traffic import BINS, Traffic, bin_shift
from sigmatrace.trace_format import Layer, Op, OpFlag
from tests.factories import START_NS, make_partition, make_run

ROUTES = {
    "src_proc": np.array([0, 1], np.int32),
    "dst_proc": np.array([1, -1], np.int32),
}


def run_of(channels=2):
    import pyarrow as pa

    run = make_run(
        processes=[{}, {}], channels=[{"layer": Layer.UCP}, {"layer": Layer.OFI}][:channels]
    )
    return run.with_results({"routes": pa.table(ROUTES)})


def part(number, rows, aggregates=()):
    """Rows: (t, proc, src, dst, layer, op, depth, size, flags)."""
    names = ("t_ns", "proc", "src_proc", "dst_proc", "layer", "op", "depth", "size_bytes", "flags")
    dtypes = ("i8", "i4", "i4", "i4", "u1", "u1", "u1", "u8", "u1")
    ops = {
        name: np.array([row[i] for row in rows], dtype)
        for i, (name, dtype) in enumerate(zip(names, dtypes, strict=True))
    }
    return make_partition(number, ops=ops, aggregates=list(aggregates))


def traffic(*parts, order=None):
    stage = Traffic()
    summaries = [stage.summarize(one) for one in parts]
    merged = functools.reduce(stage.combine, [summaries[k] for k in order or range(len(parts))])
    resolved = stage.resolve(merged, run_of())
    tables = stage.results(resolved)
    return (
        tables["traffic"].to_pylist(),
        tables["timeline"].to_pylist(),
        stage.facts(resolved),
        stage.account(resolved),
    )


def test_operations_and_aggregates_meet_in_one_row():
    rows = [
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 100, 0),
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 0, OpFlag.SIZE_UNKNOWN),
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 2, 7, 0),
        (START_NS, 1, 0, 1, Layer.UCP, Op.RECV, 0, 100, 0),
        (START_NS, 1, 1, 0, Layer.UCP, Op.GET, 0, 5, 0),
    ]
    aggregates = [
        {"channel": 0, "op": Op.SEND, "count": 10, "size_bytes": 1000},
        {"channel": 1, "op": Op.PUT, "count": 2, "size_bytes": 2**63},
        {"channel": 1, "op": Op.PUT, "count": 1, "size_bytes": 2**63},
        {"channel": 9, "op": Op.PUT, "count": 1, "size_bytes": 3},
        {"channel": 0, "op": Op.SEND, "count": 0, "size_bytes": 0},
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
        (0, 1, Layer.UCP, Op.SEND, 0): (12, 1100, 1),
        (0, 1, Layer.UCP, Op.SEND, 1): (1, 7, 0),
        (0, 1, Layer.UCP, Op.RECV, 0): (1, 100, 0),
        (0, 1, Layer.UCP, Op.GET, 0): (1, 5, 0),  # its bytes flow back
        (1, -1, Layer.OFI, Op.PUT, 0): (3, 2**64 - 1, 0),
        (-1, -1, 0, Op.PUT, 0): (1, 3, 0),
    }
    assert len(table) == len(got)
    assert account["operations"] == account["in_timeline"] == sum(r["count"] for r in timeline) == 5
    assert account["aggregated_operations"] == 14
    assert account["size_bytes"] == 212 + 1003 + 2**64
    assert account["byte_sums_beyond_u64"] == 1
    sides = {one["right"]: one["left"] for one in account["balance"]}
    assert sides == {
        "records.op": 5,
        "capture.aggregated_operations": 14,
        "capture.aggregated_bytes": 1003 + 2**64,
    }


def test_the_closing_lines_name_the_pairs_with_most_bytes_of_each_layer():
    rows = [
        (START_NS, 0, 0, 1, Layer.UCP, Op.SEND, 0, 2048, 0),
        (START_NS, 1, 0, 1, Layer.UCP, Op.RECV, 0, 9999, 0),
        (START_NS, 1, 1, 0, Layer.UCP, Op.PUT, 0, 4096, 0),
        (START_NS, 1, 1, 0, Layer.UCP, Op.PUT, 0, 4096, 0),
        (START_NS, 0, 0, -1, Layer.UCT, Op.SEND, 0, 1, 0),
        (START_NS, 0, 0, 1, Layer.UCT, Op.SEND, 1, 7777, 0),
    ]
    stage, run = Traffic(), run_of()
    resolved = stage.resolve(stage.summarize(part(0, rows)), run)
    assert stage.lines(resolved, run.with_results(stage.results(resolved))) == [
        "top ucp    rank 1 -> rank 0: 8 KiB in 2 operations",
        "           rank 0 -> rank 1: 2 KiB in 1 operation",
        "top uct    rank 0 -> unknown: 1 B in 1 operation",
    ]


def test_aggregates_alone():
    table, timeline, facts, _ = traffic(
        part(0, [], [{"channel": 0, "op": Op.SEND, "count": 4, "size_bytes": 40}])
    )
    assert [row["count"] for row in table] == [4]
    assert timeline == [] and facts["timeline_ns"] == 0


ROW = st.tuples(
    st.one_of(st.integers(0, 10**5), st.integers(0, 10**13)),
    st.integers(0, 2),
    st.integers(-1, 2),
    st.integers(-1, 2),
    st.integers(0, 3),
    st.integers(1, 9),
    st.integers(0, 1),
    st.sampled_from([0, 1, 4096, 2**62]),
    st.sampled_from([0, 1, 32, 33]),
)


@settings(max_examples=60)
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
    for t, proc, src, dst, layer, op, depth, size, flags in rows:
        ends = (dst, src) if op == Op.GET else (src, dst)
        pair = pairs[(*ends, layer, op, depth)]
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


@given(st.integers(0, 2**61), st.integers(0, 2**61))
def test_bins_are_as_narrow_as_their_number_allows(first, more):
    shift = bin_shift(first, first + more)
    assert ((first + more) >> shift) - (first >> shift) < BINS
    if shift > 10:
        assert ((first + more) >> (shift - 1)) - (first >> (shift - 1)) >= BINS
