"""The pipeline on jobs of a real Slurm: same bytes, jobs that are cancelled, none left over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sigmatrace.testing.synthetic import generate
from tests import dask_commands, mishap
from tests.dask_commands import pipeline, started
from tests.outputs import assert_same
from tests.rigs.slurm.server import Slurm

CHOICE = ("preset=everything", "partition_mb=1")
JOBS = ("cluster=slurm", "cluster.cores=1", "cluster.memory=1GB", "cluster.interface=lo")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slurm") / "run"
    generate(folder, ranks=4, events=50_000, hosts=2, mode="full", chunk_records=1024)
    return folder


@pytest.fixture(scope="module")
def expected(run: Path) -> Path:
    """What threads make of it."""
    out = run.with_name("threads")
    done = pipeline(f"run={run}", f"out={out}", *CHOICE)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def words(slurm: Slurm, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a run on one job of this Slurm, into the folder ``out``."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    return [f"run={run}", f"out={tmp_path / 'out'}", *CHOICE, *JOBS]


def test_two_jobs_give_the_same_bytes(slurm, words, expected, tmp_path):
    done = pipeline(*words, "cluster.jobs=2", f"cluster.logs={tmp_path / 'logs'}")
    assert done.returncode == 0, done.stderr
    assert "2 jobs submitted" in done.stderr
    assert_same(expected, tmp_path / "out")
    assert len({path.stem for path in (tmp_path / "logs").iterdir()}) == 2
    slurm.await_no_jobs()


def test_jobs_speak_tls(slurm, words, expected, tmp_path):
    done = pipeline(*words, "cluster.tls=true", env=dask_commands.tls(tmp_path))
    assert done.returncode == 0, done.stderr
    assert_same(expected, tmp_path / "out")
    slurm.await_no_jobs()


def test_a_job_that_is_cancelled_in_mid_run_is_replaced(slurm, words, expected, tmp_path):
    harm = mishap.words(tmp_path, "cancel", once=tmp_path / "once")
    done = pipeline(*words, *harm, f"cluster.logs={tmp_path / 'logs'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "once").exists()
    assert len({path.stem for path in (tmp_path / "logs").iterdir()}) == 2
    assert_same(expected, tmp_path / "out")
    slurm.await_no_jobs()


def test_a_multirun_of_jobs_gives_the_same_bytes(slurm, words, run, expected, tmp_path):
    launcher = ["hydra/launcher=submitit_slurm", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    shape = ["cpus_per_task=1", "mem_gb=1", "timeout_min=5"]
    out = f"out={tmp_path}/${{hydra:job.num}}"
    sizes = [f"run={run}", out, "preset=everything", "partition_mb=1,2"]
    limits = [f"hydra.launcher.{limit}" for limit in shape]
    done = pipeline("--multirun", *launcher, *limits, *sizes)
    assert done.returncode == 0, done.stderr
    assert_same(expected, tmp_path / "0")
    assert (tmp_path / "1" / "trace.pftrace").exists()
    slurm.await_no_jobs()


def test_an_interrupt_cancels_all_jobs(slurm, words, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    harm = mishap.words(tmp_path, "tell", pipe)
    process = started(*words, *harm, "cluster.jobs=2")
    with pipe.open("rb"):  # returns when the stage opens the other end
        assert len(slurm.jobs()) == 2
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
    slurm.await_no_jobs()


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("cluster.queue=nosuch", 2, "Invalid partition name"),
        ("cluster.walltime=soon", 2, "Invalid --time"),
        ("cluster.interface=nosuch", 2, "not a valid network interface"),
        ("cluster.memory=much", 2, "'much'"),
        ("cluster.prologue=[exit]", 10, "none of 1 jobs works"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(slurm, words, word, code, said):
    done = pipeline(*words, word, "cluster.timeout_s=2")
    assert done.returncode == code, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert said in line and "cluster" in line
    assert "Traceback" not in done.stderr and "never retrieved" not in done.stderr
    slurm.await_no_jobs()
