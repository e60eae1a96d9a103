"""The PerfettoSQL module: what it makes of slices, on hand-made partitions."""

from __future__ import annotations

import pytest

from sigmatrace.query import shipped
from sigmatrace.schema import Fate
from sigmatrace.trace_format import MarkKind, Op, OpFlag
from tests.perfetto_inputs import partition, receive, send


@pytest.fixture
def asked(load):
    def ask(part, sql):
        tp, _ = load(part)
        tp.register(shipped.PACKAGE, shipped.modules())
        return tp.query(f"include perfetto module {shipped.MODULE}; {sql}")

    return ask


def test_operations_by_their_direction_and_layer(asked):
    part = partition(
        0,
        [
            send(10, size_bytes=100, flow=1),
            send(20, op=Op.GET, call=0, src_proc=1, dst_proc=0, fate=Fate.ONE_SIDED, size_bytes=7),
            send(30, flags=OpFlag.SIZE_UNKNOWN),
            send(40, flags=OpFlag.NESTED, size_bytes=1000),
            send(50, dst_proc=-1, fate=Fate.PEER_UNKNOWN, size_bytes=3),
            send(60, op=Op.FLUSH, call=0),
            receive(70, flow=1),
        ],
        [{"t": 80, "op": Op.SEND, "size_bytes": 5000}],
    )
    rows = asked(part, "select layer, src, dst, size_bytes from sigmatrace_traffic order by 4")
    assert [tuple(row.values()) for row in rows] == [
        ("ofi", "rank 0", "rank 1", None),
        ("ofi", "rank 0", "", 3),
        ("", "rank 1", "rank 0", 7),
        ("ofi", "rank 0", "rank 1", 100),
    ]
    rows = asked(part, "select src, dst, size_bytes, latency_ns from sigmatrace_messages")
    assert [tuple(row.values()) for row in rows] == [("rank 0", "rank 1", 100, 60)]


def test_regions_with_and_without_an_end_are_arrivals_and_instants_are_not(asked):
    def mark(t, kind, **more):
        return {"t": t, "kind": kind, "name": 1, **more}

    part = partition(
        0,
        [send(5)],
        marks=[
            mark(10, MarkKind.BEGIN),
            mark(20, MarkKind.END),
            mark(25, MarkKind.INSTANT),
            mark(30, MarkKind.BEGIN),
            mark(32, MarkKind.BEGIN, proc=1, thread=1),
            mark(40, MarkKind.END, proc=1, thread=1),
        ],
    )
    sql = "select label, barrier, arrival_ns from sigmatrace_regions order by arrival_ns"
    rows = asked(part, sql)
    base = rows[0]["arrival_ns"] - 10
    assert [(row["label"], row["barrier"], row["arrival_ns"] - base) for row in rows] == [
        ("rank 0", 1, 10),
        ("rank 0", 2, 30),
        ("rank 1", 1, 32),
    ]
