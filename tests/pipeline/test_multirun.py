"""Runs of a multirun in processes of their own, by Hydra's submitit launcher."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sigmatrace.testing.synthetic import generate
from tests.dask_commands import environment, pipeline
from tests.outputs import assert_same

LOCAL = ("--multirun", "hydra/launcher=submitit_local", "export=json")
FREEZES = """
import atexit, gc
from sigmatrace.__main__ import main
freeze, calls = gc.freeze, []
gc.freeze = lambda: (calls.append(None), freeze())
atexit.register(lambda: print(f"frozen {len(calls)}, enabled {gc.isenabled()}", flush=True))
main()
"""

ROOT = Path(__file__).parents[2]


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


def test_what_became_of_each_process_is_said_here(runs, tmp_path):
    bad = [tmp_path / "none", tmp_path / "nothing"]
    done = pipeline(*LOCAL, f"run={bad[0]},{runs[0]},{bad[1]},{runs[1]}")
    assert done.returncode == 3, done.stderr
    assert "Error executing" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert all(f"{one} does not" in line for one, line in zip(bad, errors, strict=True))
    said = [
        f"job 0: export=json run='{bad[0]}': failed",
        f"job 1: export=json run='{runs[0]}': {runs[0]}/sigmatrace-out",
        f"job 2: export=json run='{bad[1]}': failed",
        f"job 3: export=json run='{runs[1]}': {runs[1]}/sigmatrace-out",
        "2 done, 2 failed: job 0, job 2",
    ]
    assert done.stdout.splitlines() == said
    for run in runs:
        assert (run / "sigmatrace-out/summary.json").exists()


@pytest.mark.parametrize(
    ("sbatch", "code", "said"),
    [
        (False, 2, "there is no command sbatch here"),
        (True, 10, "could not be submitted, or was lost: sbatch: fatal: nobody"),
    ],
)
def test_slurm_that_does_not_answer(runs, tmp_path, sbatch, code, said):
    commands = tmp_path / "bin"
    commands.mkdir()
    if sbatch:
        for name in ("sbatch", "srun"):
            text = "#!/bin/sh\necho 'sbatch: fatal: nobody' >&2\nexit 1\n"
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
    launcher = ("hydra/launcher=submitit_slurm", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    path = f"{commands}:/bin" if sbatch else str(commands)
    done = pipeline("--multirun", *launcher, f"run={runs[0]}", env={"PATH": path})
    assert done.returncode == code, done.stderr
    assert said in done.stderr.splitlines()[-1] and "a bug" not in done.stderr


def test_jobs_need_a_folder_that_they_see(runs):
    done = pipeline("--multirun", "hydra/launcher=submitit_slurm", f"run={runs[0]}", "export=json")
    assert done.returncode == 2
    assert "hydra.sweep.dir=DIR" in done.stderr


def test_imports_are_taken_out_of_garbage_collection_once(runs, tmp_path):
    folders = ",".join(map(str, runs))
    words = ["--multirun", f"run={folders}", "export=json", f"out={tmp_path}/${{hydra:job.num}}"]
    done = subprocess.run(
        [sys.executable, "-c", FREEZES, *words],
        capture_output=True, text=True, timeout=240, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "frozen 1, enabled True"
    assert (tmp_path / "1" / "summary.json").exists()


def test_the_batch_scripts_of_the_documentation_work_together(tmp_path):
    text = (ROOT / "docs/cluster.md").read_text()
    scripts = re.findall(r"(?m)^ +#!/bin/bash\n(?: .*\n)+", text)
    assert len(scripts) == 2
    commands = tmp_path / "bin"
    commands.mkdir()
    own = {"srun": "exit 0", "sigmatrace-pipeline": f'exec {sys.executable} -m sigmatrace "$@"'}
    for name, line in own.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    env = environment({"PATH": f"{commands}:{os.environ['PATH']}", "USER": "me"})
    for job in (7, 8):
        generate(tmp_path / f"me/run-{job}", ranks=2, events=200, chunk_records=16, seed=job)
    (tmp_path / "me/run-7-packed").mkdir()
    for number, script in enumerate((scripts[0], scripts[0], scripts[1])):
        line = script.replace("/scratch", str(tmp_path)).replace("submitit_slurm", "submitit_local")
        line = re.sub(r"(?m)^ *\. .*$", "set -e", line)
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=240, check=False,
            env={**env, "SLURM_JOB_ID": str(7 + number)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    for job in (7, 8):
        assert (tmp_path / f"me/run-{job}/sigmatrace-out/trace.pftrace").is_file()
