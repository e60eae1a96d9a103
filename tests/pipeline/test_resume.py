"""A run that is killed: the next one goes on with it, if it is the same, to the same bytes."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sigmatrace import api, output, passes
from sigmatrace.errors import ClusterError, ConfigError
from sigmatrace.testing.synthetic import generate
from tests import mishap
from tests.dask_commands import pipeline
from tests.outputs import contents

OPTIONS = ["partition_mb=1", "cluster.workers=2"]
PARTITIONS = 4
KILLED = """
import os, signal, sys
from sigmatrace import api
from sigmatrace.sink import Sink

put, done = Sink.put, 0

def counted(self, *given):
    global done
    put(self, *given)
    done += 1
    if done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

Sink.put = counted
api.run(sys.argv[1], export=["perfetto", "json", "parquet"], overrides=sys.argv[3:])
"""
EXPORTS = ["perfetto", "json", "parquet"]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of several partitions."""
    folder = tmp_path_factory.mktemp("resume") / "run"
    generate(folder, ranks=4, events=160_000, mode="simple")
    return folder


@pytest.fixture
def run(big: Path, tmp_path: Path) -> Path:
    """The same in a folder of the test's own."""
    folder = tmp_path / "run"
    folder.mkdir()
    for path in big.iterdir():
        os.link(path, folder / path.name)
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the partitions that are read."""
    seen: list[int] = []
    real = passes.read

    def read(spec, unread):
        seen.append(spec.number)
        return real(spec, unread)

    monkeypatch.setattr(passes, "read", read)
    return seen


def kill(run: Path, after: int) -> Path:
    """Kill a run after so many partitions; return its staging folder.

    It has one worker: a second one might have done one more by then.
    """
    command = [sys.executable, "-c", KILLED, str(run), str(after)]
    command += ["partition_mb=1", "cluster.workers=1"]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == -9, done.stderr
    assert not (run / "sigmatrace-out").exists()
    (left,) = [path for path in run.iterdir() if path.name.endswith(".partial")]
    return left


def results(out: Path) -> dict[str, bytes]:
    """All of an output but options, and the summary, which tells what was resumed."""
    made = contents(out)
    return {name: made[name] for name in made if name not in ("run.json", "summary.txt")}


def go_on(run: Path, *options: str, exports=EXPORTS, progress=None):
    return api.run(run, export=exports, overrides=[*OPTIONS, *options], progress=progress)


@pytest.fixture
def whole(run: Path, tmp_path: Path) -> dict[str, bytes]:
    """What a run gives that nobody kills."""
    return results(api.run(run, export=EXPORTS, out=tmp_path / "whole", overrides=OPTIONS).out)


@pytest.mark.parametrize("after", [1, 3])
def test_finished_partitions_are_not_done_again(run, reads, whole, after):
    kill(run, after)
    reads.clear()
    result = go_on(run)
    assert results(result.out) == whole
    assert len(reads) == len(set(reads)) == PARTITIONS - after
    assert f"resumed    {after} of {PARTITIONS} partitions" in result.text()
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("form", ["*.kept", "*.queues", "parquet/ops/*.parquet"])
def test_a_partition_whose_file_was_removed_is_done_again(run, reads, whole, form):
    left = kill(run, 3)
    max(left.glob(form)).unlink()
    reads.clear()
    assert results(go_on(run).out) == whole
    assert sorted(reads) == [2, 3]


def test_a_run_that_was_not_killed_says_nothing_of_it(run, reads):
    result = go_on(run)
    assert len(reads) == PARTITIONS and "resumed" not in result.text()


def test_a_kill_at_the_end_and_another_cluster(run, reads, whole):
    kill(run, PARTITIONS)
    reads.clear()
    result = api.run(run, export=EXPORTS, cluster="processes", overrides=OPTIONS)
    assert results(result.out) == whole
    assert reads == [] and "resumed" in result.text()


@pytest.mark.parametrize("where", ["another process", "this process"])
def test_what_is_done_is_kept_when_a_worker_dies(run, tmp_path, where, command):
    words = mishap.words(tmp_path, "die", once=tmp_path / "once")
    words = [f"run={run}", f"out={tmp_path / 'out'}", "partition_mb=1", *words]
    one, two = (f"cluster.workers={count}" for count in (1, 2))
    if where == "this process":
        code, _, said = command(*words, "cluster=processes", one)
        resumed = command(*words, two).out
    else:
        done = pipeline(*words, "cluster=processes", one)
        code, said = done.returncode, done.stderr
        resumed = pipeline(*words, two).stdout
    assert code == ClusterError.exit_code
    assert re.search("process died.*kept, and the next run.* goes on", said.splitlines()[-1])
    assert re.search(r"resumed    [123] of 4 partitions", resumed)
    assert list(tmp_path.glob(".*")) == []


def test_nothing_is_kept_when_told_so(run, tmp_path, command):
    words = ["cluster.workers=1", "resume=none", *mishap.words(tmp_path, "die")]
    code, _, said = command(f"run={run}", f"out={tmp_path / 'out'}", "cluster=processes",
                            "partition_mb=1", *words)  # fmt: skip
    assert code == ClusterError.exit_code and said.endswith("smaller partition_mb\n")
    assert list(tmp_path.glob(".*")) == []


def test_nothing_is_taken_over_when_told_so(run, reads, whole):
    kill(run, 3)
    reads.clear()
    assert results(go_on(run, "resume=none").out) == whole
    assert len(reads) == PARTITIONS


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("options", "other options"),
        ("exports", "other options"),
        ("files", "other trace files"),
        ("reboot", "other boot of the machine"),
        ("told", "resume=none"),
        ("old", "it does not say what it is of"),
    ],
)
def test_nothing_is_taken_over_of_another_run(run, reads, what, said, tmp_path, monkeypatch):
    left = kill(run, 3)
    options, exports = [], EXPORTS
    if what == "options":
        options = ["stage=[clock,topology,match,traffic]"]
    elif what == "exports":
        exports = ["json"]
    elif what == "files":
        first = min(run.glob("*.msgpack"))
        data = first.read_bytes()
        first.unlink()
        first.write_bytes(data)
    elif what == "reboot":
        reboot(tmp_path, monkeypatch)
    elif what == "told":
        options = ["resume=none"]
    else:
        (left / ".fingerprint").write_text("0123")
    shown = io.StringIO()
    result = go_on(run, *options, exports=exports, progress=shown)
    assert len(reads) == PARTITIONS and "resumed" not in result.text()
    line = f"resume: {left.name}, of a run that was killed, is removed: {said}\n"
    assert line in shown.getvalue()
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


def reboot(folder, monkeypatch):
    (folder / "boot").write_text("another")
    monkeypatch.setattr(output, "_BOOT_ID", folder / "boot")


def test_another_host_only_when_told_so(run, reads, whole, tmp_path, monkeypatch):
    left = kill(run, 3)
    reboot(tmp_path, monkeypatch)  # as it was booted by itself
    here = os.uname().nodename
    left = left.rename(left.with_name(left.name.replace(f".{here}-", ".elsewhere-")))
    reads.clear()
    assert results(go_on(run).out) == whole and len(reads) == PARTITIONS and left.is_dir()
    reads.clear()
    again = api.run(run, export=EXPORTS, overwrite=True, overrides=[*OPTIONS, "resume=any"])
    assert results(again.out) == whole and len(reads) == PARTITIONS - 3 and not left.exists()


def test_an_unknown_way_is_refused(run):
    with pytest.raises(ConfigError, match="unknown resume=always"):
        go_on(run, "resume=always")
