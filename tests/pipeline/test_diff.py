"""Runs whose truth is known, compared by the command: what was changed is found, and no more."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from sigmatrace import api
from sigmatrace.diff.command import CHANGED, main
from sigmatrace.testing.scenarios import generate
from tests.diff_runs import APART_NS, LATENCY_NS, ROUNDS, SIZE, analysed, write_run
from tests.report_page import Page

Say = Callable[..., tuple[int, str, str]]
NOISE = 0.02


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs that differ by noise alone."""
    root = tmp_path_factory.mktemp("quiet")
    return [analysed(write_run(root / f"{n}", seed=n, noise=NOISE)) for n in range(6)]


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs in which rank 2 comes late to barriers, and two pairs are others."""
    root = tmp_path_factory.mktemp("changed")
    what: dict[str, Any] = {
        "late": {2: 30_000}, "sizes": {(0, 3): 5 * SIZE}, "slow": {(1, 0): 4.0}
    }  # fmt: skip
    return [analysed(write_run(root / f"{n}", seed=100 + n, noise=NOISE, **what)) for n in range(3)]


def told(say: Say, *words: object) -> tuple[int, dict[str, Any]]:
    code, out, err = say(*words, "--format", "json")
    assert err == ""
    return code, json.loads(out)


def of(found: dict[str, Any], kind: str, measure: str) -> dict[str, dict[str, Any]]:
    rows = found["changes"]
    return {row["name"]: row for row in rows if (row["kind"], row["measure"]) == (kind, measure)}


def test_a_run_and_itself(say: Say, quiet: list[Path]) -> None:
    code, out, err = say(quiet[0], quiet[0])
    assert (code, err) == (0, "") and "\nchanged    0 of " in out
    assert "not measured (one run a side)" in out and "quality    nothing was lost" in out
    code, found = told(say, quiet[0], quiet[0])
    assert code == 0 and found["changes"] == [] and found["comparisons"] > 100


def test_noise_alone_is_no_change(say: Say, quiet: list[Path]) -> None:
    code, found = told(say, "-a", *quiet[:3], "-b", *quiet[3:])
    assert code == 0 and found["changes"] == [] and found["noise"]["measured"]
    code, found = told(say, "-a", *quiet[::2], "-b", *quiet[1::2], "--threshold", "0")
    assert code == 0 and found["changes"] == []


def test_what_was_changed_is_found_to_the_byte(
    say: Say, quiet: list[Path], changed: list[Path]
) -> None:
    code, found = told(say, "-a", *quiet[:3], "-b", *changed)
    assert code == CHANGED and found["attention"] == []
    (size,) = of(found, "rank_pair", "size_bytes").values()
    assert (size["name"], size["a"], size["b"]) == (
        "rank 0 -> rank 3", ROUNDS * SIZE, 5 * ROUNDS * SIZE,
    )  # fmt: skip
    assert size["change"] == 4 * ROUNDS * SIZE and size["p"] == 0
    assert list(of(found, "queue_pair", "size_bytes")) == ["rank 0 -> rank 3, number 1"]
    latency = of(found, "latency", "p50_ns")
    assert list(latency) == ["rank 1 -> rank 0"]
    assert latency["rank 1 -> rank 0"]["change"] == pytest.approx(3 * LATENCY_NS, rel=0.05)
    late = of(found, "rank", "caused_ns")
    assert late["rank 2"]["b"] == pytest.approx(ROUNDS * (3 * 30_000), rel=0.1)
    assert late["rank 2"]["verdict"] == "worse" and set(late) == {"rank 2", "rank 3"}
    assert late["rank 3"]["b"] == 0 and late["rank 3"]["verdict"] == "better"
    last = of(found, "rank", "last")
    assert (last["rank 2"]["a"], last["rank 2"]["b"]) == (0, ROUNDS)
    assert (last["rank 3"]["a"], last["rank 3"]["b"]) == (ROUNDS, 0)
    spread = of(found, "barrier", "spread_ns")
    assert len(spread) == ROUNDS
    for row in spread.values():
        assert row["change"] == pytest.approx(30_000 - APART_NS, rel=0.02)
        assert (row["last_a"], row["last_b"]) == ("rank 3", "rank 2")
    assert set(of(found, "rank_pair", "operations")) == set()


def test_one_run_a_side_has_the_threshold_alone(
    say: Say, quiet: list[Path], changed: list[Path]
) -> None:
    code, found = told(say, quiet[0], changed[0], "--threshold", "20%")
    assert code == CHANGED and not found["noise"]["measured"]
    assert list(of(found, "latency", "p50_ns")) == ["rank 1 -> rank 0"]
    assert all(row["p"] is None and row["spread"] is None for row in found["changes"])
    assert all(abs(float(row["relative"])) >= 0.2 for row in found["changes"])


def test_what_fails(say: Say, tmp_path: Path) -> None:
    a, b = (
        analysed(write_run(tmp_path / f"{size}", sizes={(0, 1): size})) for size in (SIZE, 2 * SIZE)
    )
    assert say(a, b)[0] == CHANGED
    assert say(a, b, "--fail-on", "never")[0] == 0
    # Bytes are neither better nor worse; more of them in the same time is more a second.
    assert say(a, b, "--fail-on", "worse")[0] == 0
    assert say(b, a, "--fail-on", "worse")[0] == CHANGED


def test_two_windows_of_one_run(say: Say, tmp_path: Path) -> None:
    run = tmp_path / "run"
    generate("alltoall", run, ranks=4, hosts=2, rounds=6, delay_ns=200_000)
    out = analysed(run)
    for place in (run, out):
        code, found = told(
            say, place, place, "--window-a", "0s..0.00075s", "--window-b", "0.00075s.."
        )
        assert f"{place} (0s..0.00075s)" in found["a"] and found["comparisons"] > 20
        assert code in (0, CHANGED) and of(found, "run", "duration_ns") == {}
    _, found = told(say, run, run, "--window-a", "20s..30s")
    assert found["attention"][0] == f"A ({run} (20s..30s)): nothing was recorded in that time"
    whole, half = tmp_path / "whole", tmp_path / "half"
    analysed(run, f"out={half}", "window=0s..0.00075s")
    analysed(run, f"out={whole}")
    code, found = told(say, half, run, "--window-b", "0s..0.00075s")
    assert code == 0 and found["changes"] == []
    code, found = told(say, whole, half)
    assert code == CHANGED and "time that was looked at differs" in found["attention"][-1]


def test_a_window_that_is_none(say: Say, quiet: list[Path]) -> None:
    code, _, err = say(quiet[0], quiet[0], "--window-a", "10..5")
    assert code == 2 and err.startswith("sigmatrace-diff: error: --window-a: '10' has no unit")
    assert err.count("\n") == 1


def test_a_rank_that_is_missing(say: Say, tmp_path: Path, quiet: list[Path]) -> None:
    few = analysed(write_run(tmp_path / "few", ranks=3, noise=NOISE))
    code, out, _ = say(quiet[0], few)
    assert code == CHANGED
    assert f"attention  B ({few}) has 3 of 4 processes; missing: rank 3\n" in out
    assert out.index("attention") < out.index("changed  ")
    code, found = told(say, quiet[0], few)
    gone = of(found, "rank", "sent_size_bytes")["rank 3"]
    assert gone["status"] == "disappeared" and gone["a"] == 3 * ROUNDS * SIZE and gone["b"] == 0
    assert of(found, "run", "processes")[""]["change"] == -1


def test_tables_that_are_damaged_or_old(say: Say, tmp_path: Path, quiet: list[Path]) -> None:
    place = Path(shutil.copytree(quiet[0], tmp_path / "out"))
    file = place / "parquet" / "barriers.parquet"
    parquet.write_table(parquet.read_table(file).drop_columns(["uncertain"]), file)
    code, _, err = say(quiet[0], place)
    assert code == 4 and "no column uncertain" in err and f"out={place}-analysis" in err
    file.write_bytes(b"no table")
    code, _, err = say(quiet[0], place)
    assert code == 4 and "barriers.parquet: cannot be read" in err and err.count("\n") == 1


def test_lost_data_is_said_first(say: Say, tmp_path: Path, quiet: list[Path]) -> None:
    run = write_run(tmp_path / "cut", seed=1, noise=NOISE)
    damaged = sorted(run.glob("*.msgpack"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-300])
    code, out, _ = say(quiet[0], analysed(run))
    assert code == CHANGED
    assert f"attention  B ({run}/sigmatrace-out): 1 file without an end item" in out


def test_csv_has_the_same_rows(say: Say, quiet: list[Path], changed: list[Path]) -> None:
    words = ("-a", *quiet[:3], "-b", *changed)
    code, out, err = say(*words, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    _, found = told(say, *words)
    assert code == CHANGED and "noise: measured from 3 + 3 runs" in err
    texts = [
        {key: "" if value is None else str(value) for key, value in row.items()}
        for row in found["changes"]
    ]
    for row in texts:
        row["relative"] = row["relative"].replace("Infinity", "inf")
    assert rows == texts and len(rows) == found["changed"]
    _, every, _ = say(*words, "--format", "csv", "--all")
    assert every.count("\n") == 1 + found["comparisons"] + found["one_sided"]


def test_the_table_is_short(say: Say, quiet: list[Path], changed: list[Path]) -> None:
    _, out, _ = say("-a", *quiet[:3], "-b", *changed, "--top", "2")
    parts = out.split("\n\n")[1:]
    assert all(len(part.splitlines()) <= 4 for part in parts)
    assert any(part.startswith("Barriers, 2 heaviest of ") for part in parts)
    assert "rank 2: others waited for it at barriers" in out and "+-" in out


def test_the_page(say: Say, tmp_path: Path, quiet: list[Path], changed: list[Path]) -> None:
    file = tmp_path / "changes.html"
    assert say("-a", *quiet[:3], "-b", *changed, "--html", file)[0] == CHANGED
    page = Page(file)
    assert {one.split(",")[0] for one in page.loads} == {"data:", "data:image/png;base64"}
    assert len(page.ids) == len(set(page.ids))
    assert set(page.figures) == {
        "figure-heaviest", "figure-change-size_bytes-ofi", "figure-change-p50_ns-ofi"
    }  # fmt: skip
    assert "1 pair changed" in page.figures["figure-change-size_bytes-ofi"]
    head, *rows = page.tables["table-latency"]
    assert [text for text, _ in head][:4] == ["what", "layer", "A", "B"]
    assert rows[0][0][0].startswith("rank 1 -> rank 0: ")
    assert "rank 0 -> rank 3, ofi: bytes" in page.text and "Noise: measured from 3 + 3" in page.text
    assert say(quiet[0], quiet[0], "--html", tmp_path)[0] == 6
    assert say(quiet[0], quiet[0], "--html", file)[0] == 0
    assert Page(file).figures == {}


def test_errors_that_were_not_there(say: Say, tmp_path: Path) -> None:
    places = []
    for name, share in (("a", 0.0), ("b", 0.9)):
        generate("bfs", tmp_path / name, doorbells_per_s=5, completed=share)
        places.append(analysed(tmp_path / name))
    code, found = told(say, *places, "--fail-on", "worse")
    assert code == CHANGED
    truth = api.run(
        tmp_path / "b", export="json", stage=["errors"], out=tmp_path / "out"
    ).tables["errors"]  # fmt: skip
    errors = [row for row in found["changes"] if row["kind"] == "error"]
    assert sum(row["change"] for row in errors) == sum(truth.column("count").to_pylist()) > 0
    assert {row["verdict"] for row in errors} == {"worse"}


def test_the_command_by_itself(quiet: list[Path], changed: list[Path]) -> None:
    words = [sys.executable, "-m", "sigmatrace.diff", quiet[0], changed[0], "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == CHANGED and json.loads(done.stdout)["changed"] > 0
