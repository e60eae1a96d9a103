"""The example of a stage of one's own, as its README says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/custom_stage"
FILES = {"python": "large.py", "yaml": "conf/stage/large_messages.yaml"}
"""Of the stage that docs/stages.md shows: what the page's first block of a kind is."""
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


def test_the_stage_of_the_documentation_runs_as_it_says(small, tmp_path):
    text = (EXAMPLE.parents[1] / "docs/stages.md").read_text()
    shown = {kind: re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in FILES}
    for kind, path in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(shown[kind][0])
    (command,) = re.findall(r"^ {4}PYTHONPATH=\. sigmatrace-pipeline run=DIR (.+)$", text, re.M)
    done = subprocess.run(
        [sys.executable, "-m", "sigmatrace", f"run={small}", *shlex.split(command)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tables = small / "sigmatrace-out/parquet"
    counted = duckdb.sql(f"select count from '{tables}/large_messages.parquet'").fetchall()
    right = f"select count(*) from '{tables}/ops/*.parquet' where size_bytes >= 65536"
    assert counted == duckdb.sql(right).fetchall() != [(0,)]
