"""Reports of scenarios: their numbers are those of the truth."""

from __future__ import annotations

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
from tests.report_page import Page

ROWS = 1000


def reported(folder: Path, *overrides: str) -> tuple[Page, api.Result]:
    more = [f"export.report.rows={ROWS}", "cluster.workers=1", *overrides]
    result = api.run(folder, export="report", out=folder.parent / "out", overrides=more)
    assert result.ledger["balanced"], result.ledger["balance"]
    return Page(result.out / "report.html"), result


def matrix(page: Page, level: str, names: list[str]) -> tuple[Any, Any]:
    """Return operations and bytes at a level, by the place of names."""
    place = {name: at for at, name in enumerate(names)}
    count, size = np.zeros((2, len(names), len(names)), np.int64)
    rows = page.rows(f"communication-{level}")
    for row in rows:
        at = place[row["from"]], place[row["to"]]
        count[at], size[at] = int(row["operations"]), int(row["bytes"])
    assert np.count_nonzero(count) == len(rows)
    return count, size


def ranks(count: int) -> list[str]:
    return [f"rank {n}" for n in range(count)]


@pytest.mark.parametrize("name", ["ring", "alltoall"])
def test_collectives(tmp_path: Path, name: str) -> None:
    truth = generate(name, tmp_path / "run")
    assert isinstance(truth, RingTruth | AlltoallTruth)
    page, result = reported(tmp_path / "run")
    count, size = matrix(page, "rank", ranks(8))
    assert np.array_equal(count, truth.count) and np.array_equal(size, truth.size_bytes)
    size = matrix(page, "node", [f"node{n}" for n in range(4)])[1]
    assert np.array_equal(size, truth.size_bytes.reshape(4, 2, 4, 2).sum(axis=(1, 3)))
    assert "Nothing was lost at capture." in page.text and "Attention:" not in page.text
    assert f"{truth.operations // 2} operations that" in page.figures["figure-sizes"]
    shown = result.ledger["exports"]["report"]
    assert shown["figures"] == len(page.figures)
    assert shown["tables"] == len(page.tables)
    assert shown["rows_shown"] == sum(len(rows) - 1 for rows in page.tables.values())
    drawn = {"matrix-node-ofi", "matrix-rank-ofi", "graph-node-ofi", "graph-rank-ofi", "bandwidth"}
    assert {f"figure-{one}" for one in drawn} <= set(page.figures)


def test_bfs(tmp_path: Path) -> None:
    truth = generate("bfs", tmp_path / "run", doorbells_per_s=5, completed=0.7)
    assert isinstance(truth, BfsTruth)
    page, _ = reported(tmp_path / "run")
    levels = {
        "gpu": [f"rank {n} GPU {n} (GPU)" for n in range(4)],
        "nic": [f"mlx5_{n} port 1 (node0)" for n in range(4)],
        "rank": ranks(4),
    }
    for level, names in levels.items():
        count, size = matrix(page, level, names)
        assert np.array_equal(count, truth.count) and np.array_equal(size, truth.size_bytes)
    found = [(int(row["object"]), int(row["status"])) for row in page.rows("errors")]
    assert sorted(found) == sorted((qp, status) for _, qp, status in truth.errors.tolist())
    assert "figure-graph-gpu-mlx5dv" in page.figures and "figure-matrix-qp-mlx5dv" in page.figures
    assert "figure-matrix-node-mlx5dv" not in page.figures  # one node


def test_moe_in_its_window(tmp_path: Path) -> None:
    truth = generate("moe", tmp_path / "run")
    assert isinstance(truth, MoeTruth)
    page, _ = reported(tmp_path / "run", f"window={truth.window}")
    count, size = matrix(page, "rank", ranks(16))
    assert np.array_equal(count, truth.count) and np.array_equal(size, truth.size_bytes)
    size = matrix(page, "node", [f"node{n}" for n in range(4)])[1]
    assert np.array_equal(size, truth.node_bytes)
    (row,) = (row for row in page.rows("imbalance") if row["level"] == "node")
    assert float(row["egress ratio"]) == pytest.approx(2.13, abs=1e-12)
    assert float(row["pair ratio"]) == pytest.approx(2.15, abs=1e-12)
    assert row["egress max"] == "node2" and (row["pair src"], row["pair dst"]) == ("node2", "node1")
    said = page.figures["figure-matrix-node-verbs"]
    assert "The heaviest pair of different nodes is node2 to node1 with 14.8 GiB" in said
    assert said.count("14.8 GiB") == 3 and truth.window in page.text  # title, cell, caption
    assert f"SigmaTrace report run, 16 processes, {truth.window}" in page.text
    assert "(10 s after the run's), for " in page.text


def test_what_was_lost_comes_before_what_was_found(tmp_path: Path) -> None:
    generate_synthetic(tmp_path / "run", ranks=4, hosts=2, events=4000)
    cut = min((tmp_path / "run").glob("*.msgpack"))
    cut.write_bytes(cut.read_bytes()[:-100])
    page, _ = reported(tmp_path / "run")
    assert "Some of what happened is not in the data" in page.text
    assert page.text.index("without an end item") < page.text.rindex("\nFindings\n")


def test_the_same_run_makes_the_same_report(tmp_path: Path) -> None:
    generate("ring", tmp_path / "run", ranks=2, hosts=2, slow_rank=0)
    one, other = (
        api.run(tmp_path / "run", export="report", out=tmp_path / name).out
        for name in ("one", "other")
    )
    names = sorted(path.relative_to(one) for path in (one / "report").iterdir())
    for name in ("report.html", *names):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
