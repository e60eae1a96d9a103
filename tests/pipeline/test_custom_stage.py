"""The example of a stage of one's own, as its README says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/custom_stage"
STAGES = "stage=[clock,topology,match,traffic,burst]"


def run(folder, *words, path=EXAMPLE):
    where = os.pathsep.join([str(path), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "sigmatrace", f"run={folder}", "export=parquet", STAGES, *words],
        env={**os.environ, "PYTHONPATH": where}, cwd=EXAMPLE, capture_output=True, text=True,
    )  # fmt: skip


def test_it_is_short():
    lines = [*EXAMPLE.glob("*.py"), *EXAMPLE.glob("conf/*/*.yaml")]
    assert sum(len(path.read_text().splitlines()) for path in lines) < 30


@pytest.mark.parametrize(
    "word", [f"hydra.searchpath=[{EXAMPLE}/conf]", f"--config-dir={EXAMPLE}/conf"]
)
def test_it_runs_and_its_column_is_right(small, word):
    done = run(small, word, "stage.burst.gap_ns=4000")
    assert done.returncode == 0, done.stderr
    parts = sorted((small / "sigmatrace-out/parquet/ops").glob("*.parquet"))
    assert parts
    for part in parts:
        rows = duckdb.sql(f"select t_ns, in_burst from '{part}'").fetchnumpy()
        gap = np.diff(rows["t_ns"])
        assert ((gap >= 0) & (gap < 4000)).tolist() == rows["in_burst"][1:].tolist()
        assert rows["in_burst"].any()


def test_its_options_are_checked(small):
    done = run(small, f"--config-dir={EXAMPLE}/conf", "+stage.burst.gap=1")
    assert done.returncode == 2
    assert "unknown option 'stage.burst.gap': did you mean 'stage.burst.gap_ns'" in done.stderr


def test_processes_can_run_it(small):
    done = run(small, f"--config-dir={EXAMPLE}/conf", "cluster=processes", "cluster.workers=1")
    assert done.returncode == 0, done.stderr


def test_module_that_is_not_on_the_path(small, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sigmatrace", f"run={small}", STAGES, "-cd", f"{EXAMPLE}/conf"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "stage.burst: cannot import burst.Burst" in done.stderr


def test_without_its_folder_it_is_unknown(small):
    done = run(small)
    assert done.returncode == 2
    assert "unknown stage 'burst'" in done.stderr
