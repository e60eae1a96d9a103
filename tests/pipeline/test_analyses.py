"""Communication, imbalance, links and errors against the truth of scenarios, end to end."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sigmatrace import api
from sigmatrace.testing.scenarios import generate
from sigmatrace.testing.scenarios_bfs import BfsTruth
from sigmatrace.testing.scenarios_collectives import AlltoallTruth, RingTruth
from sigmatrace.testing.scenarios_moe import MoeTruth
from sigmatrace.testing.synthetic import generate as generate_synthetic
from sigmatrace.testing.synthetic_gpu import GpuRun, generate_gpu
from sigmatrace.trace_format import Layer
from tests.pipeline.test_damaged_aggregates import write as write_aggregates

STAGES = ("clock", "communication", "imbalance", "links", "errors")


def analysed(folder: Path, *overrides: str) -> api.Result:
    result = api.run(
        folder, export=["csv"], stage=STAGES, out=folder.parent / "out", overwrite=True,
        overrides=[*overrides, "cluster.workers=1"],
    )  # fmt: skip
    assert result.ledger["balanced"], result.ledger["balance"]
    return result


def matrix(result: api.Result, level: str, names: Sequence[str]) -> tuple[Any, Any]:
    """Return operations and bytes at a level, by the place of names; every row has its place."""
    place = {name: at for at, name in enumerate(names)}
    count, size = np.zeros((2, len(names), len(names)), np.int64)
    for row in result.tables["communication"].to_pylist():
        if row["level"] == level:
            at = place[row["src"]], place[row["dst"]]
            assert count[at] == 0
            count[at], size[at] = row["operations"], row["size_bytes"]
    return count, size


def ranks(count: int) -> list[str]:
    return [f"rank {n}" for n in range(count)]


def uneven(result: api.Result, level: str) -> Mapping[str, Any]:
    (row,) = (x for x in result.tables["imbalance"].to_pylist() if x["level"] == level)
    return row


def test_bfs_at_every_level(tmp_path: Path) -> None:
    truth = generate("bfs", tmp_path / "run", doorbells_per_s=20)
    assert isinstance(truth, BfsTruth)
    result = analysed(tmp_path / "run")
    levels = {
        "gpu": [f"rank {n} GPU {n} (GPU)" for n in range(4)],
        "nic": [f"mlx5_{n} port 1 (node0)" for n in range(4)],
        "rank": ranks(4),
    }
    for level, names in levels.items():
        count, size = matrix(result, level, names)
        assert np.array_equal(count, truth.count) and np.array_equal(size, truth.size_bytes)
    count, size = matrix(result, "node", ["node0"])
    assert (count.sum(), size.sum()) == (truth.count.sum(), truth.size_bytes.sum())
    peers = [[other for other in range(4) if other != gpu] for gpu in range(4)]
    found = {
        (row["src"], row["dst"]): (row["operations"], row["size_bytes"])
        for row in result.tables["communication"].to_pylist()
        if row["level"] == "qp"
    }
    assert found == {
        (
            f"rank {src} QP 0x{0x10A + peers[src].index(dst):x}",
            f"rank {dst} QP 0x{0x10A + peers[dst].index(src):x}",
        ): (truth.count[src, dst], truth.size_bytes[src, dst])
        for src, dst in itertools.permutations(range(4), 2)
    }


def test_errors_are_those_of_the_scenario(tmp_path: Path) -> None:
    truth = generate("bfs", tmp_path / "run", doorbells_per_s=5, completed=0.7)
    assert isinstance(truth, BfsTruth)
    table = analysed(tmp_path / "run").tables["errors"].to_pylist()
    found = [(row["proc"], row["object"], row["status"], row["count"]) for row in table]
    assert found == sorted((*row, 1) for row in truth.errors.tolist()) and len(found) == 12
    assert {row["kind"] for row in table} == {"work completion"}


def test_moe_is_as_uneven_as_the_paper_says(tmp_path: Path) -> None:
    truth = generate("moe", tmp_path / "run")
    assert isinstance(truth, MoeTruth)
    nodes = [f"node{n}" for n in range(4)]
    result = analysed(tmp_path / "run", f"window={truth.window}")
    for level, names in (("rank", ranks(16)), ("gpu", gpu_names()), ("nic", nic_names())):
        count, size = matrix(result, level, names)
        assert np.array_equal(count, truth.count) and np.array_equal(size, truth.size_bytes)
    count, size = matrix(result, "node", nodes)
    assert np.array_equal(count, truth.node_count) and np.array_equal(size, truth.node_bytes)
    row = uneven(result, "node")
    assert (row["members"], row["layer"]) == (4, Layer.VERBS)
    assert (row["egress_max"], row["ingress_max"]) == ("node2", "node2")
    assert row["egress_ratio"] == pytest.approx(2.13, abs=1e-12)
    assert (row["pair_src"], row["pair_dst"]) == ("node2", "node1")
    assert row["pair_ratio"] == pytest.approx(2.15, abs=1e-12)
    assert row["pair_max_bytes"] == truth.node_bytes[2, 1]
    assert round(size[2, 1] / 1e9, 1) == 15.9 and round(size[1, 2] / 1e9, 1) == 12.3
    assert any("2.13 to 1 (node2" in line for line in result.lines)
    for level, names, sums in (
        ("rank", ranks(16), truth.size_bytes),
        ("node", nodes, truth.node_bytes),
    ):
        row = uneven(result, level)
        for way, axis in (("egress", 1), ("ingress", 0)):
            moved = sums.sum(axis=axis).tolist()
            assert row[f"{way}_ratio"] == pytest.approx(max(moved) / min(moved))
            assert row[f"{way}_max"] == names[moved.index(max(moved))]
        pairs = sums[sums > 0]
        assert row["pair_ratio"] == pytest.approx(float(Fraction(int(pairs.max())) / pairs.mean()))


def gpu_names() -> list[str]:
    return [f"rank {n} GPU {n % 4} (GPU)" for n in range(16)]


def nic_names() -> list[str]:
    return [f"mlx5_{n % 4} port 1 (node{n // 4})" for n in range(16)]


def test_moe_without_a_window_has_the_loading_of_weights(tmp_path: Path) -> None:
    truth = generate("moe", tmp_path / "run", steps=2)
    assert isinstance(truth, MoeTruth)
    result = analysed(tmp_path / "run")
    count, size = matrix(result, "rank", ranks(16))
    assert np.array_equal(count, truth.all_count) and np.array_equal(size, truth.all_bytes)
    size = matrix(result, "node", [f"node{n}" for n in range(4)])[1]
    assert np.array_equal(size, truth.all_node_bytes)
    assert uneven(result, "node")["egress_max"] == "node0"


def plain_links(
    truth: RingTruth | AlltoallTruth | MoeTruth, begin_ns: int, slot_ns: int, since_ns: int = 0
) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    """Return operations, bytes, idle and longest idle time of each pair, by plain sets of slots."""
    sent, found = truth.sent, {}
    rows = [row for row in range(sent.src.size) if sent.sent_ns[row] >= since_ns]
    rows.sort(key=lambda row: (sent.src[row], sent.dst[row]))
    for pair, own in itertools.groupby(rows, lambda row: (int(sent.src[row]), int(sent.dst[row]))):
        mine = list(own)
        slots = sorted({(int(sent.sent_ns[row]) - begin_ns) // slot_ns for row in mine})
        gaps = [later - one - 1 for one, later in itertools.pairwise(slots)]
        size = sum(int(sent.size_bytes[row]) for row in mine)
        longest = max(gaps, default=0) * slot_ns
        found[pair] = len(mine), size, sum(gaps) * slot_ns, longest
    return found


def links(result: api.Result) -> tuple[dict[tuple[int, int], tuple[int, ...]], int]:
    rows = result.tables["links"].to_pylist()
    names = ("operations", "size_bytes", "idle_ns", "longest_idle_ns")
    (slot_ns,) = {row["slot_ns"] for row in rows}
    found = {(row["src_proc"], row["dst_proc"]): tuple(row[x] for x in names) for row in rows}
    assert len(found) == len(rows)
    return found, slot_ns


@pytest.mark.parametrize("name", ["ring", "alltoall"])
def test_messages_of_ranks_and_nodes_and_idle_links(tmp_path: Path, name: str) -> None:
    truth = generate(name, tmp_path / "run")
    assert isinstance(truth, RingTruth | AlltoallTruth)
    result = analysed(tmp_path / "run")
    count, size = matrix(result, "rank", ranks(8))
    assert np.array_equal(count, truth.count) and np.array_equal(size, truth.size_bytes)
    size = matrix(result, "node", [f"node{n}" for n in range(4)])[1]
    assert np.array_equal(size, truth.size_bytes.reshape(4, 2, 4, 2).sum(axis=(1, 3)))
    found, slot_ns = links(result)
    assert found == plain_links(truth, result.run.fact_ns("base_ns"), slot_ns)
    levels = Counter(row["level"] for row in result.tables["communication"].to_pylist())
    assert "nic" not in levels and "gpu" not in levels
    assert result.tables["errors"].num_rows == 0


def test_an_alltoall_is_idle_while_it_waits_for_the_slow_rank(tmp_path: Path) -> None:
    """Between rounds nothing is sent for as long as the slow rank is late, to about two slots."""
    truth = generate("alltoall", tmp_path / "run", delay_ns=5_000_000, rounds=4)
    assert isinstance(truth, AlltoallTruth)
    found, slot_ns = links(analysed(tmp_path / "run"))
    for (src, dst), (_, _, idle_ns, longest_ns) in found.items():
        mine = (truth.sent.src == src) & (truth.sent.dst == dst)
        gaps = np.diff(truth.sent.sent_ns[mine])
        assert abs(longest_ns - gaps.max()) <= 2 * slot_ns
        assert abs(idle_ns - gaps.sum()) <= 2 * slot_ns * gaps.size
        assert longest_ns > 4_900_000


def test_links_of_a_window(tmp_path: Path) -> None:
    truth = generate("moe", tmp_path / "run", steps=8)
    assert isinstance(truth, MoeTruth)
    found, slot_ns = links(analysed(tmp_path / "run", f"window={truth.window}"))
    assert found == plain_links(truth, truth.serve_ns, slot_ns, truth.serve_ns)
    assert slot_ns == 2**20  # 0.9 s in up to 1024 slots, and not all 11 s


@pytest.mark.parametrize("more", [{"tagged": True, "mode": "full"}, {"clock_offset_ns": 10**7}])
def test_lossy_runs_in_many_partitions(tmp_path: Path, more: dict[str, Any]) -> None:
    shape = {"ranks": 6, "hosts": 3, "events": 120_000, "loss": 0.1, "unmatched": 0.05}
    truth = generate_synthetic(tmp_path / "run", chunk_records=512, **shape, **more)
    result = analysed(tmp_path / "run", "partition_mb=1")
    count, size = matrix(result, "rank", ranks(6))
    src, dst = truth.pairs["src"], truth.pairs["dst"]
    assert np.array_equal(count[src, dst], truth.pairs["sent"]) and count.sum() == sum(
        count[src, dst]
    )
    assert np.array_equal(size[src, dst], truth.pairs["sent_bytes"])
    found, _ = links(result)
    assert {pair: one[:2] for pair, one in found.items()} == {
        (s, d): (count[s, d], size[s, d]) for s, d in zip(src.tolist(), dst.tolist(), strict=True)
    }
    whole = analysed(tmp_path / "run", "partition_mb=48")
    for name in ("communication", "imbalance", "links", "errors"):
        assert whole.tables[name].equals(result.tables[name])


@pytest.mark.parametrize("unconnected", [False, True])
def test_gpus_that_reach_several_by_one_queue_pair(tmp_path: Path, unconnected: bool) -> None:
    truth = generate_gpu(tmp_path / "run", GpuRun(unconnected=unconnected, completed=0.5))
    result = analysed(tmp_path / "run")
    counted = [post for post in truth.posts if post.op.name != "NOP"]
    want = Counter(
        (post.dst, post.src) if post.op.name == "GET" else (post.src, post.dst) for post in counted
    )
    count, size = matrix(result, "rank", ranks(3))
    assert {at: count[at] for at in want} == want and count.sum() == len(counted)
    assert size.sum() == sum(post.size_bytes for post in counted)
    names = [f"rank {n} GPU 0 (GPU)" for n in range(3)]
    assert np.array_equal(matrix(result, "gpu", names)[0], count)
    errors = Counter((rank, qp, status) for rank, qp, _, _, status in truth.completions if status)
    assert errors.total() == (3 if unconnected else 6)
    assert errors == {
        (row["proc"], row["object"], row["status"]): row["count"]
        for row in result.tables["errors"].to_pylist()
        if row["kind"] == "work completion" and row["layer"] == Layer.MLX5DV
    }
    assert any(line.startswith("errors ") for line in result.lines)


def test_aggregates_are_in_the_matrix_and_in_no_slot(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for rank in range(2):
        write_aggregates(tmp_path / "run", rank, killed=False)
    result = analysed(tmp_path / "run")
    count, size = matrix(result, "rank", ranks(2))
    assert count.tolist() == [[0, 6], [6, 0]]  # rows of 2 and 4 sends, of 200 and 400 bytes
    assert size.tolist() == [[0, 600], [600, 0]]
    assert result.tables["links"].num_rows == 0


def test_one_stage_brings_in_what_it_needs(tmp_path: Path) -> None:
    plan = api.plan(api.compose([f"run={tmp_path}/run", "stage=[imbalance]", "export=csv"])).text()
    for name in ("clock", "topology", "traffic", "communication", "imbalance"):
        assert f"stage      {name:12} " in plan
    assert plan.count("from tables, in the end") == 2 and "passes over event bytes: 1" in plan
