"""Operations of GPUs through the whole pipeline, against what was generated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sigmatrace import api
from sigmatrace.capture import items
from sigmatrace.testing.synthetic_gpu import GpuRun, GpuTruth, generate_gpu
from sigmatrace.text import count_text
from sigmatrace.trace_format import Item, Layer, Op, Schema

ADDRESSED = (Op.PUT, Op.GET, Op.ATOMIC_FETCH)


@pytest.fixture(params=["connected", "unconnected", "overwritten"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[GpuTruth, api.Result]:
    lost = 0.1 if request.param == "overwritten" else 0.0
    truth = generate_gpu(
        tmp_path / "run", GpuRun(lost=lost, unconnected=request.param == "unconnected")
    )
    result = api.run(tmp_path / "run", ["parquet"], overrides=["partition_mb=1"])
    assert result.ledger["balanced"], [x for x in result.ledger["balance"] if not x["ok"]]
    return truth, result


def test_traffic_is_what_was_posted(made) -> None:
    truth, result = made
    wanted: Counter[tuple[int, ...]] = Counter()
    for post in truth.posts:
        if not post.is_lost and post.op != Op.NOP:
            way = (post.dst, post.src) if post.op == Op.GET else (post.src, post.dst)
            wanted[(*way, post.op)] += post.size_bytes
    found = {
        (row["src_proc"], row["dst_proc"], row["op"]): row["size_bytes"]
        for row in result.tables["traffic"].to_pylist()
        if row["op"] != Op.NOP
    }
    assert found == wanted
    assert set(result.tables["traffic"].column("layer").to_pylist()) == {Layer.MLX5DV}


def test_doorbells_and_slots_are_those_of_each_queue_pair(made) -> None:
    truth, result = made
    rows = {(r["proc"], r["object"]): r for r in result.tables["doorbells_by_qp"].to_pylist()}
    assert rows.keys() == truth.doorbells.keys()
    for key, row in rows.items():
        posts = [post for post in truth.posts if (post.src, post.object) == key]
        good = [post for post in posts if not post.is_lost]
        assert row["doorbells"] == truth.doorbells[key]
        assert row["slots"] == row["read"] == sum(post.slots for post in posts)
        assert row["invalid"] == sum(post.slots for post in posts if post.is_lost)
        assert row["wqes"] == row["operations"] == len(good)
        assert row["wqe_bytes"] == row["size_bytes"] == sum(post.size_bytes for post in good)
        assert row["delay_total_ns"] == 300 * row["doorbells"]
    batches = result.tables["doorbell_batches"]
    each: Counter[tuple[int, ...]] = Counter()
    slots: Counter[tuple[int, int, int]] = Counter()
    for post in truth.posts:
        slots[post.src, post.object, post.doorbell] += post.slots
    for (src, thing, _), count in slots.items():
        each[src, thing, count.bit_length() - 1] += 1
    keys = ("proc", "object", "log2")
    assert each == {tuple(r[k] for k in keys): r["doorbells"] for r in batches.to_pylist()}
    count = result.ledger["stages"]["doorbell"]
    assert count["queue_pairs_compared"] + count["queue_pairs_not_compared"] == len(rows)
    if not any(post.is_lost for post in truth.posts):
        assert count["queue_pairs_not_compared"] == 0


def test_each_slot_is_decoded(made) -> None:
    truth, result = made
    table = pq.read_table(result.out / "parquet" / "wqes")
    first = table.filter(pc.greater(table.column("slots"), 0)).to_pylist()
    names = ("proc", "qp", "index", "slots", "op", "opcode", "size_bytes", "raddr")
    assert sorted(tuple(row[name] for name in names) for row in first) == sorted(
        (p.src, p.object, p.index, p.slots, p.op, p.opcode, p.size_bytes, p.raddr)
        for p in truth.posts
        if not p.is_lost
    )


def test_memory_of_layer_verbs_is_found(made) -> None:
    truth, result = made
    owners = result.ledger["stages"]["one_sided"]["owners"]
    addressed = sum(post.op in ADDRESSED and not post.is_lost for post in truth.posts)
    assert {name: n for name, n in owners.items() if n} == {
        "region": addressed,
        "not_one_sided": sum(post.op == Op.SEND and not post.is_lost for post in truth.posts),
    }
    requests = pq.read_table(result.out / "parquet" / "requests")
    names = ("proc", "object", "position", "target_proc")
    reached = {
        row[:3]: row[3] for row in zip(*(requests[x].to_pylist() for x in names), strict=True)
    }
    for post in truth.posts:
        if post.op in ADDRESSED and not post.is_lost:
            assert reached[post.src, post.object, post.index] == post.dst
    text = "\n".join(result.lines)
    assert "of GPUs: not visible" in text and "outstanding" not in text


def test_sends_to_gpus_are_not_taken_for_lost_ones(made) -> None:
    truth, result = made
    sends = sum(post.op == Op.SEND and not post.is_lost for post in truth.posts)
    match = result.ledger["stages"]["match"]
    unmatched = {reason: n for reason, n in match["sends_unmatched"].items() if n}
    assert unmatched == {"receiver_not_visible": sends}
    assert f"{count_text(sends)} receiver not visible" in result.text()


@pytest.mark.parametrize("unconnected", [False, True])
def test_requests_complete_as_far_as_was_seen(tmp_path: Path, unconnected: bool) -> None:
    truth = generate_gpu(tmp_path / "run", GpuRun(unconnected=unconnected, completed=0.7))
    result = api.run(tmp_path / "run", ["parquet"], overrides=["partition_mb=1"])
    assert result.ledger["balanced"], [x for x in result.ledger["balance"] if not x["ok"]]
    until = {key: -1 for key in truth.doorbells}
    for rank, thing, index, _, _ in truth.completions:
        until[rank, thing] = max(until[rank, thing], index)
    requests = [post for post in truth.posts if post.op != Op.NOP]
    behind = Counter((p.src, p.object) for p in requests if p.index > until[p.src, p.object])
    queues = {(r["proc"], r["object"]): r for r in result.tables["queues"].to_pylist()}
    assert queues.keys() == until.keys()
    for key, row in queues.items():
        mine = [x for x in truth.completions if x[:2] == key]
        assert (row["visible"], row["outstanding"]) == (True, behind[key])
        assert (row["cqes"], row["errors"]) == (len(mine), 1)
    counts = [len(requests) - behind.total(), len(requests), behind.total()]
    done, all_, open_ = map(count_text, counts)
    line = f"{done} of {all_} requests of GPUs, {open_} outstanding; at least {len(queues)} errors;"
    assert line in result.text()
    for row in result.tables["latencies"].to_pylist():
        assert (row["at_most"], row["min_ns"], row["max_ns"]) == (True, 699, 699)


def test_the_summary_names_what_there_is(made) -> None:
    truth, result = made
    text = result.text()
    slots = sum(post.slots for post in truth.posts)
    assert f"{count_text(slots)} send queue slots, 6 GPU kernels of 3 processes" in text
    lost = sum(post.slots for post in truth.posts if post.is_lost)
    assert (f"{count_text(lost)} slots overwritten before the copy" in text) == (lost > 0)


def test_kernels_have_their_times(made) -> None:
    truth, result = made
    base = result.run.facts["base_ns"]
    rows = pq.read_table(result.out / "parquet" / "kernels").to_pylist()
    found = [(r["proc"], r["t_ns"] - base, r["t_ns"] - base + r["duration_ns"]) for r in rows]
    assert sorted(found) == sorted(truth.kernels)


@pytest.mark.parametrize("schema", [Schema.OP, Schema.WQE])
def test_a_damaged_chunk_is_no_equation_that_does_not_hold(tmp_path: Path, schema: Schema) -> None:
    """It is found when events are read; then its process is not compared, the others are."""
    generate_gpu(tmp_path / "run", GpuRun(ranks=3))
    path = sorted((tmp_path / "run").glob("*.msgpack"))[0]
    data = bytearray(path.read_bytes())
    spans = [span for span in items.walk(bytes(data)) if span.kind == Item.CHUNK]
    span = next(span for span in spans if span.chunk.schema == schema)
    data[span.offset + span.size - 1] ^= 1
    path.write_bytes(data)
    result = api.run(tmp_path / "run", ["parquet"])
    assert result.ledger["balanced"], [x for x in result.ledger["balance"] if not x["ok"]]
    count = result.ledger["stages"]["doorbell"]
    assert (count["processes_compared"], count["processes_not_compared"]) == (2, 1)
    assert (count["queue_pairs_compared"], count["queue_pairs_not_compared"]) == (4, 2)
