"""Queue pairs and NICs in Perfetto traces, judged by the real trace_processor."""

from __future__ import annotations

import random

import pytest

from sigmatrace.trace_format import NO_POSITION, Layer, Op, Queue
from tests.perfetto_inputs import BIN, OUTER, partition, receive, run, send
from tests.perfetto_queries import SLICES, depths
from tests.perfetto_verbs_inputs import GID_B, cqe, request, verbs_run


def test_queue_pairs_stand_below_their_rank_with_the_peer_in_their_name(load):
    things = [(0, 7), (0, 9), (0, 12), (1, 7), (1, 3)]
    rows = [cqe(10, 20, proc=proc, thing=thing) for proc, thing in things]
    tp, _ = load(partition(0, cqes=rows), of=verbs_run())
    found = [row for row in tp.query(SLICES) if "QP" in row["path"]]
    assert {(row["process"], row["path"]) for row in found} == {
        ("rank 0 (a)", "QPs/QP 0x11 → rank 1"),
        ("rank 0 (a)", "QPs/QP 0x12 → ib:77:33"),
        ("rank 0 (a)", "QPs/QP 0x11 → rank 1 (connection 2)"),
        ("rank 1 (b)", "QPs/QP 0x22 → rank 0"),
        ("rank 1 (b)", "QPs/QP of object 3"),
    }
    assert tp.value("select count(*) from track where name = 'NICs'") == 0


def test_a_completion_is_a_slice_with_exact_arguments(slices):
    rows, exported = slices(
        partition(
            0,
            cqes=[
                cqe(10, 25, 5, wr_id=2**64 - 1, first=2),
                cqe(30, 40, 2**32 - 2, wr_id=2**63, status=12, opcode=0),
                cqe(None, 50, NO_POSITION, opcode=99, status=200, flags=2, imm=2**32 - 1),
                cqe(70, 60, 6),
            ],
        )
    )
    keys = ("ts", "dur", "name", "path", "args")
    where = "QPs/QP 0x11 → rank 1"
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (10, 15, "rdma_write", where, {"wr_id": 2**64 - 1, "position": 5, "retires": 4}),
        (30, 10, "send", where, {"wr_id": 2**63, "position": 2**32 - 2, "status": "retry_exc_err"}),
        (50, 0, "opcode 99", where, {"wr_id": 0, "status": "status 200"}),
        (60, 0, "rdma_write", where, {"wr_id": 0, "position": 6}),
    ]
    assert exported.counts["cqe_records"] == 4
    assert exported.counts["cqe_left_out"] == 0


def test_arrivals_are_instants_that_say_how_long_before_they_were_posted(slices):
    arrived = {"opcode": 129, "flags": 2, "imm": 77, "size_bytes": 64, "proc": 1}
    rows, _ = slices(
        partition(
            0,
            cqes=[
                cqe(10, 25, 5, queue=Queue.RECV, **arrived),
                cqe(None, 30, NO_POSITION, queue=Queue.SHARED, proc=1, opcode=128),
                cqe(20, 40, 6, queue=Queue.RECV, proc=1, opcode=128, status=5),
            ],
        )
    )
    keys = ("ts", "dur", "name", "path", "args")
    where = "QPs/QP 0x22 → rank 0/arrivals"
    first = {"size_bytes": 64, "wr_id": 0, "position": 5, "imm": 77, "posted_before_ns": 15}
    last = {"wr_id": 0, "position": 6, "status": "wr_flush_err", "posted_before_ns": 20}
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (25, 0, "recv_rdma_with_imm", where, first),
        (30, 0, "recv", where, {"size_bytes": 0, "wr_id": 0}),
        (40, 0, "recv", where, last),
    ]


def test_requests_show_where_they_go_and_posted_receives_are_left_out(slices):
    large = {"raddr": 2**64 - 2, "rkey": 2**32 - 1, "wr_id": 2**63 + 1, "size_bytes": 2**32 - 1}
    rows, exported = slices(
        partition(
            0,
            requests=[
                request(10, 2**32 - 1, opcode=1, imm=5, sges=255, flags=2 | 8 | 64, **large),
                request(20, 0, opcode=2, sges=1, raddr=3, rkey=4),
                request(25, 0, opcode=255, queue=Queue.RECV),
                request(25, 0, opcode=255, queue=Queue.SHARED, thing=33),
                request(30, 0, thing=99),
            ],
            cqes=[cqe(10, 20, thing=99), cqe(10, 20, thing=20)],
        )
    )
    assert [(row["ts"], row["name"], row["path"], row["args"]) for row in rows] == [
        (
            10,
            "rdma_write_with_imm",
            "QPs/QP 0x11 → rank 1/requests",
            {
                **large,
                "position": 2**32 - 1,
                "imm": 5,
                "sges": 255,
                "flags": "signaled inline 0x40",
            },
        ),
        (
            20,
            "send",
            "QPs/QP 0x11 → rank 1/requests",
            {"size_bytes": 0, "wr_id": 0, "position": 0, "sges": 1},
        ),
    ]
    counts = exported.counts
    assert (counts["request_records"], counts["request_left_out"]) == (2, 3)
    assert (counts["cqe_records"], counts["cqe_left_out"]) == (0, 2)


def in_flight(chance, count, depth):
    """(posted, completed) of requests that complete in order, up to ``depth`` at a time."""
    posted, ends, t = [], [], 0
    for k in range(count):
        t = max(t + chance.randrange(1, 9), ends[k - depth] if k >= depth else 0)
        posted.append(t)
        ends.append(max(t + chance.randrange(1, 90), (ends[-1] if ends else 0) + 1))
    return list(zip(posted, ends, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_requests_in_flight_never_share_a_lane_at_a_time_across_partitions(slices, seed):
    chance = random.Random(seed)
    flights = in_flight(chance, 400, 16)
    cuts = sorted(chance.sample(range(400), 4))
    parts = [
        partition(n, cqes=[cqe(*flights[k], k) for k in range(a, b)])
        for n, (a, b) in enumerate(zip([0, *cuts], [*cuts, 400], strict=True))
    ]
    rows, exported = slices(*parts)
    assert sorted((row["ts"], row["ts"] + row["dur"]) for row in rows) == sorted(flights)
    assert {row["depth"] for row in rows} == {0}
    assert {row["path"].split("/")[1] for row in rows} == {"QP 0x11 → rank 1"}
    lanes = {row["path"].split("/")[-1] for row in rows} - {"QP 0x11 → rank 1"}
    assert len(lanes) <= 16
    assert lanes == {f"lane {n}" for n in range(2, 2 + len(lanes))}
    assert exported.counts["slices"] == 400


@pytest.mark.parametrize("seed", range(3))
def test_completions_in_any_order_keep_their_times(slices, seed):
    """Several threads poll, partitions interleave: lanes of all of them overlap in time."""
    chance = random.Random(seed)
    begins = [chance.randrange(300) for _ in range(120)]
    flights = [(begin, begin + chance.randrange(1, 80), k) for k, begin in enumerate(begins)]
    parts = [
        partition(n, cqes=[cqe(begin, end, k) for begin, end, k in flights[n::4]]) for n in range(4)
    ]
    rows, _ = slices(*parts)
    found = [(row["ts"], row["ts"] + row["dur"], row["args"]["position"]) for row in rows]
    assert sorted(found) == sorted(flights)
    assert {row["depth"] for row in rows} == {0}


def plain_depth(posts, ends):
    """Outstanding requests over time, counted one by one: {time: depth}."""
    found = {}
    for t in sorted({*posts, *ends}):
        found[t] = sum(p <= t for p in posts) - sum(e <= t for e in ends)
    return found


@pytest.mark.parametrize("first", [0, 2**32 - 100])
def test_outstanding_requests_are_counted_across_partitions_and_unsignaled_ones(load, first):
    """Posts and completions of one time lie in different partitions, every third is signaled."""
    chance = random.Random(5)
    flights = in_flight(chance, 300, 24)
    posts = [request(p, (first + k) % 2**32) for k, (p, _) in enumerate(flights)]
    signaled = range(2, 300, 3)
    ends = [cqe(*flights[k], (first + k) % 2**32, first=(first + k - 2) % 2**32) for k in signaled]
    parts = [
        partition(0, requests=posts[:100], cqes=ends[:20]),
        partition(1, requests=posts[100:]),
        partition(2, cqes=ends[20:]),
    ]
    tp, exported = load(*parts, of=verbs_run())
    expected = plain_depth([p for p, _ in flights], [flights[k - k % 3 + 2][1] for k in range(300)])
    ((_, values),) = depths(tp).items()
    assert max(d for _, d in values) > 10
    known: list[tuple[int, int]] = []
    for t, depth in expected.items():
        if not known or depth != known[-1][1]:
            known.append((t, depth))
    assert values == known
    assert exported.counts["object_counters"] == len(values)


def test_lost_posts_and_completions_do_not_shift_the_count(load):
    """Positions tell what was lost in between."""
    posts = [request(10 * k, k) for k in range(20) if k not in (3, 4, 5, 11)]
    ends = [cqe(10 * k, 10 * k + 25, k) for k in range(20) if k not in (7, 8)]
    tp, _ = load(partition(0, requests=posts, cqes=ends), of=verbs_run())
    ((_, values),) = depths(tp).items()
    assert values[-1] == (215, 0)
    assert max(depth for _, depth in values) <= 5
    assert min(depth for _, depth in values) == 0


def test_bytes_per_second_of_queue_pairs_and_nics(load):
    """A NIC's rate is the sum over its queue pairs; other layers do not count.

    The GET of rank 0 leaves the queue pair that it reads from.
    """
    verbs = {"layer": Layer.VERBS}
    ops = [
        send(100, channel=0, size_bytes=1000, **verbs),
        send(200, channel=0, size_bytes=500, **verbs),
        send(900, channel=2, size_bytes=7, op=Op.PUT, **verbs),
        send(1100, channel=0, size_bytes=40, op=Op.GET, **verbs),
        send(100, channel=4, size_bytes=10**6, layer=Layer.UCT),
        receive(2500, channel=1, size_bytes=1000, **verbs),
        receive(2600, channel=3, size_bytes=64, **verbs),
    ]
    parts = [partition(0, ops[:4]), partition(1, ops[4:])]
    timeline = [{"bin": 0, "proc": 0, "layer": Layer.VERBS, "op": Op.SEND, "size_bytes": 1507}]
    tp, exported = load(*parts, of=verbs_run(timeline=timeline))
    per_byte = 1e9 / BIN
    rows = tp.query(
        "select c.ts, c.value, t.name, k.unit, q.name as owner, g.name as above from counter c"
        " join track t on c.track_id = t.id join track q on q.id = t.parent_id"
        " join counter_track k on k.id = t.id left join track g on g.id = q.parent_id"
        " where q.name is not null order by q.name, c.ts"
    )
    assert {row["unit"] for row in rows} == {"B/s"}
    found = {}
    for row in rows:
        key = row["above"], row["owner"], row["name"]
        found.setdefault(key, []).append((row["ts"], round(row["value"] / per_byte)))
    assert found == {
        ("QPs", "QP 0x11 → rank 1", "egress"): [(0, 1500), (1000, 0)],
        ("QPs", "QP 0x11 → rank 1", "ingress"): [(1000, 40), (2000, 0)],
        ("QPs", "QP 0x12 → ib:77:33", "egress"): [(0, 7), (1000, 0)],
        ("QPs", "QP 0x22 → rank 0", "egress"): [(1000, 40), (2000, 0)],
        ("QPs", "QP 0x22 → rank 0", "ingress"): [(2000, 1000), (3000, 0)],
        ("QPs", "QP 0x40 → rank 0", "ingress"): [(2000, 64), (3000, 0)],
        ("NICs", "mlx5_0 port 1 (a)", "egress"): [(0, 1507), (1000, 0)],
        ("NICs", "mlx5_0 port 1 (a)", "ingress"): [(1000, 40), (2000, 0)],
        ("NICs", f"{GID_B} (b)", "egress"): [(1000, 40), (2000, 0)],
        ("NICs", f"{GID_B} (b)", "ingress"): [(2000, 1000), (3000, 0)],
        ("NICs", "mlx5_1 port 2 (b)", "ingress"): [(2000, 64), (3000, 0)],
    }
    assert exported.counts["object_counters"] == len(rows)


def test_a_ucp_call_a_uct_call_and_a_post_nest_on_the_thread(load):
    ops = [
        send(12, depth=2, layer=Layer.VERBS, channel=0, call=0, op=Op.PUT, flow=3),
        send(11, 6, depth=1, layer=Layer.UCT, channel=4),
        send(10, 20, call=OUTER, layer=Layer.UCP),
        receive(40, 3, layer=Layer.VERBS, channel=1),
    ]
    parts = [partition(0, ops, cqes=[cqe(12, 35)])]
    tp, _ = load(*parts, of=verbs_run())
    rows = tp.query(
        "select s.ts, s.dur, s.depth, s.name, q.name as parent from slice s"
        " join thread_track t on s.track_id = t.id left join slice q on q.id = s.parent_id"
        " order by s.ts"
    )
    assert [tuple(row.values()) for row in rows] == [
        (10, 20, 0, "ucp_tag_send_nbx", None),
        (11, 6, 1, "fi_send", "ucp_tag_send_nbx"),
        (12, 0, 2, "put", "fi_send"),
        (40, 0, 0, "fi_recv", None),
    ]
    arrow = "select a.ts as sent, b.ts as got from flow join slice a on slice_out = a.id"
    assert tp.query(f"{arrow} join slice b on slice_in = b.id") == [{"sent": 12, "got": 40}]


def test_a_program_without_a_rank_is_named_by_its_command(load):
    processes = [
        {"proc": 0, "label": "pid 100", "host": "vm", "pid": 100, "command": "'/a b/ib_send' -d x"},
        {"proc": 1, "label": "pid 200", "host": "vm", "pid": 200},
        {"proc": 2, "label": "rank 3", "rank": 3, "host": "vm", "pid": 300, "command": "/bin/app"},
    ]
    threads = [{"thread": n, "proc": n, "tid": 1 + n} for n in range(3)]
    tp, _ = load(partition(0), of=run(processes, threads))
    names = tp.query("select name from process where name is not null order by upid")
    assert [row["name"] for row in names] == ["ib_send (vm)", "pid 200 (vm)", "rank 3 (vm)"]
