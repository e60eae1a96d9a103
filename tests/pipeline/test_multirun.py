"""Runs of a multirun in processes of their own, by Hydra's submitit launcher."""

from __future__ import annotations

import pytest

from sigmatrace.testing.synthetic import generate
from tests.dask_commands import pipeline
from tests.outputs import assert_same

LOCAL = ("--multirun", "hydra/launcher=submitit_local", "export=json")


@pytest.fixture
def runs(tmp_path):
    """Two small runs."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed, folder in enumerate(folders):
        generate(folder, ranks=2, events=200, chunk_records=16, seed=seed)
    return folders


def test_a_process_for_each_run_gives_the_same_bytes(runs, tmp_path):
    done = pipeline(
        *LOCAL, f"run={','.join(map(str, runs))}", "out=" + str(tmp_path / "${hydra:job.num}")
    )
    assert done.returncode == 0, done.stderr
    for number, run in enumerate(runs):
        alone = pipeline(f"run={run}", "export=json")
        assert alone.returncode == 0, alone.stderr
        assert_same(run / "sigmatrace-out", tmp_path / str(number))


def test_an_error_of_a_process_is_said_here(runs, tmp_path):
    done = pipeline(*LOCAL, f"run={runs[0]},{tmp_path / 'none'}")
    assert done.returncode == 3, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert f"{tmp_path / 'none'}" in line and "does not exist" in line
    assert (runs[0] / "sigmatrace-out/summary.json").exists()


def test_jobs_need_a_folder_that_they_see(runs):
    done = pipeline("--multirun", "hydra/launcher=submitit_slurm", f"run={runs[0]}", "export=json")
    assert done.returncode == 2
    assert "hydra.sweep.dir=DIR" in done.stderr
