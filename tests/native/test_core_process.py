"""Life cycle: fork, exec, kill, exit, failures. The program is never harmed, nothing doubled."""

from __future__ import annotations

import random
import signal
import struct
import subprocess
from pathlib import Path

import pytest
from native_run import environment
from plain_reader import Rank, read_all


def ops_of(rank: Rank) -> list[int]:
    return [op["size_bytes"] for op in rank.records(1)]


def test_a_program_without_libraries_leaves_nothing(drive) -> None:
    result = drive("nothing")
    assert not result.out.exists() and result.stderr == ""


@pytest.mark.parametrize("mode", ["off", None])
def test_off(drive, tmp_path: Path, mode: str | None) -> None:
    env = {"SIGMATRACE_MODE": mode} if mode else {"SIGMATRACE_OUT": ""}
    result = drive("count", 100, **env)
    assert not result.out.exists() and result.stderr == ""


def test_folders_are_made(drive, tmp_path: Path) -> None:
    result = drive("count", 100, out=tmp_path / "a" / "b" / "c")
    assert len(ops_of(result.rank())) == 100 and not result.rings()


@pytest.mark.parametrize("how", ["fork", "rawfork"])
def test_fork_in_the_middle(drive, how: str) -> None:
    before, after = 700, 400
    result = drive(how, before, after, SIGMATRACE_SEGMENT_KIB="8")
    parent, child = result.ranks()
    assert parent.header["pid"] == result.told["parent"]
    assert child.header["pid"] == result.told["child"]
    assert child.header["ppid"] == result.told["parent"]
    assert ops_of(parent) == [1] * before + [2] * after
    assert ops_of(child) == [3] * after + list(range(1, after + 1))
    kept = [op["ordinal"] for op in child.records(1)][:after]
    assert kept == list(range(after))
    for rank in (parent, child):
        described = {c["id"]: c for c in rank.records(2)}
        assert len(described) == len(rank.records(2))
        assert {op["channel"] for op in rank.records(1)} <= set(described)
        assert described[rank.records(1)[0]["channel"]]["peer"] == 77
        assert len(rank.objects_of("library")) == 1 and rank.end["reason"] == "exit"
        assert rank.end["schemas"]["1"]["written"] == len(rank.records(1))
    assert not result.rings()


def test_a_silent_child_leaves_nothing(drive) -> None:
    assert len(ops_of(drive("silentchild").rank())) == 10


def test_exec_keeps_both(drive) -> None:
    result = drive("exec", 300, 500)
    first, second = result.ranks()
    assert first.header["pid"] == second.header["pid"]
    assert ops_of(first) == list(range(1, 301)) and first.end is None and first.from_ring
    assert ops_of(second) == list(range(1, 501)) and second.end is not None
    assert [p.stem for p in result.rings()] == [first.path.stem]


@pytest.mark.parametrize(("how", "code"), [("_exit", 0), ("abort", -signal.SIGABRT)])
def test_sudden_ends_keep_the_ring(drive, how: str, code: int) -> None:
    result = drive(how, 2000, code=code, SIGMATRACE_SEGMENT_KIB="32")
    rank = result.rank()
    assert ops_of(rank) == list(range(1, 2001)) and rank.end is None
    assert len(result.rings()) == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_kill_loses_no_stored_record(driver: Path, tmp_path: Path, seed: int) -> None:
    threads, shared, out = 2, tmp_path / "counters", tmp_path / "run"
    at_least = random.Random(seed).randrange(1, 6000)
    process = subprocess.Popen(
        [str(driver), "forever", str(threads), str(at_least), str(shared)],
        env=environment(out, SIGMATRACE_SEGMENT_KIB="8"),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.read(1) == b"x"
        process.kill()
    assert process.wait() == -signal.SIGKILL
    counters = struct.unpack("<512Q", shared.read_bytes())
    (rank,) = read_all(out)
    channels = {c["id"]: c["peer"] for c in rank.records(2)}
    stored: dict[int, list[int]] = {number: [] for number in range(threads)}
    for op in rank.records(1):
        stored[channels[op["channel"]]].append(op["size_bytes"])
    for number in range(threads):
        assert stored[number] == list(range(1, len(stored[number]) + 1))
        assert counters[number * 8] <= len(stored[number]) <= counters[number * 8] + 1


def test_exit_while_threads_record(drive, tmp_path: Path) -> None:
    counters = tmp_path / "counters"
    counters.write_bytes(bytes(4096))
    rank = drive("running", 2, 3000, counters, SIGMATRACE_SEGMENT_KIB="8").rank()
    assert rank.end is not None
    assert len(rank.records(1)) >= 6000
    per_channel: dict[int, list[int]] = {}
    for op in rank.records(1):
        per_channel.setdefault(op["channel"], []).append(op["ordinal"])
    for ordinals in per_channel.values():
        assert ordinals == list(range(len(ordinals)))


def test_stop_and_start(drive) -> None:
    rank = drive("stopstart", 200).rank()
    assert ops_of(rank) == list(range(1, 201)) * 2
    assert rank.end["reason"] == "exit" and rank.end["schemas"]["1"]["dropped"] == 0
    assert rank.end["lost"] == {}


def test_an_end_while_stopped_says_so(drive) -> None:
    rank = drive("stopped", 20).rank()
    assert len(ops_of(rank)) == 20 and rank.end["reason"] == "stop"


def test_a_folder_that_cannot_be_made(drive) -> None:
    result = drive("count", 100, out=Path("/proc/self/no"))
    assert result.stderr.count("sigmatrace: ") == 1 and "\n" not in result.stderr.strip()
    assert "cannot create the file" in result.stderr and "done" in result.stdout


def test_a_file_in_place_of_the_folder(drive, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = drive("count", 100, out=tmp_path / "file")
    assert result.stderr.count("sigmatrace: ") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_size_limit_stops_the_recording_only(drive) -> None:
    n = 30_000
    result = drive("count", n, DRIVER_FILE_LIMIT="150000", SIGMATRACE_SEGMENT_KIB="16")
    assert result.stderr.count("sigmatrace: ") == 1 and "file size limit" in result.stderr
    rank = result.rank()
    ops = ops_of(rank)
    assert ops == list(range(1, len(ops) + 1)) and len(ops) > 3000
    assert rank.bad_bytes == 0 and rank.from_ring  # the last segment is still in the ring
    if rank.end is not None:
        assert rank.end["reason"] == "file size limit"
        assert len(ops) + sum(rank.end["lost"].values()) + rank.end["schemas"]["1"]["dropped"] == n


def test_a_file_size_limit_below_the_ring(drive) -> None:
    result = drive("count", 100, DRIVER_FILE_LIMIT="8000")
    assert result.stderr.count("sigmatrace: ") == 1 and "done" in result.stdout


def test_a_full_disk(drive, tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", mount], capture_output=True
    )
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        n = 60_000
        result = drive("count", n, out=mount, SIGMATRACE_SEGMENT_KIB="64")
        assert result.stderr.count("sigmatrace: ") == 1 and "disk full" in result.stderr
        rank = result.rank()
        ops = ops_of(rank)
        assert ops == list(range(1, len(ops) + 1)) and len(ops) > 8000
        assert rank.end is None or rank.end["reason"] == "disk full"
        tiny = drive("count", 100, out=mount)
        assert tiny.stderr.count("sigmatrace: ") == 1
    finally:
        subprocess.run(["umount", mount], check=True)


def test_descriptors_closed_by_the_program(drive, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    result = drive("closeall", 3000, mine, SIGMATRACE_SEGMENT_KIB="16")
    assert mine.read_bytes() == b""  # not a byte of trace in the program's own file
    assert result.stderr.count("sigmatrace: ") == 1 and "closed by the program" in result.stderr
    rank = result.rank()
    ops = ops_of(rank)
    assert ops[:3000] == list(range(1, 3001)) and rank.from_ring
