"""What dask-jobqueue writes into the job scripts of each batch system."""

from __future__ import annotations

import builtins
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sigmatrace.cluster import jobs, make
from sigmatrace.compose import compose
from sigmatrace.errors import ConfigError

WORDS = (
    "cluster.jobs=3", "cluster.cores=6", "cluster.memory=12GB", "cluster.interface=lo",
    "cluster.prologue=[module load python, ulimit -n 4096]",
)  # fmt: skip
QUEUED = ("cluster.queue=fast", "cluster.account=physics", "cluster.walltime='02:30'")
SCRIPTS = {
    "slurm": ["#SBATCH -p fast", "#SBATCH -A physics", "#SBATCH -t 02:30",
              "#SBATCH --cpus-per-task=6", "#SBATCH --mem=12G", "#SBATCH -o /dev/null"],
    "pbs": ["#PBS -q fast", "#PBS -A physics", "#PBS -l walltime=02:30",
            "#PBS -l select=1:ncpus=6:mem=12GB", "#PBS -o /dev/null"],
    "moab": ["#PBS -q fast", "#PBS -A physics", "#PBS -l walltime=02:30", "#PBS -o /dev/null"],
    "lsf": ["#BSUB -q fast", '#BSUB -P "physics"', "#BSUB -W 02:30", "#BSUB -n 6",
            "#BSUB -o /dev/null"],
    "sge": ["#$ -q fast", "#$ -P physics", "#$ -l h_rt=02:30", "#$ -o /dev/null"],
    "oar": ["#OAR -q fast", "#OAR --project physics",
            "#OAR -l /nodes=1/core=6,walltime=02:30", "#OAR -O /dev/null"],
    "htcondor": ["MY.DaskWorkerCores = 6", "MY.DaskWorkerMemory = 12000000000",
                 "MY.DaskWorkerDisk = 3000000000"],
}  # fmt: skip


@contextmanager
def job_script(kind: str, *words: str) -> Iterator[str]:
    """The script of a job, from a configuration."""
    made: Any = make(**compose(["run=x", f"cluster={kind}", *words]).cluster)
    with made.scheduler() as started:
        yield started.job_script()


@pytest.mark.parametrize("kind", jobs.SYSTEMS)
def test_options_come_into_the_script(kind, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/a b/c")
    own = ("cluster.disk=3GB",) if kind == "htcondor" else QUEUED
    extra = "+Project = genes" if kind == "htcondor" else "--exclusive"
    with job_script(kind, *WORDS, *own, f"cluster.directives=['{extra}']") as script:
        lines = script.splitlines()
        for wanted in SCRIPTS[kind]:
            assert wanted in lines, script
        assert extra in script
        for part in ("PYTHONPATH=", "/a b/c", "module load python", "ulimit -n 4096"):
            assert part in script
        for part in ("--nthreads 6", "--interface lo", "--dashboard-address 127.0.0.1:0"):
            assert part in script
        assert "--nworkers" not in script


def test_what_jobs_say_is_kept_on_request(tmp_path):
    with job_script("slurm", f"cluster.logs={tmp_path / 'logs'}") as script:
        assert f"#SBATCH -o {tmp_path}/logs/sigmatrace-%J.out" in script
        assert "/dev/null" not in script


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("cluster=slurm", "cluster.quue=x"),
            "unknown option 'cluster.quue': did you mean 'cluster.queue'",
        ),
        (("cluster=pbs", "cluster.wall_time=x"), "did you mean 'cluster.walltime'"),
        (("cluster=htcondor", "cluster.queue=x"), "unknown option 'cluster.queue'"),
        (("cluster=slurm", "cluster.disk=1GB"), "unknown option 'cluster.disk'"),
        (("cluster=slurm", "cluster.cores=many"), "cluster.cores=many: it takes a whole number"),
        (("cluster=slrm",), "unknown cluster 'slrm': did you mean 'slurm'"),
    ],
)
def test_mistakes_are_named(words, said):
    with pytest.raises(ConfigError) as raised:
        compose(["run=x", *words])
    assert said in str(raised.value)


@pytest.mark.parametrize("word", ["cluster.jobs=0", "cluster.cores=0"])
def test_no_jobs_and_no_cores_are_refused(word):
    with pytest.raises(ConfigError, match="at least 1"):
        make(**compose(["run=x", "cluster=slurm", word]).cluster)


def test_an_interrupt_stays_one():
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    sys.modules.pop("dask_jobqueue", None)
    sys.modules.pop("dask_jobqueue.runner", None)
    make(**compose(["run=x", "cluster=slurm"]).cluster)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_missing_dask_jobqueue_is_named(monkeypatch):
    plain = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "dask_jobqueue":
            raise ModuleNotFoundError(name)
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"not installed: pip install -e '\.\[cluster\]'"):
        make(**compose(["run=x", "cluster=slurm"]).cluster)
