"""The same bytes wherever tasks run; what goes away while they run, and what never comes."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import distributed
import pytest

from sigmatrace.cluster import Computation
from sigmatrace.cluster.remote import Distributed
from sigmatrace.progress import Progress
from sigmatrace.testing.synthetic import generate
from tests import dask_commands, mishap
from tests.dask_commands import Dask, pipeline
from tests.outputs import assert_same, contents

CHOICE = ("preset=everything", "partition_mb=1")
STAGE = "stage=[clock,topology,one_sided,completion,wqe,doorbell,match,traffic,messages]"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 ranks with losses, of 4 partitions."""
    folder = tmp_path_factory.mktemp("clusters") / "run"
    options = {"loss": 0.01, "unmatched": 0.01, "chunk_records": 1024, "mode": "full"}
    generate(folder, ranks=8, events=50_000, hosts=2, **options)
    return folder


@pytest.fixture(scope="module")
def expected(run: Path) -> Path:
    """What one thread makes of it."""
    out = run.with_name("one-thread")
    done = pipeline(f"run={run}", f"out={out}", *CHOICE, "cluster.workers=1")
    assert done.returncode == 0, done.stderr
    assert "events: 4/4 done" in done.stderr
    return out


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    with Dask(tmp_path) as started:
        yield started


@pytest.fixture
def on(run: Path, tmp_path: Path) -> Callable[..., tuple[int, list[str], Path]]:
    """Runs the pipeline on a scheduler; gives code, lines of stderr, and the output's place."""

    def on(scheduler: Dask, *words: str) -> tuple[int, list[str], Path]:
        where = ("cluster=distributed", f"cluster.address={scheduler.address}")
        done = pipeline(f"run={run}", f"out={tmp_path / 'out'}", *CHOICE, *where, *words)
        return done.returncode, done.stderr.splitlines(), tmp_path / "out"

    return on


def failed(spoken: tuple[int, list[str], Path], code: int, *parts: str) -> None:
    """The command failed with one clear line, and made no output."""
    returned, lines, out = spoken
    assert returned == code, lines
    assert [line for line in lines if "done" not in line and "stopped" not in line] == lines[-1:]
    assert lines[-1].startswith("sigmatrace-pipeline: error: ")
    for part in parts:
        assert part in lines[-1]
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("cluster.workers=2",),
        ("cluster.workers=4",),
        ("cluster=processes", "cluster.workers=2"),
    ],
)
def test_threads_and_processes_give_the_same_bytes(run, expected, tmp_path, words):
    done = pipeline(f"run={run}", f"out={tmp_path / 'out'}", *CHOICE, *words)
    assert done.returncode == 0, done.stderr
    assert_same(expected, tmp_path / "out")


@pytest.mark.parametrize("count", [1, 3])
def test_workers_of_a_scheduler_give_the_same_bytes(dask, on, expected, count):
    dask.workers(count, "--no-nanny")
    code, lines, out = on(dask)
    assert code == 0, lines
    assert_same(expected, out)


def test_tls_gives_the_same_bytes(run, expected, tmp_path):
    env = dask_commands.tls(tmp_path)
    with Dask(tmp_path, env) as dask:
        dask.workers(1, "--no-nanny")
        words = ("cluster=distributed", f"cluster.address={dask.address}", "cluster.timeout_s=60")
        words = (f"run={run}", f"out={tmp_path / 'out'}", *CHOICE, *words)
        without = pipeline(*words)
        done = pipeline(*words, env=env)
    failed((without.returncode, without.stderr.splitlines(), tmp_path / "none/out"), 2, "tls://")
    assert done.returncode == 0, done.stderr
    assert_same(expected, tmp_path / "out")


def test_exchanges_give_the_same_bytes(dask, on, run, tmp_path):
    done = pipeline(f"run={run}", f"out={tmp_path / 'threads'}", *CHOICE, STAGE)
    assert done.returncode == 0, done.stderr
    dask.workers(2, "--no-nanny")
    code, lines, out = on(dask, STAGE)
    assert code == 0, lines
    assert_same(tmp_path / "threads", out)
    assert len(contents(out)["csv/message_pairs.csv"].splitlines()) > 5000


@pytest.mark.parametrize("nanny", ["--no-nanny", "--nanny"])
def test_a_worker_that_is_killed_in_mid_run(dask, on, expected, tmp_path, nanny):
    dask.workers(2, nanny)
    code, lines, out = on(dask, *mishap.words(tmp_path, "die", once=tmp_path / "once"))
    assert code == 0, lines
    assert (tmp_path / "once").exists()
    assert_same(expected, out)


def test_all_workers_are_killed(dask, on, tmp_path):
    dask.workers(2, "--no-nanny")
    spoken = on(dask, *mishap.words(tmp_path, "die"), "cluster.timeout_s=2")
    failed(spoken, 10, f"{dask.address} has no workers", "cluster.timeout_s")


def test_a_task_that_kills_every_worker(dask, on, tmp_path):
    dask.workers(1, "--nanny")
    spoken = on(dask, *mishap.words(tmp_path, "die"), "cluster.timeout_s=60")
    failed(spoken, 10, "several workers died over the same task", "partition_mb")


def test_the_scheduler_is_killed_in_mid_run(dask, on, tmp_path):
    dask.workers(1, "--no-nanny")
    words = mishap.words(tmp_path, "kill", dask.scheduler.pid)
    failed(on(dask, *words), 10, f"scheduler at {dask.address} went away")


def test_a_large_graph_is_no_reason_to_warn(dask):
    dask.workers(1, "--no-nanny")
    with Distributed(dask.address) as cluster, Progress("", 1, None) as progress:
        graph = {("large", 0): (len, bytes(11 << 20))}
        assert cluster.compute(Computation(graph, ("large", 0)), progress) == 11 << 20


def large_results_held(_: list[int]) -> int:
    """How many large results this worker still holds after a while."""
    deadline = time.monotonic() + 10
    while True:
        held = sum(isinstance(value, bytes) for value in distributed.get_worker().data.values())
        if not held or time.monotonic() > deadline:
            return held
        time.sleep(0.05)


def test_results_are_dropped_once_they_are_used(dask):
    dask.workers(1, "--no-nanny")
    parts = [("part", number) for number in range(50)]
    graph = {part: (bytes, 100_000) for part in parts}
    graph |= {("small", number): (len, part) for number, part in enumerate(parts)}
    graph["held", 0] = (large_results_held, [("small", number) for number in range(50)])
    with Distributed(dask.address) as cluster, Progress("", 50, None) as progress:
        assert cluster.compute(Computation(graph, ("held", 0), parts), progress) == 0


def test_a_scheduler_without_workers(dask, on):
    spoken = on(dask, "cluster.timeout_s=0.5")
    failed(spoken, 10, f"{dask.address} has no workers", "dask worker")


def test_a_worker_without_this_package(dask, on):
    dask.workers(1, "--no-nanny", command=(sys.executable, "-c", dask_commands.NO_PACKAGE))
    failed(on(dask), 2, "cannot run this", "sigmatrace", "PYTHONPATH")


def test_an_interrupt(dask, run, tmp_path):
    dask.workers(2, "--no-nanny")
    os.mkfifo(tmp_path / "pipe")
    harm = mishap.words(tmp_path, "tell", tmp_path / "pipe")
    where = ("cluster=distributed", f"cluster.address={dask.address}", f"out={tmp_path / 'out'}")
    process = dask_commands.started(f"run={run}", *CHOICE, *where, *harm)
    with (tmp_path / "pipe").open("rb"):  # returns when the stage opens the other end
        process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, said.splitlines()[-1]) == (130, "interrupted")
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_a_killed_process(run, tmp_path):
    words = (*mishap.words(tmp_path, "die"), "cluster=processes", "cluster.workers=2")
    done = pipeline(f"run={run}", f"out={tmp_path / 'out'}", *CHOICE, *words)
    failed((done.returncode, done.stderr.splitlines(), tmp_path / "out"), 10, "process died")


def test_worker_processes_end_with_a_command_that_is_killed(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    harm = mishap.words(tmp_path, "tell", tmp_path / "pipe")
    where = ("cluster=processes", "cluster.workers=2", f"out={tmp_path / 'out'}")
    with (
        dask_commands.started(f"run={run}", *CHOICE, *where, *harm) as process,
        (tmp_path / "pipe").open("rb") as pipe,  # returns when a worker opens the other end
    ):
        process.kill()
        process.wait()
        assert select.select([pipe], [], [], 60)[0], "the worker lives"
        assert pipe.read() == b""
