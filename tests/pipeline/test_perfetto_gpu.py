"""GPUs in Perfetto traces, judged by the real trace_processor."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from sigmatrace import api
from sigmatrace.testing.synthetic_gpu import GpuRun, generate_gpu
from sigmatrace.trace_format import DoorbellFlag, Layer, Op
from tests.factories import queue_pair
from tests.perfetto_inputs import partition, run
from tests.perfetto_queries import SLICES, TRACKS

DATA = (Op.SEND, Op.PUT, Op.GET)


def shown(folder, trace_processor):
    """The result of a run, its trace, and slices with arguments."""
    result = api.run(folder, ["perfetto"])
    assert result.ledger["balanced"], [x for x in result.ledger["balance"] if not x["ok"]]
    tp = trace_processor(result.out / "trace.pftrace")
    assert tp.problems() == []
    args = defaultdict(dict)
    for one in tp.query("select arg_set_id, key, int_value, string_value from args"):
        value = one["string_value"] if one["string_value"] is not None else one["int_value"]
        args[one["arg_set_id"]][one["key"].removeprefix("debug.")] = value
    slices = tp.query(SLICES)
    rows = [{**row, "path": row["path"] or "", "args": args[row["arg_set_id"]]} for row in slices]
    return result, tp, rows


@pytest.fixture
def traced(tmp_path, trace_processor):
    """A synthetic run, its trace, and slices with arguments."""
    truth = generate_gpu(tmp_path / "run", GpuRun(ranks=3, doorbells=30))
    return truth, *shown(tmp_path / "run", trace_processor)


def test_kernels_are_slices_of_their_gpu(traced) -> None:
    truth, _, _, rows = traced
    kernels = [row for row in rows if row["path"] == "GPU 0 (GPU)/kernels"]
    found = [(row["process"], row["ts"], row["ts"] + row["dur"]) for row in kernels]
    assert sorted(found) == sorted((f"rank {r} (node0)", a, b) for r, a, b in truth.kernels)
    assert {row["name"] for row in kernels} == {"exchange"}
    assert {(row["args"]["blocks"], row["args"]["threads"]) for row in kernels} == {(8, 256)}


COUNTED = {
    **{Op.SEND: "sends", Op.PUT: "puts", Op.GET: "gets"},
    **{Op.ATOMIC_FETCH: "atomics", Op.NOP: "others"},
}


def judge_doorbells(truth, rows) -> Counter:
    """Each operation of each doorbell is counted once, on the track of its kind.

    Returns:
        Doorbells by how many tracks they are on.
    """
    wanted = defaultdict(list)
    for post in truth.posts:
        kind = "data" if post.op in DATA else "control"
        wanted[f"rank {post.src} (node0)", post.doorbell].append((kind, post))
    doorbells = [row for row in rows if "doorbells" in row["path"]]
    for row in doorbells:
        every = [post for _, post in wanted[row["process"], row["ts"]]]
        kind = row["path"].removeprefix("GPU 0 (GPU)/doorbells: ")
        posts = [post for one, post in wanted[row["process"], row["ts"]] if one == kind]
        assert row["args"] == {
            "qp": 0x100 + every[0].object,
            "index": every[-1].index + every[-1].slots,
            "slots": sum(post.slots for post in every),
            "delay_ns": 300,
            "operations": len(posts),
            "size_bytes": sum(post.size_bytes for post in posts),
            **Counter(COUNTED[post.op] for post in posts),
        }
        assert any(a < row["ts"] < b for r, a, b in truth.kernels if row["process"][5] == str(r))
    shown = Counter((row["process"], row["ts"]) for row in doorbells)
    assert shown == Counter({key: len({kind for kind, _ in x}) for key, x in wanted.items()})
    return Counter(shown.values())


def test_doorbells_of_data_and_of_control_are_apart(traced) -> None:
    truth, result, _, rows = traced
    assert judge_doorbells(truth, rows) == {1: sum(truth.doorbells.values())}
    assert result.ledger["exports"]["perfetto"]["doorbells_twice"] == 0


def test_what_a_doorbell_announces_of_both_is_apart_per_operation(
    tmp_path, trace_processor
) -> None:
    truth = generate_gpu(tmp_path / "run", GpuRun(doorbells=30, mixed=True))
    result, _, rows = shown(tmp_path / "run", trace_processor)
    found = judge_doorbells(truth, rows)
    assert found[1] and found[2] == result.ledger["exports"]["perfetto"]["doorbells_twice"] > 0
    assert found[1] + found[2] == sum(truth.doorbells.values())


def test_requests_are_below_their_queue_pair_and_nothing_is_outstanding(traced) -> None:
    truth, _, tp, rows = traced
    found = Counter(
        (row["process"], row["path"].split("/")[1])
        for row in rows
        if row["path"].endswith("/requests")
    )
    assert found == Counter(
        (f"rank {post.src} (node0)", f"QP {0x100 + post.object:#x} → rank {post.dst}")
        for post in truth.posts
        if post.op != Op.NOP
    )
    assert tp.value("select count(*) from args where key like '%.wr_id'") == 0
    assert tp.value("select count(*) from args where key like '%.rkey'") > 0
    assert tp.value("select count(*) from track where name = 'outstanding'") == 0


def test_completions_that_are_seen_end_slices_of_their_queue_pair(
    tmp_path, trace_processor
) -> None:
    truth = generate_gpu(tmp_path / "run", GpuRun(ranks=3, doorbells=30, completed=0.8))
    result = api.run(tmp_path / "run", ["perfetto"])
    tp = trace_processor(result.out / "trace.pftrace")
    rows = tp.query(
        "select s.ts + s.dur as at, s.dur, a.int_value as most from slice s"
        " join args a on s.arg_set_id = a.arg_set_id where a.key like '%at_most_ns'"
    )
    assert sorted(row["at"] for row in rows) == sorted(x[3] for x in truth.completions)
    assert {(row["dur"], row["most"]) for row in rows} == {(699, 699)}
    names = {row["name"] for row in tp.query("select distinct name from counter_track")}
    assert "outstanding slots" in names and "outstanding" not in names


def test_bandwidth_of_gpus_is_the_sum_of_their_queue_pairs(traced) -> None:
    truth, result, tp, _ = traced
    counters = tp.query(
        f"{TRACKS} select sum(c.value) as total, q.name as owner, t.name, count(*) as values_"
        " from counter c join track t on c.track_id = t.id join track q on q.id = t.parent_id"
        " group by q.name, q.id, t.name"
    )
    total = defaultdict(float)
    for row in counters:
        kind = row["owner"].split(" ")[0]
        total[kind, row["name"]] += row["total"] * result.run.facts["bin_ns"] / 1e9
    sent = sum(post.size_bytes for post in truth.posts if post.op in (Op.SEND, Op.PUT))
    sent += sum(post.size_bytes for post in truth.posts if post.op == Op.ATOMIC_FETCH)
    got = sum(post.size_bytes for post in truth.posts if post.op == Op.GET)
    # Each byte leaves one queue pair and arrives at another one; arrivals cannot be seen.
    for owner in ("QP", "GPU"):
        assert total[owner, "egress"] == pytest.approx(sent + got)
        assert total[owner, "ingress"] == pytest.approx(sent + got)


def test_doorbells_without_operations_are_not_guessed_and_strangers_are_counted(load) -> None:
    pair = {"layer": Layer.MLX5DV, "type": "mlx5_qp"}
    of = run(
        endpoints=[queue_pair(0, 7, "aa:11", "bb:22", **pair)],
        gpu_queues=[{"proc": 0, "object": 7}],
    )
    flags = DoorbellFlag.SYNTHESIZED | DoorbellFlag.LATE
    rings = [{"t": 10, "qp": 7, "slots": 3, "index": 3, "flags": flags}, {"t": 20, "qp": 8}]
    kernels = [{"t": 5, "duration_ns": 9, "gpu": 0}, {"t": 5, "duration_ns": 9, "gpu": 3}]
    requests = [{"t": 10, "proc": 0, "object": 7, "queue": 1}]
    rows = {"doorbells": rings, "kernels": kernels, "requests": requests, "wqes": [{"t": 10}]}
    tp, exported = load(partition(0, **rows), of=of)
    found = [(row["ts"], row["dur"], row["path"]) for row in tp.query(SLICES)]
    assert sorted(found) == [
        (5, 9, "host memory, or a GPU that is not known/kernels"),
        (10, 0, "QPs/QP 0x11 → ib:bb:22/requests"),
        (10, 0, "host memory, or a GPU that is not known/doorbells"),
    ]
    assert tp.value("select count(*) from args where string_value = 'synthesized late'") == 1
    assert tp.value("select count(*) from track where name = 'outstanding'") == 0
    counts = exported.counts
    assert (counts["doorbell_records"], counts["doorbell_left_out"]) == (1, 1)
    assert (counts["kernel_records"], counts["kernel_left_out"]) == (1, 1)
    assert counts["wqe_left_out"] == 1


def test_a_gpu_without_kernels_says_why(load) -> None:
    of = run(
        gpus=[{"proc": proc, "object": 5, "name": "H200"} for proc in (0, 1)],
        gpu_queues=[{"proc": 1, "object": 7}],  # in the host's memory, or nobody knows where
        kernels_not_recorded=[{"proc": 1, "object": 2, "reason": "no CUPTI"}],
    )
    tp, exported = load(partition(0), of=of)
    found = [(row["process"], row["path"], row["name"]) for row in tp.query(SLICES)]
    assert found == [("rank 1 (b)", "GPU 0 (H200)/kernels", "not recorded: no CUPTI")]
    assert exported.counts["kernels_absent"] == exported.counts["instants"] == 1


def test_queue_pairs_that_only_receive_have_their_peer_in_their_name(load) -> None:
    pair = {"layer": Layer.MLX5DV, "type": "mlx5_qp"}
    endpoints = [
        queue_pair(0, 7, "aa:11", "bb:22", **pair),
        queue_pair(1, 8, "bb:22", "aa:11", **pair),
        queue_pair(1, 9, "bb:23", "cc:33", **pair),
    ]
    rings = [{"t": 10, "proc": 1, "qp": thing} for thing in (8, 9)]
    requests = [{"t": 10, "proc": 1, "object": thing, "queue": 1} for thing in (8, 9)]
    queues = [{"proc": 1, "object": 8}, {"proc": 1, "object": 9}]
    of = run(endpoints=endpoints, gpu_queues=queues)
    tp, _ = load(partition(0, doorbells=rings, requests=requests), of=of)
    found = {row["path"] for row in tp.query(SLICES)}
    assert {path for path in found if path.startswith("QPs")} == {
        "QPs/QP 0x22 → rank 0/requests",
        "QPs/QP 0x23 → ib:cc:33/requests",
    }


def test_a_queue_pair_without_a_place_has_its_number_all_the_same(load) -> None:
    endpoint = queue_pair(0, 7, layer=Layer.MLX5DV, type="mlx5_qp")
    of = run(endpoints=[endpoint], gpu_queues=[{"proc": 0, "object": 7, "qpn": 0x44}])
    tp, _ = load(partition(0, doorbells=[{"t": 10, "qp": 7}]), of=of)
    assert tp.value("select int_value from args where key = 'debug.qp'") == 0x44


@pytest.mark.parametrize("unconnected", [False, True])
def test_what_kernels_post_leads_to_the_queue_pair_that_it_reaches(
    tmp_path, trace_processor, unconnected
) -> None:
    truth = generate_gpu(tmp_path / "run", GpuRun(doorbells=10, unconnected=unconnected))
    result = api.run(tmp_path / "run", ["perfetto"])
    assert result.ledger["balanced"], [x for x in result.ledger["balance"] if not x["ok"]]
    tp = trace_processor(result.out / "trace.pftrace")
    rows = [row for row in tp.query(SLICES) if (row["path"] or "").endswith("/by peers")]
    found = Counter((row["process"], row["path"].split("/")[1], row["name"]) for row in rows)

    def there(post):
        """Queue pairs are numbered from 0x10a, in the order of the other ranks."""
        others = [rank for rank in range(3) if rank != post.dst]
        qpn = 0x10A if unconnected else 0x10A + others.index(post.src)
        return f"QP {qpn:#x} → {'several' if unconnected else f'rank {post.src}'}"

    assert found == Counter(
        (f"rank {post.dst} (node0)", there(post), f"{post.op.name.lower()} by rank {post.src}")
        for post in truth.posts
        if post.op not in (Op.NOP, Op.BIND, Op.INVALIDATE)
    )
    assert tp.value("select count(*) from flow") == len(rows) > 0
