"""Latencies, waits, barriers, stragglers, critical path and findings of scenarios, end to end."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sigmatrace import api
from sigmatrace.errors import ConfigError
from sigmatrace.testing.scenarios import generate
from sigmatrace.testing.scenarios_bfs import BfsTruth
from sigmatrace.testing.scenarios_collectives import Alltoall, AlltoallTruth, RingTruth
from sigmatrace.testing.scenarios_messages import LATENCY_NS, transfer_ns
from sigmatrace.testing.synthetic import generate as generate_synthetic
from sigmatrace.trace_format import Layer

Row = dict[str, Any]


def analysed(folder: Path, *overrides: str) -> api.Result:
    words = [f"run={folder}", f"out={folder.parent / 'out'}", "overwrite=true", "preset=analysis"]
    result = api.execute(api.compose([*words, "cluster.workers=1", *overrides]))
    assert result.ledger["balanced"], result.ledger["balance"]
    return result


def rows(result: api.Result, table: str) -> list[Row]:
    found: list[Row] = result.tables[table].to_pylist()
    return found


def kinds(result: api.Result) -> list[str]:
    return [row["kind"] for row in rows(result, "findings")]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> tuple[RingTruth, api.Result]:
    folder = tmp_path_factory.mktemp("ring")
    truth = generate("ring", folder / "run")
    assert isinstance(truth, RingTruth)
    return truth, analysed(folder / "run")


def test_the_slow_link_of_a_ring_takes_as_long_as_it_was_made_to(
    ring: tuple[RingTruth, api.Result],
) -> None:
    truth, result = ring
    size = int(truth.sent.size_bytes[0])
    quick, slow = (int(transfer_ns(np.array([size]))[0]) * n + LATENCY_NS for n in (1, 4))
    for row in rows(result, "message_latency"):
        want = slow if row["src_proc"] == truth.shape.slow_rank else quick
        assert row["min_ns"] == row["p50_ns"] == row["p99_ns"] == row["max_ns"] == want
        assert (row["messages"], row["backwards"], row["layer"]) == (56, 0, Layer.OFI)
    histogram = rows(result, "latency_histogram")
    assert [row["count"] for row in histogram] == [7 * 56, 56]
    assert all(row["least_bytes"] <= size <= row["most_bytes"] for row in histogram)


def plain_waits(truth: RingTruth | AlltoallTruth) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Late senders, what was waited for them, and while messages were under way, by pair."""
    sent = truth.sent
    events: dict[int, list[tuple[int, int, int, int]]] = {}
    for src, dst, send, receive in zip(
        *(x.tolist() for x in (sent.src, sent.dst, sent.sent_ns, sent.received_ns)), strict=True
    ):
        events.setdefault(src, []).append((send, 0, 0, -1))
        events.setdefault(dst, []).append((receive, 1, send, src))
    found: Counter[tuple[int, int, str]] = Counter()
    for proc, own in events.items():
        own.sort()
        for before, (receive, is_receive, send, src) in itertools.pairwise(own):
            if is_receive:
                found[src, proc, "late"] += send > before[0]
                found[src, proc, "late_ns"] += max(send - before[0], 0)
                found[src, proc, "under way"] += receive - max(send, before[0])
    return {
        (s, d): (found[s, d, "late"], found[s, d, "late_ns"], found[s, d, "under way"])
        for s, d, _ in found
    }


def waits(result: api.Result) -> dict[tuple[int, int], tuple[int, int, int]]:
    return {
        (row["src_proc"], row["dst_proc"]): (
            *(row["late_sender"], row["late_sender_ns"], row["transfer_ns"]),
        )
        for row in rows(result, "waits")
    }


def test_in_a_ring_all_wait_for_the_slow_link(ring: tuple[RingTruth, api.Result]) -> None:
    truth, result = ring
    assert waits(result) == plain_waits(truth)
    slow = truth.shape.slow_rank
    under_way = {src: ns for (src, _), (_, _, ns) in waits(result).items()}
    assert max(under_way, key=lambda src: under_way[src]) == slow
    # Of the slow link the receiver has nothing else to wait for: it is always busy.
    assert waits(result)[slow, slow + 1][:2] == (0, 0)
    assert under_way[slow] == pytest.approx(truth.busy_ns[slow], rel=0.01)
    most = {row["proc"]: row["mean"] for row in rows(result, "in_flight")}
    assert max(most, key=lambda proc: most[proc]) == slow
    assert rows(result, "barriers") == []


def test_the_critical_path_of_a_ring_goes_around_it(ring: tuple[RingTruth, api.Result]) -> None:
    truth, result = ring
    sent, path = truth.sent, rows(result, "critical_path")
    real = set(zip(*(x.tolist() for x in (sent.src, sent.sent_ns, sent.received_ns)), strict=True))
    messages = [row for row in path if row["kind"] == "message"]
    assert all((x["from_proc"], x["begin_ns"], x["end_ns"]) in real for x in messages)
    assert path[-1]["end_ns"] == int(sent.received_ns.max())
    lasted = path[-1]["end_ns"] - path[0]["begin_ns"]
    assert sum(row["end_ns"] - row["begin_ns"] for row in path) == lasted
    assert path[0]["begin_ns"] == int(sent.sent_ns.min())
    slow = truth.shape.slow_rank
    by_source: Counter[int] = Counter()
    for row in messages:
        by_source[row["from_proc"]] += row["end_ns"] - row["begin_ns"]
    assert by_source.most_common(1)[0][0] == slow


def test_findings_of_a_ring_name_the_slow_link(ring: tuple[RingTruth, api.Result]) -> None:
    _, result = ring
    first = rows(result, "findings")[0]
    assert (first["kind"], first["weight"]) == ("slow link", pytest.approx(1.0, abs=0.01))
    assert first["text"].startswith("messages from rank 2 to rank 3 took 701 us in the median, 3.9")
    assert any(
        line.startswith("finding    messages from rank 2 to rank 3") for line in result.lines
    )
    assert "straggler" not in kinds(result) and "errors" not in kinds(result)


@pytest.mark.parametrize("mode", ["full", "simple"])
def test_the_slow_rank_of_an_alltoall_is_the_straggler(tmp_path: Path, mode: str) -> None:
    truth = generate("alltoall", tmp_path / "run", mode=mode, rounds=12)
    assert isinstance(truth, AlltoallTruth)
    result = analysed(tmp_path / "run")
    barriers, arrivals = rows(result, "barriers"), rows(result, "barrier_arrivals")
    assert {row["kind"] for row in barriers} == {"region" if mode == "full" else "phase"}
    assert [row["spread_ns"] for row in barriers] == truth.spread_ns.tolist()
    assert [row["proc"] for row in arrivals] == truth.order.ravel().tolist()
    if mode == "full":
        came = np.sort(truth.arrival_ns, axis=1)
        assert [row["arrival_ns"] for row in arrivals] == came.ravel().tolist()
    slow = truth.shape.slow_rank
    caused = int((truth.arrival_ns.max(axis=1)[:, None] - truth.arrival_ns).sum())
    for row in rows(result, "stragglers"):
        want = (12, caused) if row["proc"] == slow else (0, 0)
        assert (row["barriers"], row["last"], row["caused_ns"]) == (12, *want)
    assert waits(result) == plain_waits(truth)
    assert kinds(result)[:3] == ["straggler", "late sender", "critical path"]
    texts = [row["text"] for row in rows(result, "findings")]
    assert texts[0].startswith(f"rank {slow} came last at 12 of 12 barriers")
    assert f"until rank {slow} sent" in texts[1] and texts[2].endswith(f"is in rank {slow}")


def test_the_critical_path_of_an_alltoall_goes_through_the_slow_rank(tmp_path: Path) -> None:
    truth = generate("alltoall", tmp_path / "run", slow_rank=5)
    assert isinstance(truth, AlltoallTruth)
    path = rows(analysed(tmp_path / "run"), "critical_path")
    for start in truth.start_ns[:, 5].tolist():  # it is what each round waits for
        assert any(
            row["kind"] == "local" and row["proc"] == 5 and row["begin_ns"] < start <= row["end_ns"]
            for row in path
        )
    in_5 = sum(x["end_ns"] - x["begin_ns"] for x in path if (x["kind"], x["proc"]) == ("local", 5))
    assert in_5 >= 0.8 * Alltoall().delay_ns * truth.shape.rounds


def test_barriers_of_a_bfs_are_those_of_its_levels(tmp_path: Path) -> None:
    truth = generate("bfs", tmp_path / "run", doorbells_per_s=20)
    assert isinstance(truth, BfsTruth)
    result = analysed(tmp_path / "run", "partition_mb=1")
    barriers, arrivals = rows(result, "barriers"), rows(result, "barrier_arrivals")
    assert {(row["kind"], row["members"]) for row in barriers} == {("doorbell", 4)}
    assert [row["spread_ns"] for row in barriers] == truth.spread_ns.tolist()
    assert [row["proc"] for row in arrivals] == truth.order.ravel().tolist()
    came = np.sort(truth.arrival_ns, axis=1)
    assert [row["arrival_ns"] for row in arrivals] == came.ravel().tolist()
    assert [row["last_proc"] for row in barriers] == truth.order[:, -1].tolist() == [0, 0, 1, 1, 1]
    texts = [row["text"] for row in rows(result, "findings") if row["kind"] == "straggler"]
    assert [text.split(";")[0] for text in texts] == [
        "rank 0 came last at 2 of 5 barriers",
        "rank 1 came last at 3 of 5 barriers",
    ]


def test_moe_is_found_uneven(tmp_path: Path) -> None:
    generate("moe", tmp_path / "run", steps=8)
    result = analysed(tmp_path / "run", "window=10s..")
    texts = [row["text"] for row in rows(result, "findings")]
    assert any(text.startswith("node2 sent ") and "2.13 times as much as" in text for text in texts)
    assert any("2.15 times as much as the mean pair of nodes" in text for text in texts)


def test_many_partitions_lossy_and_wrong_clocks(tmp_path: Path) -> None:
    """What is told is the same however the run is cut, and all equations hold."""
    wrong = {"loss": 0.1, "clock_offset_ns": 10**7}
    shape: dict[str, Any] = {"ranks": 6, "hosts": 3, "events": 60_000, **wrong}
    generate_synthetic(tmp_path / "run", chunk_records=512, **shape)
    clocks = "stage.clock.method=calibration"  # as they are: wrong
    one, many = (analysed(tmp_path / "run", f"partition_mb={mb}", clocks) for mb in (48, 1))
    for name in ("message_latency", "latency_histogram", "in_flight", "barriers", "findings"):
        assert one.tables[name].equals(many.tables[name]), name
    assert many.ledger["stages"]["latency"]["backwards"] > 0
    assert "clocks" in kinds(many)


def test_a_run_without_events(tmp_path: Path) -> None:
    generate("bfs", tmp_path / "run", work_ms=((1, 2),), doorbells_per_s=1)
    result = analysed(tmp_path / "run", "window=100s..")
    assert kinds(result) == [] and rows(result, "critical_path") == []


def test_other_regions_may_be_barriers(tmp_path: Path) -> None:
    generate("alltoall", tmp_path / "run", rounds=3)
    result = analysed(tmp_path / "run", "stage.barriers.region=nowhere")
    assert {row["kind"] for row in rows(result, "barriers")} == {"phase"}
    with pytest.raises(ConfigError, match=r"stage\.barriers refuses its options"):
        analysed(tmp_path / "run", "stage.barriers.region=''")
