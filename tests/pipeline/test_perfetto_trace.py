"""Hand-made partitions through the Perfetto exporter, judged by the real trace_processor."""

from __future__ import annotations

import random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.layout import TRACE
from sigmatrace.schema import Fate
from sigmatrace.trace_format import MarkKind, Op, OpFlag
from tests.perfetto_inputs import (
    BASE,
    BIN,
    OUTER,
    export,
    partition,
    receive,
    run,
    send,
)
from tests.perfetto_replay import replay

SLICES = """
select s.ts, s.dur, s.name, s.depth, t.name as thread, t.tid, p.pid, p.name as process,
       k.name as track,
       extract_arg(s.arg_set_id, 'debug.size_bytes') as size,
       extract_arg(s.arg_set_id, 'debug.peer') as peer,
       extract_arg(s.arg_set_id, 'debug.unmatched') as unmatched,
       extract_arg(s.arg_set_id, 'debug.status') as status,
       extract_arg(s.arg_set_id, 'debug.failed') as failed,
       extract_arg(s.arg_set_id, 'debug.region') as region
from slice s join thread_track k on s.track_id = k.id join thread t using (utid)
left join process p using (upid) order by s.ts, s.depth, s.id
"""
FLOWS = """
select a.ts as sent, b.ts as received, a.name as source, b.name as sink
from flow join slice a on slice_out = a.id join slice b on slice_in = b.id order by sent
"""
COUNTERS = """
select c.ts, c.value, t.name, t.unit, p.name as process
from counter c join process_counter_track t on c.track_id = t.id join process p using (upid)
order by p.name, t.name, c.ts
"""


def spans(tp):
    return [(row["ts"], row["dur"], row["depth"]) for row in tp.query(SLICES)]


def test_names_arguments_and_owners(load):
    tp, exported = load(
        partition(
            0,
            [
                send(10, 5, size_bytes=2**40),
                send(20, 5, call=0, dst_proc=-1, fate=Fate.PEER_NOT_TRACED),
                send(30, 5, flags=OpFlag.SIZE_UNKNOWN | OpFlag.FAILED),
                receive(40, thread=2),
            ],
        )
    )
    keys = ("ts", "name", "thread", "tid", "process", "size", "peer", "unmatched", "failed")
    assert [tuple(row[key] for key in keys) for row in tp.query(SLICES)] == [
        (10, "fi_send", "main", 100, "rank 0 (a)", 2**40, "rank 1", None, None),
        (20, "send", "main", 100, "rank 0 (a)", 8, None, "peer not traced", None),
        (30, "fi_send", "main", 100, "rank 0 (a)", None, "rank 1", None, 1),
        (40, "fi_recv", "thread 201", 201, "rank 1 (b)", 8, "rank 0", None, None),
    ]
    assert exported.counts["slices"] == 3
    assert exported.counts["instants"] == 1


def test_the_trace_knows_its_wall_clock(load):
    tp, exported = load(partition(0, [send(10)]))
    wall = "select clock_value from clock_snapshot where clock_name = 'REALTIME' and ts = 0"
    assert tp.value(wall) == BASE
    assert str(BASE) in exported.hint


def test_times_before_1970_have_no_wall_clock(load):
    tp, exported = load(partition(0, [send(-2 * BASE, 5), send(10, 5)]))
    assert spans(tp) == [(0, 5, 0), (2 * BASE + 10, 5, 0)]
    assert tp.value("select count(*) from clock_snapshot where clock_name = 'REALTIME'") == 0
    assert str(-BASE) in exported.hint


def test_calls_nest_in_calls_whatever_their_order_in_the_file(load):
    tp, exported = load(
        partition(
            0,
            [
                send(12, 3, depth=1),
                send(20, 0, depth=1),
                send(15, 15, depth=1),
                send(10, 20, call=OUTER),
                send(30, 2),
            ],
        )
    )
    assert spans(tp) == [(10, 20, 0), (12, 3, 1), (15, 15, 1), (20, 0, 2), (30, 2, 0)]
    assert exported.counts["displaced"] == 0


def test_equal_times(load):
    ops = [send(10, 10, depth=1), send(10, 10), send(20, 10), send(20, 0), send(10, 4, depth=2)]
    tp, _ = load(partition(0, ops))
    assert spans(tp) == [(10, 10, 0), (10, 10, 1), (10, 4, 2), (20, 10, 0), (20, 0, 1)]


def test_calls_that_overlap_get_lanes_and_keep_their_durations(load):
    tp, exported = load(partition(0, [send(10 * k, 35 + k) for k in range(6)]))
    rows = tp.query(SLICES)
    assert [(row["ts"], row["dur"]) for row in rows] == [(10 * k, 35 + k) for k in range(6)]
    assert {row["track"] for row in rows} == {
        None, "main (lane 2)", "main (lane 3)", "main (lane 4)",
    }  # fmt: skip
    assert {row["thread"] for row in rows} == {"main"}
    assert exported.counts["displaced"] == 4


def test_flows_run_from_send_to_receive_both_ways_and_across_partitions(load):
    back = {"proc": 1, "thread": 1, "src_proc": 1, "dst_proc": 0}
    there = {"proc": 0, "thread": 0, "src_proc": 1, "dst_proc": 0}
    parts = [
        partition(0, [send(10, 5, flow=2**64 - 1), send(12, 1, flow=7, depth=1)]),
        partition(1, [receive(30, 7), receive(25, 2**64 - 1), send(50, 5, flow=9, **back)]),
        partition(2, [receive(60, 9, **there), receive(70, 11)]),
    ]
    tp, exported = load(*parts)
    assert [tuple(row.values()) for row in tp.query(FLOWS)] == [
        (10, 25, "fi_send", "fi_recv"),
        (12, 30, "fi_send", "fi_recv"),
        (50, 60, "fi_send", "fi_recv"),
    ]
    assert exported.counts["flow_starts"] == 3
    assert exported.counts["flow_ends"] == 4


def test_a_receive_before_its_send_has_no_arrow_that_lies(load):
    tp, exported = load(partition(0, [receive(5, 3), send(10, 5, flow=3)]))
    assert tp.query(FLOWS) == []
    assert exported.counts["flow_starts"] == exported.counts["flow_ends"] == 1
    assert exported.counts["flows_backwards"] == 1


def test_at_equal_times_the_order_of_the_file_decides_about_arrows(load):
    """The trace's own order, which is that of partitions, then threads, then rows."""
    at_once = {"thread": 0, "proc": 0}
    parts = [
        partition(0, [receive(10, 3), send(20, flow=4), receive(30, 5), send(30, 0, flow=5)]),
        partition(1, [send(10, flow=3), receive(20, 4), receive(40, 6, **at_once)]),
        partition(2, [send(40, flow=6, thread=2, proc=1), receive(50, 7), send(50, 5, flow=7)]),
    ]
    tp, exported = load(*parts)
    assert {row["sent"] for row in tp.query(FLOWS)} == {20, 30, 50}
    assert exported.counts["flows"] == 3
    assert exported.counts["flows_backwards"] == 2


def test_arrows_of_clocks_that_disagree(load):
    """Messages that arrive anywhere around their sends, in any partition."""
    chance = random.Random(7)
    rows: list[list[dict]] = [[], [], []]
    for flow in range(1, 400):
        t = chance.randrange(200)
        early = chance.randrange(-3, 4)
        rows[chance.randrange(3)].append(send(t, chance.randrange(3), flow=flow))
        if flow % 10:
            rows[chance.randrange(3)].append(receive(t + early, flow))
    _, exported = load(*(partition(n, ops) for n, ops in enumerate(rows)))
    assert exported.counts["flows"] + exported.counts["flows_backwards"] == 360
    assert exported.counts["flows_backwards"] > 100


def test_a_flow_that_repeats_counts_once(tmp_path):
    ops = [send(10, flow=3), receive(20, 3), send(30, flow=3), receive(40, 3), receive(50, 3)]
    counts = export(tmp_path, [partition(0, ops)]).counts
    assert (counts["flows"], counts["flows_backwards"]) == (1, 0)


def test_records_without_times_are_counted_and_said(load):
    none = partition(0).with_table("aggregates", pa.table({"count": [3, 4]}))
    tp, exported = load(none, partition(1).with_table("targets", pa.table({"rkey": [1]})))
    assert exported.counts["aggregate_left_out"] == 2
    assert exported.counts["target_left_out"] == 1
    assert "2 rows of mode aggregate have no times" in exported.hint
    assert tp.value("select count(*) from process where name is not null") == 2


def test_operations_that_this_version_does_not_know_are_shown(load):
    done = [{"t": 30, "op": 200}]
    tp, _ = load(partition(0, [send(10, 5, op=77, call=0)], done))
    names = [row["name"] for row in tp.query(SLICES)]
    assert names == ["operation 77", "operation 200 completed"]


def test_a_call_around_calls_of_an_earlier_partition_goes_to_a_lane(load):
    parts = [
        partition(0, [send(0, 5), send(10, 5, depth=1)]),
        partition(1, [send(20, 5, depth=1), send(8, 40, call=OUTER), send(60, 5)]),
        partition(2, [send(70, 5)]),
    ]
    tp, _ = load(*parts)
    rows = [(row["ts"], row["dur"], row["track"]) for row in tp.query(SLICES)]
    assert rows == [
        (0, 5, None), (8, 40, "main (lane 2)"), (10, 5, None), (20, 5, None), (60, 5, None),
        (70, 5, None),
    ]  # fmt: skip


def test_partitions_whose_times_interleave_never_share_a_track(load):
    parts = [partition(n, [send(3 * k + n, 10) for k in range(0, 30, 4)]) for n in range(3)]
    tp, _ = load(*parts)
    rows = tp.query(SLICES)
    assert len(rows) == 24
    assert {row["dur"] for row in rows} == {10}


def test_ends_and_begins_that_meet_at_a_border_stay_on_the_threads_track(load):
    tp, _ = load(
        partition(0, [send(0, 10), send(10, 10)]), partition(1, [send(20, 10), send(30, 5)])
    )
    assert [(row["ts"], row["dur"], row["track"]) for row in tp.query(SLICES)] == [
        (0, 10, None), (10, 10, None), (20, 10, None), (30, 5, None),
    ]  # fmt: skip


def test_events_before_the_runs_zero_move_the_traces_zero(load):
    tp, exported = load(partition(0, [send(-500, 5), send(10, 5)]), partition(1, [receive(-2)]))
    assert [row["ts"] for row in tp.query(SLICES)] == [0, 498, 510]
    assert exported.counts["early"] == 2
    assert str(BASE - 500) in exported.hint


def test_completions_are_instants_below_the_thread(load):
    done = [
        {"t": 30, "op": Op.SEND, "size_bytes": 64},
        {"t": 20, "op": Op.PUT, "status": -5, "flags": OpFlag.FAILED},
    ]
    tp, _ = load(partition(0, [send(10, 50)], done))
    keys = ("ts", "dur", "name", "track", "size", "status", "thread")
    assert [tuple(row[key] for key in keys) for row in tp.query(SLICES)] == [
        (10, 50, "fi_send", None, 8, None, "main"),
        (20, 0, "put completed", "completions", None, "-5", "main"),
        (30, 0, "send completed", "completions", 64, None, "main"),
    ]


def test_regions_instants_and_counters_of_the_program(load):
    names = [{"proc": 0, "name": n, "text": t} for n, t in ((4, "step"), (5, "halo"), (6, "load"))]
    names.append({"proc": 1, "name": 4, "text": "load"})
    first = [
        {"t": 10, "name": 4, "kind": MarkKind.BEGIN},
        {"t": 20, "name": 5, "kind": MarkKind.BEGIN},
        {"t": 25, "name": 6, "kind": MarkKind.COUNTER, "value": 1.5},
        {"t": 26, "proc": 1, "thread": 1, "name": 4, "kind": MarkKind.COUNTER, "value": -2},
        {"t": 30, "name": 5, "kind": MarkKind.END},
    ]
    second = [
        {"t": 40, "name": 6, "kind": MarkKind.INSTANT},
        {"t": 50, "name": 4, "kind": MarkKind.END},
        {"t": 60, "name": 5, "kind": MarkKind.END},
        {"t": 70, "name": 5, "kind": MarkKind.BEGIN},
        {"t": 80, "name": 6, "kind": MarkKind.COUNTER, "value": 3},
    ]
    tp, exported = load(partition(0, marks=first), partition(1, marks=second), of=run(names=names))
    keys = ("ts", "dur", "name", "depth", "region", "track")
    assert [tuple(row[key] for key in keys) for row in tp.query(SLICES)] == [
        (10, 40, "step", 0, None, "regions"),
        (20, 10, "halo", 1, None, "regions"),
        (40, 0, "load", 1, None, "regions"),
        (70, 0, "halo", 0, "never ended", "regions"),
    ]
    assert [
        (row["ts"], row["value"], row["name"], row["process"]) for row in tp.query(COUNTERS)
    ] == [
        (25, 1.5, "load", "rank 0 (a)"),
        (80, 3.0, "load", "rank 0 (a)"),
        (26, -2.0, "load", "rank 1 (b)"),
    ]
    counts = exported.counts
    assert counts["mark_records"] == 10
    assert counts["regions_closed"] == 2
    assert counts["regions_open"] == counts["regions_stray_ends"] == counts["mark_instants"] == 1
    assert counts["mark_counters"] == counts["counters"] == 3
    assert counts["mark_unknown"] == 0


def test_marks_of_unknown_kinds_are_counted(load):
    tp, exported = load(partition(0, marks=[{"t": 10, "name": 4, "kind": k} for k in (0, 4, 9)]))
    assert exported.counts["mark_unknown"] == 2
    assert len(tp.query(SLICES)) == 1


def test_traffic_counters_have_zeros_after_traffic_and_keep_layers_apart(load):
    rows = [
        (0, 0, 1, Op.SEND, 100), (0, 0, 1, Op.PUT, 50), (1, 0, 1, Op.SEND, 7),
        (5, 0, 1, Op.SEND, 1), (2, 0, 1, Op.GET, 30), (0, 0, 2, Op.SEND, 9), (3, 1, 1, Op.RECV, 4),
        (0, 0, 1, Op.FLUSH, 99),
    ]  # fmt: skip
    keys = ("bin", "proc", "layer", "op", "size_bytes")
    tp, _ = load(partition(0), of=run(timeline=[dict(zip(keys, row, strict=True)) for row in rows]))
    per_byte = 1e9 / BIN
    found = tp.query(COUNTERS)
    assert {row["unit"] for row in found} == {"B/s"}
    assert [(r["ts"], r["value"] / per_byte, r["name"], r["process"][:6]) for r in found] == [
        (0, 150, "ofi egress", "rank 0"), (1000, 7, "ofi egress", "rank 0"),
        (2000, 0, "ofi egress", "rank 0"), (5000, 1, "ofi egress", "rank 0"),
        (6000, 0, "ofi egress", "rank 0"),
        (2000, 30, "ofi ingress", "rank 0"), (3000, 0, "ofi ingress", "rank 0"),
        (0, 9, "ucp egress", "rank 0"), (1000, 0, "ucp egress", "rank 0"),
        (3000, 4, "ofi ingress", "rank 1"), (4000, 0, "ofi ingress", "rank 1"),
    ]  # fmt: skip


def test_processes_with_the_same_pid_stay_apart(load):
    processes = [{"proc": n, "label": f"rank {n}", "host": f"h{n}", "pid": 77} for n in range(3)]
    threads = [
        {"thread": 2 * n + k, "proc": n, "tid": 77 + k, "name": f"t{k}"}
        for n in range(3)
        for k in range(2)
    ]
    ops = [send(10 * t["thread"], 5, proc=t["proc"], thread=t["thread"]) for t in threads]
    tp, _ = load(partition(0, ops), of=run(processes, threads))
    rows = tp.query(SLICES)
    assert [(row["process"], row["thread"]) for row in rows] == [
        (f"rank {n} (h{n}{', pid 77' if n else ''})", f"t{k}") for n in range(3) for k in range(2)
    ]
    assert len({row["pid"] for row in rows}) == 3
    mains = "select t.name from thread t join process using (upid) where is_main_thread and pid > 0"
    assert [row["name"] for row in tp.query(mains)] == ["t0"] * 3


def test_a_run_without_events_is_a_trace_with_processes(load):
    tp, exported = load(partition(0))
    assert exported.counts["slices"] == 0
    assert tp.value("select count(*) from process where name is not null") == 2


def test_many_calls_of_many_threads_in_many_partitions(load):
    """Properly nested calls, cut into partitions in the order of their ends."""
    chance = random.Random(3)
    parts: list[list[dict]] = [[] for _ in range(7)]
    for thread in range(3):
        calls, t = [], 0
        for _ in range(700):
            t += chance.randrange(1, 30)
            begin = t
            for _ in range(chance.randrange(4)):
                t += chance.randrange(1, 9)
                length = chance.randrange(9)
                calls.append(send(t, length, depth=1, thread=thread, proc=min(thread, 1)))
                t += length
            t += chance.randrange(1, 9)
            calls.append(send(begin, t - begin, thread=thread, proc=min(thread, 1), call=OUTER))
        for k, call in enumerate(calls):
            parts[k * len(parts) // len(calls)].append(call)
    tp, exported = load(*(partition(n, ops) for n, ops in enumerate(parts)))
    expected = sorted((op["t"], op["call_ns"]) for part in parts for op in part)
    assert sorted((row["ts"], row["dur"]) for row in tp.query(SLICES)) == expected
    assert exported.counts["displaced"] == 0
    aside = "from slice s join thread_track t on s.track_id = t.id where t.name like '%lane%'"
    assert tp.value(f"select count(*) {aside}") <= 3 * (len(parts) - 1)


calls_anywhere = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-20, 60), st.integers(0, 30)), max_size=30
)


@settings(max_examples=60, deadline=None)
@given(calls_anywhere)
def test_no_order_of_calls_makes_slices_exchange_their_ends(tmp_path_factory, calls):
    parts = [
        partition(n, [send(t, length, size_bytes=t % 64) for p, t, length in calls if p == n])
        for n in range(4)
    ]
    folder = tmp_path_factory.mktemp("trace")
    export(folder, parts)
    zero = min([0, *(t for _, t, _ in calls)])
    found = replay((folder / TRACE).read_bytes())
    assert sorted((s.begin + zero, s.end + zero, s.args["size_bytes"]) for s in found) == sorted(
        (t, t + length, t % 64) for _, t, length in calls
    )


def test_a_large_run_costs_at_most_fifty_bytes_a_call_with_size_and_flow(tmp_path):
    ops = [
        send(600 * k, 300, size_bytes=k * 37 % 65536, flow=k + 1, dst_proc=-1)
        for k in range(20_000)
    ]
    export(tmp_path, [partition(0, ops)])
    assert (tmp_path / TRACE).stat().st_size / len(ops) < 50
