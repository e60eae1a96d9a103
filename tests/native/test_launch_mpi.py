"""The launcher above and under the mpirun of MPICH and of Open MPI."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from launching import LAUNCHER, UCX_USER, WAIT_S, capture

from sigmatrace.capture.captured import first_run_id

MPIEXEC = [str(Path(sys.executable).with_name("mpiexec.hydra"))]
PRTERUN = [str(Path(sys.executable).with_name("prterun")), "--map-by", ":OVERSUBSCRIBE"]

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture(params=["mpich", "openmpi"])
def mpirun(request, monkeypatch):
    """The words that start a job of MPICH and of Open MPI."""
    for prefix in ("OMPI", "PRTE"):
        monkeypatch.setenv(f"{prefix}_ALLOW_RUN_AS_ROOT", "1")
        monkeypatch.setenv(f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    return MPIEXEC if request.param == "mpich" else PRTERUN


def test_above_mpirun(tmp_path, mpirun):
    words = ["-o", tmp_path / "run", "--layers", "ucx", "--", *mpirun, "-n", "3", *UCX_USER]
    done = capture(*words)
    assert done.returncode == 0
    for rank in range(3):
        assert f"sigmatrace-capture: rank {rank} ucx_info" in done.stderr
    assert "3 processes: 0 operations" in done.stderr
    ways = {"MPICH over UCX": mpirun == MPIEXEC, "Open MPI over UCX": mpirun == PRTERUN}
    assert {way: way in done.stderr for way in ways} == ways


def test_under_mpirun_all_ranks_are_one_run(tmp_path, mpirun):
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--layers", "ucx", "--", *UCX_USER]
    done = subprocess.run(
        [*mpirun, "-n", "4", *words], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    files = list((tmp_path / "run").glob("*.msgpack"))
    assert len(files) == 4
    identities = set()
    for number, path in enumerate(files):
        (alone := tmp_path / str(number)).mkdir()
        path.rename(alone / path.name)
        identities.add(first_run_id(alone))
    assert len(identities) == 1
    assert identities != {""}
    for rank in range(4):  # each launcher names its own process alone
        assert done.stderr.count(f"rank {rank} ucx_info") == 1


def test_under_mpirun_the_folder_is_named(tmp_path, mpirun):
    words = [*LAUNCHER, "--layers", "ucx", "--", *UCX_USER]
    done = subprocess.run(
        [*mpirun, "-n", "3", *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.glob("*.msgpack"))) == 3
    assert done.stderr.count(f"the trace files of this job go to {folder}\n") == 1
    following = f"next when all ranks have ended: sigmatrace-pipeline +run={folder.name} "
    assert done.stderr.count(following) == 1


def test_under_mpirun_exit_codes_come_through(tmp_path, mpirun):
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--", "sh", "-c", "exit 3"]
    done = subprocess.run(
        [*mpirun, "-n", "2", *words], capture_output=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 3


def test_under_mpirun_a_job_that_was_not_hooked_says_so_once(tmp_path, mpirun):
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--", "sh", "-c", "true"]
    done = subprocess.run(
        [*mpirun, "-n", "3", *words], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: nothing was hooked") == 1
    assert done.stderr.count("MPI carries messages between ranks of one node") == 1
    assert not (tmp_path / "run").exists()


def test_under_mpirun_a_rank_that_was_not_hooked_says_which(tmp_path, mpirun):
    program = f'[ "${{PMIX_RANK:-$PMI_RANK}}" = 1 ] || exec {shlex.join(UCX_USER)}'
    waits = f"until [ -e {tmp_path}/run/*.msgpack ]; do sleep 0.01; done"
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--layers", "ucx", "--"]
    done = subprocess.run(
        [*mpirun, "-n", "2", *words, "sh", "-c", f"{program}; {waits}"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing was hooked") == 1
    assert "warning: rank 1: nothing was hooked" in done.stderr
