"""The writer thread: nothing lost, nothing twice, the program's signals and files untouched."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from native_run import Result, compile_with_core, environment

WRITERS = ("thread", "inline")


@pytest.fixture(scope="session")
def probe(native_lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled writer_probe.c."""
    return compile_with_core("writer_probe", native_lib, tmp_path_factory.mktemp("probe"))


@pytest.fixture
def run_probe(probe: Path, tmp_path: Path) -> Callable[..., Result]:
    """Runs the probe: run_probe(1000, "flush", code=-9)."""

    def run(records: int, end: str, code: int = 0, **env: str) -> Result:
        out = tmp_path / "run"
        done = subprocess.run(
            [str(probe), str(records), end],
            env=environment(out, SIGMATRACE_SEGMENT_KIB="8", **env),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return Result(done, out)

    return run


def sizes(result: Result) -> list[int]:
    return [op["size_bytes"] for op in result.rank().records(1)]


def writer_threads(result: Result) -> list[int]:
    """Blocked signals of each writer thread."""
    found = re.findall(r"^sigmatrace ([0-9a-f]+)$", result.stdout, re.MULTILINE)
    return [int(blocked, 16) for blocked in found]


@pytest.mark.parametrize("writer", WRITERS)
def test_an_exit_waits_for_the_writer(run_probe, writer: str) -> None:
    n = 100_000
    result = run_probe(n, "exit", SIGMATRACE_WRITER=writer)
    assert sizes(result) == list(range(1, n + 1)) and not result.rings()
    rank = result.rank()
    assert rank.end["schemas"]["1"] == {"written": n, "dropped": 0} and rank.bad_bytes == 0


@pytest.mark.parametrize("writer", WRITERS)
def test_a_flush_ends_when_all_is_in_the_file(run_probe, writer: str) -> None:
    n = 50_000
    result = run_probe(n, "flush", -signal.SIGKILL, SIGMATRACE_WRITER=writer)
    for ring in result.rings():
        ring.unlink()  # what had been stored before the flush is not needed from there
    assert sizes(result) == list(range(1, n + 1)) and result.rank().bad_bytes == 0


@pytest.mark.parametrize("n", [300, 5_000, 40_000])
def test_a_kill_leaves_the_segments_that_wait(run_probe, n: int) -> None:
    result = run_probe(n, "kill", -signal.SIGKILL)
    assert sizes(result) == list(range(1, n + 1)) and result.rank().end is None


def test_the_ring_is_bounded(run_probe) -> None:
    n = 200_000  # 800 segments
    result = run_probe(n, "kill", -signal.SIGKILL)
    assert sizes(result) == list(range(1, n + 1))
    (ring,) = result.rings()
    assert ring.stat().st_size <= (32 + 1 + 2) * (8 + 8) * 1024


def test_the_writer_has_no_signals_of_the_program(run_probe) -> None:
    result = run_probe(5_000, "look")
    (blocked,) = writer_threads(result)
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            assert blocked >> (number - 1) & 1, signal.Signals(number)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_process_ends_with_the_last_thread_of_the_program(run_probe, writer: str) -> None:
    """The first thread ends by pthread_exit; exit handlers run, and what they print arrives."""
    n = 3_000
    result = run_probe(n, "leave", SIGMATRACE_WRITER=writer)
    assert "ended" in result.stdout and sizes(result) == list(range(1, n + 1))
    assert result.rank().end is not None and not result.rings()


@pytest.mark.parametrize(
    "env",
    [
        {"PROBE_ONE_PROCESSOR": "1"},
        {"SIGMATRACE_WRITER": "inline"},
        {"SIGMATRACE_MODE": "aggregate"},
    ],
)
def test_no_thread_where_it_does_not_help(run_probe, env: dict[str, str]) -> None:
    assert writer_threads(run_probe(5_000, "look", **env)) == []


def test_an_unknown_writer_is_named(run_probe) -> None:
    result = run_probe(5_000, "look", SIGMATRACE_WRITER="fast")
    assert "SIGMATRACE_WRITER=fast" in result.stderr and len(writer_threads(result)) == 1


@pytest.mark.parametrize("how", ["fork", "rawfork"])
def test_a_fork_while_the_writer_is_busy(drive, how: str) -> None:
    before, after = 20_000, 10_000
    result = drive(how, before, after, SIGMATRACE_SEGMENT_KIB="8")
    parent, child = result.ranks()
    assert [op["size_bytes"] for op in parent.records(1)] == [1] * before + [2] * after
    expected = [3] * after + list(range(1, after + 1))
    assert [op["size_bytes"] for op in child.records(1)] == expected
    for rank in (parent, child):
        assert rank.end["schemas"]["1"] == {"written": len(rank.records(1)), "dropped": 0}


@pytest.mark.parametrize("how", ["_exit", "exec"])
def test_a_sudden_end_while_the_writer_is_busy(drive, how: str) -> None:
    n = 40_000
    first = drive(how, n, 10, SIGMATRACE_SEGMENT_KIB="8").ranks()[0]
    assert [op["size_bytes"] for op in first.records(1)] == list(range(1, n + 1))


def test_many_threads_and_one_writer(drive) -> None:
    threads, n = 24, 3_000
    rank = drive("threads", threads, n, SIGMATRACE_SEGMENT_KIB="8").rank()
    ordinals: dict[int, list[int]] = {}
    for op in rank.records(1):
        ordinals.setdefault(op["channel"], []).append(op["ordinal"])
    assert sum(map(len, ordinals.values())) == 2 * threads * n
    assert all(sorted(found) == list(range(len(found))) for found in ordinals.values())
    assert rank.end["schemas"]["1"] == {"written": 2 * threads * n, "dropped": 0}


def test_threads_that_end_before_their_segments_are_written(drive) -> None:
    threads, n = 60, 1_000
    rank = drive("reuse", threads, n, SIGMATRACE_SEGMENT_KIB="8").rank()
    assert len(rank.records(1)) == 2 * threads * n
    assert rank.end["schemas"]["1"] == {"written": 2 * threads * n, "dropped": 0}


def test_a_stop_keeps_what_was_handed_over(drive) -> None:
    n = 30_000
    rank = drive("stopstart", n, SIGMATRACE_SEGMENT_KIB="8").rank()
    assert [op["size_bytes"] for op in rank.records(1)] == list(range(1, n + 1)) * 2


@pytest.mark.parametrize("writer", WRITERS)
def test_a_failing_file_is_said_once(drive, writer: str) -> None:
    n = 60_000
    env = {"DRIVER_FILE_LIMIT": "600000", "SIGMATRACE_SEGMENT_KIB": "8"}
    result = drive("count", n, SIGMATRACE_WRITER=writer, **env)
    assert result.stderr.count("sigmatrace: ") == 1 and "file size limit" in result.stderr
    rank = result.rank()
    ops = [op["size_bytes"] for op in rank.records(1)]
    assert ops == list(range(1, len(ops) + 1)) and len(ops) > 10_000
    assert rank.bad_bytes == 0 and rank.from_ring
    if rank.end is not None:
        assert rank.end["reason"] == "file size limit"
        assert len(ops) + sum(rank.end["lost"].values()) + rank.end["schemas"]["1"]["dropped"] == n
