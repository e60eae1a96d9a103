from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.stages.messages import Messages
from sigmatrace.trace_format import Op, OpFlag
from tests.factories import START_NS, make_partition

NAMES = ("flow", "op", "t_ns", "size_bytes", "src_proc", "dst_proc", "flags", "layer", "lossy")
DTYPES = ("u8", "u1", "i8", "u8", "i4", "i4", "u1", "u1", "u1")


def part(number, rows):
    """Rows: (flow, op, t, size, flags, perhaps whether the transport is lossy)."""
    filled = [(f, o, START_NS + t, s, 0, 1, *x[:1], 2, *(x[1:] or [0])) for f, o, t, s, *x in rows]
    ops = {
        name: np.array([row[i] for row in filled], dtype)
        for i, (name, dtype) in enumerate(zip(NAMES, DTYPES, strict=True))
    }
    return make_partition(number, ops=ops)


def exchange(pieces, buckets):
    stage = Messages()
    arrived: dict[int, list] = {}
    for number, rows in enumerate(pieces):
        for bucket, table in stage.split(part(number, rows), buckets).items():
            assert 0 <= bucket < buckets and table.num_rows
            arrived.setdefault(bucket, []).append(table)
    joined = None
    for tables in arrived.values():
        table = stage.join(tables)
        joined = table if joined is None else stage.combine(joined, table)
    return joined, stage


def test_latency_violations_and_sizes():
    flow = 1 << 32
    sends = [(flow + k, Op.SEND, 100 * k, 8, 0) for k in range(6)] + [(0, Op.PUT, 5, 5, 0)]
    receives = [
        (flow, Op.RECV, 30, 8, 0),
        (flow + 1, Op.RECV, 90, 8, 0),
        (flow + 2, Op.RECV, 230, 4, 0),
        (flow + 3, Op.RECV, 330, 0, OpFlag.SIZE_UNKNOWN),
        (flow + 3, Op.RECV, 400, 0, 0),
        (flow + 9, Op.RECV, 0, 0, 0),
    ]
    joined, stage = exchange([sends, receives], 4)
    rows = sorted(joined.to_pylist(), key=lambda row: row["flow"])
    assert [row["latency_ns"] for row in rows] == [30, -10, 30, 30]
    assert [row["sizes_known"] for row in rows] == [True, True, True, False]
    assert rows[0] == {
        "flow": flow,
        "src_proc": 0,
        "dst_proc": 1,
        "layer": 2,
        "size_bytes": 8,
        "received_bytes": 8,
        "sizes_known": True,
        "uncertain": False,
        "send_ns": START_NS,
        "receive_ns": START_NS + 30,
        "latency_ns": 30,
    }
    assert stage.account(joined) == {
        "messages": 4,
        "received_before_sent": 1,
        "worst_violation_ns": 10,
        "violations_by_pair": {"0 to 1": 1},
        "sizes_differ": 1,
        "sizes_not_known": 1,
        "uncertain": 0,
    }


def test_pairs_that_may_be_wrong_say_so():
    """Order that threads, errors or the transport leave open, at either end."""
    flow = 1 << 32
    sends = [(flow + k, Op.SEND, 0, 8, 0) for k in range(4)]
    ends = [(0, 0), (OpFlag.ORDER_UNCERTAIN, 0), (OpFlag.FAILED, 0), (0, 1)]
    receives = [(flow + k, Op.RECV, 1, 8, *end) for k, end in enumerate(ends)]
    joined, stage = exchange([sends, receives], 1)
    rows = sorted(joined.to_pylist(), key=lambda row: row["flow"])
    assert [row["uncertain"] for row in rows] == [False, True, True, True]
    assert stage.account(joined)["uncertain"] == 3


ROW = st.tuples(
    st.sampled_from([0, 5, 1 << 16, 3 << 32, (3 << 32) + (1 << 16), 2**64 - 1]),
    st.sampled_from([Op.SEND, Op.RECV]),
    st.integers(0, 100),
    st.integers(0, 3),
    st.just(0),
)


@settings(max_examples=60)
@given(st.lists(st.lists(ROW, max_size=10), max_size=4), st.integers(1, 7))
def test_join_equals_python_for_any_number_of_buckets(pieces, buckets):
    joined, _ = exchange(pieces, buckets)
    first: dict[tuple, int] = {}
    for flow, op, t, _, _ in sorted((row for rows in pieces for row in rows), key=lambda r: r[2]):
        first.setdefault((flow, op), t)
    want = {
        flow: first[flow, Op.RECV] - t
        for (flow, op), t in first.items()
        if op == Op.SEND and flow and (flow, Op.RECV) in first
    }
    rows = joined.to_pylist() if joined is not None else []
    assert {row["flow"]: row["latency_ns"] for row in rows} == want
    assert len(rows) == len(want)
