"""The benchmarks of this project: counts are checked, goals come out of what was measured."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import pipeline_speed, runs, table1
from benchmarks.measure import Cost, CountsDifferError
from benchmarks.pipeline_speed import ALONE, EVERYTHING, POLARS, TRAFFIC


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Synthetic:
    return runs.synthetic(tmp_path_factory.mktemp("runs") / "run", ranks=3, events=600)


def test_a_run_with_other_counts_ends_the_benchmark(run: runs.Synthetic, tmp_path: Path) -> None:
    assert run.counts["events"] == 600
    assert run.counts["matched"] == 300
    once = runs.pipeline(run, tmp_path / "out", "export=[json,perfetto]")
    cost = once()
    assert cost.wall_s > 0
    assert once.output_bytes(".pftrace") > 0
    assert once.output_bytes("summary.json") > 0
    assert not (tmp_path / "out").exists()
    other = replace(run, counts={**run.counts, "bytes": 1})
    with pytest.raises(CountsDifferError, match="instead of 1"):
        runs.pipeline(other, tmp_path / "out", "export=json")()
    assert not (tmp_path / "out").exists()


def test_goals_come_from_what_was_measured() -> None:
    def cost(wall_s: float, cpu_s: float, peak_mb: float = 100) -> Cost:
        return Cost(wall_s, cpu_s, peak_mb, 1, "")

    found = pipeline_speed.Measured(
        runs={
            name: runs.Synthetic(Path(), {"events": events}, 0)
            for name, events in (("small", 5_000_000), ("large", 50_000_000))
        },
        costs={
            ("small", EVERYTHING): cost(1, 2), ("small", TRAFFIC): cost(1, 2),
            ("small", POLARS.name): cost(2.5, 4), ("large", EVERYTHING): cost(4, 5, 500),
            ("large", TRAFFIC): cost(2, 1.5), ("large", ALONE): cost(6, 5),
        },
        empty={EVERYTHING: cost(0.5, 1), TRAFFIC: cost(0.4, 0.5)},
        perfetto_bytes={"small": 250_000_000, "large": 2_300_000_000},
        polars=cost(2.5, 4),
        first_open_s=0.5,
        cold=cost(4, 3),
        help_s=0.05,
    )  # fmt: skip
    speed = pipeline_speed.speed_goals(found)
    assert [round(goal.value, 3) for goal in speed] == [5, 2.5, 12.5, 5, 25, 80, 20, 1.5]
    assert [goal.met() for goal in speed] == [
        "must",
        "NO",
        "must",
        "must",
        "NO",
        "must",
        "NO",
        "NO",
    ]
    size = pipeline_speed.size_goals(found)
    assert [(goal.value, goal.met()) for goal in size] == [
        (100, "aim"), (500, "must"), (50, "must"), (46, "aim"),
    ]  # fmt: skip
    assert [goal.met() for goal in pipeline_speed.start_goals(found)] == ["must", "NO", "must"]
    table = pipeline_speed.costs_table(found)
    assert "50 M, everything, 1 worker" in table


def test_table1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table1.main(["--millions=0.002", "--ranks=4", f"--scratch={tmp_path}"])
    printed = capsys.readouterr().out
    assert "4 ranks" in printed
    assert "| 0.002 M |" in printed
    assert "peak memory of all processes" in printed
    assert not list(tmp_path.iterdir())


def test_extrapolation_is_a_line_and_said_to_be_one() -> None:
    def row(millions: int) -> table1.Row:
        run = runs.Synthetic(Path(), {"events": millions * 10**6}, 0)
        full, traffic = (Cost(1 + millions / rate, 1.0, 300, 1, "") for rate in (10, 40))
        return table1.Row(run, 0, full, traffic, 0, None, 0)

    rows = [row(43), row(305), row(1000)]
    text = table1.extrapolated(rows)
    assert "Extrapolated, not measured" in text
    cells = [line.split("|") for line in text.splitlines()[2:]]
    lines = {row[1].strip(): row[-2].strip() for row in cells}
    assert lines["all, wall, s"] == "201"
    assert lines["traffic, wall, s"] == "51"
    assert lines["all, peak, MB"] == "300"
    options = argparse.Namespace(ranks=128, window=None)
    assert table1.report(rows, options).count("\n") == 1 + len(rows) + 1
