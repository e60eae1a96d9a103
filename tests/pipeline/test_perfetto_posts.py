"""What operations of queue pairs say, where they stand, and what they reach."""

from __future__ import annotations

import pytest

from sigmatrace.export.perfetto import balance
from sigmatrace.trace_format import ChannelFlag, Dir, Layer, Op, OpFlag, Queue
from tests.factories import queue_pair
from tests.perfetto_inputs import OUTER, partition, receive, run, send
from tests.perfetto_verbs_inputs import cqe, request, verbs_run

VERBS = {"layer": Layer.VERBS, "call": 0}
ARROWS = (
    "select a.name as from_name, a.ts as sent, b.name as to_name, b.ts as got, t.name as track"
    " from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"
    " join track t on t.id = b.track_id order by a.ts"
)


def of_mode(mode):
    """``verbs_run`` of processes of this mode."""
    processes = [
        {"proc": n, "label": f"rank {n}", "rank": n, "host": "ab"[n], "pid": 100 + n, "mode": mode}
        for n in range(2)
    ]
    return verbs_run(processes=processes)


def post(t, op, **more):
    return send(t, **{"op": op, "channel": 0, **VERBS, **more})


@pytest.mark.parametrize("mode", ["simple", "full"])
def test_calls_name_the_operation_its_queue_pair_and_position(slices, mode):
    ops = [
        post(10, Op.PUT, aux=2**32 - 1, flags=OpFlag.SIGNALED, size_bytes=70),
        post(20, Op.SEND, aux=0, flags=OpFlag.FAILED | OpFlag.SIZE_UNKNOWN, channel=2, dst_proc=-1),
        receive(30, channel=1, aux=4, **VERBS),
        send(40, 5, call=OUTER, layer=Layer.UCP, channel=4, flags=OpFlag.FAILED | OpFlag.SIGNALED),
    ]
    rows, _ = slices(partition(0, ops), of=of_mode(mode), threads=True)
    peer = {"size_bytes": 8, "peer": "rank 0"}
    assert [(row["ts"], row["dur"], row["name"], row["args"]) for row in rows] == [
        (10, 0, "put", {
            "size_bytes": 70, "peer": "rank 1", "op": "put", "qp": 0x11,
            "position": 2**32 - 1, "signaled": 1,
        }),
        (20, 0, "send", {"op": "send", "qp": 0x12, "position": 0, "failed": 1}),
        (30, 0, "recv", {**peer, "op": "recv", "qp": 0x22, "position": 4}),
        (40, 5, "ucp_tag_send_nbx", {"size_bytes": 8, "peer": "rank 1", "failed": 1}),
    ]  # fmt: skip


def test_queue_pairs_without_requests_show_their_operations(slices):
    ops = [
        post(10, Op.SEND, aux=5, flags=OpFlag.SIGNALED, size_bytes=70, flow=9),
        post(20, Op.GET, aux=6, flags=OpFlag.FAILED | OpFlag.SIZE_UNKNOWN, channel=2, dst_proc=-1),
        receive(30, channel=1, aux=4, flow=9, **VERBS),
        send(40, 5, layer=Layer.UCT, channel=4),
    ]
    rows, exported = slices(partition(0, ops), of=of_mode("simple"))
    assert [(row["ts"], row["dur"], row["name"], row["path"], row["args"]) for row in rows] == [
        (10, 0, "send", "QPs/QP 0x11 → rank 1/requests",
         {"size_bytes": 70, "position": 5, "peer": "rank 1", "signaled": 1}),
        (20, 0, "get", "QPs/QP 0x12 → ib:77:33/requests", {"position": 6, "failed": 1}),
        (30, 0, "recv", "QPs/QP 0x22 → rank 0/arrivals",
         {"size_bytes": 8, "position": 4, "peer": "rank 0"}),
    ]  # fmt: skip
    assert exported.counts["qp_operations"] == 3
    assert exported.counts["op_records"] == 4
    assert exported.counts["flows"] == 1


def test_queue_pairs_with_requests_do_not_show_operations_twice(slices):
    part = partition(0, [post(10, Op.SEND)], requests=[request(10, opcode=2)])
    rows, exported = slices(part, of=of_mode("full"))
    assert [row["path"] for row in rows] == ["QPs/QP 0x11 → rank 1/requests"]
    assert exported.counts["qp_operations"] == 0


def test_arrows_lead_from_one_sided_operations_to_the_queue_pair_that_they_reach(load):
    ops = [
        post(10, Op.PUT, aux=3, ordinal=0, size_bytes=70, flags=OpFlag.SIGNALED),
        post(20, Op.GET, aux=4, ordinal=1),
        post(30, Op.ATOMIC_FETCH, aux=5, ordinal=2),
        post(40, Op.PUT_DATA, aux=6, ordinal=3, flow=8),
        post(45, Op.PUT, aux=7, ordinal=4, flags=OpFlag.FAILED),
        post(50, Op.PUT, aux=0, channel=2, dst_proc=-1),
        post(55, Op.BIND, aux=8, ordinal=5),
        receive(60, channel=1, flow=8, **VERBS),
        send(70, 5, op=Op.PUT, layer=Layer.UCT, channel=4),
    ]
    parts = [partition(0, ops[:5]), partition(1, ops[5:])]
    tp, exported = load(*parts, of=of_mode("full"))
    keys = ("from_name", "sent", "to_name", "got", "track")
    assert [tuple(row[key] for key in keys) for row in tp.query(ARROWS)] == [
        ("put", 10, "put by rank 0", 10, "by peers"),
        ("get", 20, "get by rank 0", 20, "by peers"),
        ("atomic_fetch", 30, "atomic_fetch by rank 0", 30, "by peers"),
        ("put_data", 40, "recv", 60, None),
    ]
    args = tp.query(
        "select key, int_value from args join slice using (arg_set_id) where ts = 10"
        " and name = 'put by rank 0' order by key"
    )
    assert [tuple(row.values()) for row in args] == [
        ("debug.position", 3), ("debug.qp", 0x11), ("debug.size_bytes", 70),
    ]  # fmt: skip
    counts = exported.counts
    assert (counts["one_sided_arrivals"], counts["one_sided_targets_unknown"]) == (3, 1)
    (arrows,) = [one for one in balance(counts) if "one-sided arrivals =" in one["name"]]
    assert arrows["left"] == ["stages.match.sends_matched", 3]
    assert arrows["right"] == 4


def test_the_queue_pair_at_the_other_end_is_the_one_of_the_same_connection(slices):
    """Of two connections of two names the second one; never one that two rows claim."""
    ends = {"here": "aa:11", "there": "bb:22"}, {"here": "bb:22", "there": "aa:11"}
    endpoints = [
        queue_pair(0, 1, **ends[0]),
        queue_pair(0, 2, **ends[0], life=1),
        queue_pair(1, 3, **ends[1]),
        queue_pair(1, 4, **ends[1], life=1),
        queue_pair(0, 5, "aa:12", "bb:23"),
        queue_pair(1, 6, "bb:23", "aa:12"),
        queue_pair(1, 7, "bb:23", "aa:12"),
        queue_pair(0, 8, "aa:13", "bb:24", layer=Layer.MLX5DV, type="mlx5_qp"),
        queue_pair(1, 9, "bb:24", "aa:13"),
        queue_pair(0, 10),
    ]
    things = (1, 2, 5, 8, 10)
    layers = [Layer.MLX5DV if thing == 8 else Layer.VERBS for thing in things]
    channels = [
        {"channel": n, "proc": 0, "object": thing, "dir": Dir.OUT, "layer": layers[n]}
        for n, thing in enumerate(things)
    ]
    routes = [{"channel": n, "src_proc": 0, "dst_proc": 1} for n in range(len(things))]
    ops = [post(10 * n, Op.PUT, channel=n, layer=layers[n]) for n in range(len(things))]
    of = run(endpoints=endpoints, channels=channels, routes=routes)
    rows, exported = slices(partition(0, ops), of=of)
    assert [(row["ts"], row["path"]) for row in rows] == [
        (0, "QPs/QP 0x22 → rank 0/by peers"),
        (10, "QPs/QP 0x22 → rank 0 (connection 2)/by peers"),
        (30, "QPs/QP 0x24 → rank 0/by peers"),
    ]
    assert exported.counts["one_sided_targets_unknown"] == 2


def test_what_reaches_a_queue_pair_counts_once_at_its_end(load):
    """A write with immediate data counts when it arrives, as RECV."""
    ops = [
        post(100, Op.PUT, ordinal=1, size_bytes=1000),
        post(200, Op.ATOMIC, ordinal=2, size_bytes=8),
        post(300, Op.PUT_DATA, ordinal=3, size_bytes=50),
        post(400, Op.SEND, ordinal=4, size_bytes=7),
        post(500, Op.GET, ordinal=5, size_bytes=300),
        post(600, Op.PUT, ordinal=6, size_bytes=9, flags=OpFlag.FAILED),
        receive(700, channel=1, size_bytes=50, **VERBS),
        receive(800, channel=1, size_bytes=7, **VERBS),
    ]
    tp, _ = load(partition(0, ops), of=of_mode("simple"))
    rows = tp.query(
        "select q.name as owner, t.name, sum(c.value) / 1e6 as size from counter c"
        " join track t on c.track_id = t.id join track q on q.id = t.parent_id"
        " where q.name like 'QP %' group by q.name, t.name"
    )
    assert {(row["owner"], row["name"]): round(row["size"]) for row in rows} == {
        ("QP 0x11 → rank 1", "egress"): 1074,
        ("QP 0x11 → rank 1", "ingress"): 300,
        ("QP 0x22 → rank 0", "egress"): 300,
        ("QP 0x22 → rank 0", "ingress"): 1065,
    }


def test_send_completions_show_size_and_target_of_their_request(slices):
    """Not of another request of this position, nor an immediate, which they have none of."""
    where = {"raddr": 2**64 - 2, "rkey": 3}
    requests = [
        request(10, 0, opcode=1, wr_id=5, size_bytes=70, imm=4, **where),
        request(11, 1, opcode=2, wr_id=6, size_bytes=0),
        request(12, 2, opcode=0, wr_id=7, size_bytes=9, **where),
        request(13, 0, opcode=0, wr_id=5, size_bytes=80, thing=9, **where),
        request(14, 0, opcode=255, queue=Queue.RECV, wr_id=5, size_bytes=500),
    ]
    cqes = [
        cqe(10, 21, 0, wr_id=5, flags=2),
        cqe(11, 22, 1, wr_id=6, opcode=0, flags=8),
        cqe(12, 23, 2, wr_id=8),
        cqe(None, 24, 0, wr_id=5, queue=Queue.RECV, opcode=129, size_bytes=70, flags=2, imm=4),
    ]
    rows, _ = slices(partition(0, requests=requests, cqes=cqes))
    assert [row["args"] for row in rows if not row["path"].endswith("requests")] == [
        {"size_bytes": 70, "wr_id": 5, "position": 0, **where},
        {"size_bytes": 0, "wr_id": 6, "position": 1},
        {"wr_id": 8, "position": 2},
        {"size_bytes": 70, "wr_id": 5, "position": 0, "imm": 4},
    ]


def test_arrivals_of_datagrams_are_without_the_header_before_them(slices):
    endpoints = [queue_pair(0, 7, "aa:11"), queue_pair(1, 8, "bb:22", "aa:11")]
    tagged = {"dir": Dir.IN, "layer": Layer.VERBS, "flags": ChannelFlag.HAS_TAG}
    channels = [{"proc": n, "object": 7 + n, "channel": n, **tagged} for n in range(2)]
    arrived = {"queue": Queue.RECV, "opcode": 128}
    part = partition(
        0,
        cqes=[
            cqe(None, 10, size_bytes=1064, **arrived),
            cqe(None, 20, proc=1, thing=8, size_bytes=1064, **arrived),
            cqe(None, 30, **arrived, status=5),
        ],
    )
    of = run(endpoints=endpoints, channels=channels, routes=[{"channel": n} for n in range(2)])
    rows, _ = slices(part, of=of)
    assert [row["args"].get("size_bytes") for row in rows] == [1024, 1064, None]
