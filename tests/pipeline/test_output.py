"""Output appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sigmatrace import api, output, pipeline
from sigmatrace.errors import OutputError
from sigmatrace.export.json import Json
from sigmatrace.output import Output, clear
from tests.dask_commands import environment
from tests.permissions import obeying

KILLED = """
import os, signal, sys
from sigmatrace import api
from sigmatrace.export.parquet import Parquet

whole = Parquet.write

def write(self, part, run, staging):
    whole(self, part, run, staging)
    os.kill(os.getpid(), signal.SIGKILL)

Parquet.write = write
api.run(sys.argv[1], export=["parquet"], overwrite=True)
"""

AT_ONCE = """
import sys
from pathlib import Path
from sigmatrace.errors import OutputError
from sigmatrace.layout import LEDGER
from sigmatrace.output import Output

print("ready", flush=True)
sys.stdin.readline()
try:
    with Output(Path(sys.argv[1])) as made:
        print("begun", flush=True)
        sys.stdin.readline()
        made.keep([])
        made.write_json(LEDGER, {})
        made.publish()
except OutputError as error:
    print(error, flush=True)
"""


def hidden(folder):
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def kill_a_run(folder):
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], capture_output=True)
    assert done.returncode == -9, done.stderr


def test_a_killed_run_leaves_no_half_output_and_the_next_one_cleans_up(small):
    kill_a_run(small)
    assert not (small / "sigmatrace-out").exists()
    assert len(hidden(small)) == 1 and hidden(small)[0].name.endswith(".partial")
    api.run(small, export=["json"])
    assert hidden(small) == []
    assert (small / "sigmatrace-out/summary.json").is_file()


def test_a_killed_run_leaves_the_old_output_as_it_was(small):
    before = api.run(small, export=["json"]).out / "summary.json"
    text = before.read_bytes()
    kill_a_run(small)
    assert before.read_bytes() == text


def staging(out, *, host="", pid, born=0):
    """Make the hidden folder of a run, of this host by default, that writes to ``out``."""
    host = host or socket.gethostname()
    born = born or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    made = out.with_name(f".{out.name}.{host}-{pid}-{born}.partial")
    made.mkdir()
    return made


def test_staging_of_a_dead_process_is_removed_and_of_another_host_left_alone(tmp_path):
    dead = staging(tmp_path / "out", pid=1, born=999999999999)
    other_host = staging(tmp_path / "out", host="elsewhere", pid=1, born=1)
    with Output(tmp_path / "out"):
        assert other_host.exists() and not dead.exists()


def test_a_place_that_a_living_run_writes_to_is_refused_before_the_work(
    small, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    living = staging(out, pid=1)
    with pytest.raises(OutputError, match=f"process 1 writes to {out} right now: wait"):
        Output(out)
    monkeypatch.setattr(pipeline, "index", None)  # not called
    for words in ({}, {"overwrite": True}):
        with pytest.raises(OutputError, match="process 1 writes to"):
            api.run(small, export=["json"], out=out, **words)
    assert list(tmp_path.glob(".*")) == [living]


def test_two_outputs_of_one_process_at_one_place_are_refused(tmp_path):
    with Output(tmp_path / "out") as first:
        with pytest.raises(OutputError, match=f"process {os.getpid()} writes to"):
            Output(tmp_path / "out")
        assert first.staging.is_dir()


def test_killed_between_the_two_renames_brings_the_old_output_back(tmp_path):
    with Output(tmp_path / "out") as output:
        name = output.staging.name
    old = tmp_path / name.replace(f"-{os.getpid()}-", "-999999-").replace(".partial", ".old")
    old.mkdir()
    (old / "ledger.json").write_text("{}")
    (old / "run.json").write_text('{"files": ["ledger.json", "run.json"]}')
    with pytest.raises(OutputError, match="already there"):
        Output(tmp_path / "out")
    assert (tmp_path / "out/ledger.json").is_file() and not old.exists()


def test_overwrite_replaces_all_of_the_old_output(small):
    api.run(small, export=["json", "csv"])
    result = api.run(small, export=["json"], overwrite=True)
    names = {path.name for path in result.out.iterdir()}
    assert names == {"summary.json", "ledger.json", "run.json", "summary.txt"}
    assert hidden(small) == []


def test_a_folder_of_other_content_is_never_replaced(small, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/precious").write_text("x")
    with pytest.raises(OutputError, match="other content"):
        api.run(small, export=["json"], out=tmp_path / "home", overwrite=True)
    with pytest.raises(OutputError, match="other content"):
        api.run(small, export=["json"], out=small, overwrite=True)
    assert (tmp_path / "home/precious").read_text() == "x"


def test_overwrite_never_takes_what_the_pipeline_has_not_written(small, tmp_path):
    out = api.run(small, export=["json"], out=tmp_path / "out").out
    (out / "mine.txt").write_text("x")
    with pytest.raises(OutputError, match=r"other content \(mine.txt\)"):
        api.run(small, export=["json"], out=out, overwrite=True)
    (out / "mine.txt").rename(out / "x.msgpack")
    with pytest.raises(OutputError, match="other content"):
        api.run(small, export=["json"], out=out, overwrite=True)
    shutil.copytree(small, out / "run")
    (out / "x.msgpack").unlink()
    with pytest.raises(OutputError, match="other content"):
        api.run(out / "run", export=["json"], out=out, overwrite=True)


def test_the_root_is_no_output(small):
    with pytest.raises(OutputError, match=r"cannot be an output folder|other content"):
        api.run(small, export=["json"], out="/", overwrite=True)


def test_an_empty_folder_is_taken(small, tmp_path):
    (tmp_path / "empty").mkdir()
    assert api.run(small, export=["json"], out=tmp_path / "empty").out == tmp_path / "empty"


def test_only_finished_files_are_kept(small):
    result = api.run(small, export=["perfetto"])
    names = {path.name for path in result.out.iterdir()}
    assert names == {"trace.pftrace", "ledger.json", "run.json", "summary.txt"}


def test_a_full_disk_is_an_output_error(small, monkeypatch):
    def full(self, pieces, run, staging):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Json, "finish", full)
    with pytest.raises(OutputError, match="json cannot write: No space left on device"):
        api.run(small, export=["json"])
    assert hidden(small) == [] and not (small / "sigmatrace-out").exists()


def test_read_only_run_folder(small):
    small.chmod(0o555)
    before = sorted(small.iterdir())
    command = obeying(sys.executable, "-m", "sigmatrace", f"+run={small}", "export=[json]")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == OutputError.exit_code
    assert "Permission denied" in done.stderr
    assert sorted(small.iterdir()) == before


def test_a_living_run_that_cannot_be_seen_is_left_alone(tmp_path):
    """One in a container with process numbers of its own: its lock tells."""
    with Output(tmp_path / "out") as first:
        hidden_one = first.staging.with_name(
            first.staging.name.replace(f"-{os.getpid()}-", "-4194303-")
        )
        first.staging.rename(hidden_one)
        with pytest.raises(OutputError):
            Output(tmp_path / "out")
        assert hidden_one.is_dir()
    with Output(tmp_path / "out") as second:
        assert not hidden_one.exists() and second.staging.is_dir()


def test_of_runs_that_begin_at_the_same_instant_one_goes_on(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-c", AT_ONCE, str(out)]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, env=environment(), **pipe) for _ in range(8)]
    try:
        assert {one.stdout.readline() for one in started} == {"ready\n"}
        for one in started:
            one.stdin.write("\n")
            one.stdin.flush()
        said = [one.stdout.readline().strip() for one in started]
        [first] = [one for one, text in zip(started, said, strict=True) if text == "begun"]
        for text in (text for text in said if text != "begun"):
            assert text.startswith(f"process {first.pid} writes to {out} right now: wait until")
        first.communicate("\n", timeout=60)
        assert (out / "ledger.json").is_file() and hidden(tmp_path) == []
    finally:
        for one in started:
            one.kill()
            one.communicate()


def test_nobody_else_looks_while_a_run_begins_or_ends(tmp_path, monkeypatch):
    tried = []

    def try_too(real):
        def call(*given, **more):
            file = os.open(tmp_path, os.O_RDONLY)
            with pytest.raises(BlockingIOError):
                output.fcntl.flock(file, output.fcntl.LOCK_EX | output.fcntl.LOCK_NB)
            os.close(file)
            tried.append(real.__name__)
            return real(*given, **more)

        return call

    for name in ("check", "check_alone"):
        monkeypatch.setattr(output, name, try_too(getattr(output, name)))
    with Output(tmp_path / "out") as made:
        made.publish()
    assert tried == ["check", "check_alone", "check"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_without_locks_the_later_of_two_runs_that_end_at_once_says_so(
    tmp_path, monkeypatch, overwrite
):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(output.fcntl, "flock", no_locks)
    out = tmp_path / "out"
    with Output(out) as first:
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        with Output(out, overwrite=overwrite) as second:
            for made in (first, second):
                made.keep([])
                made.write("ledger.json", made.staging.name)
                made.write_json("run.json", {"files": made.names})
            rename, name = Path.rename, first.staging.name

            def first_is_faster(path, target):
                if path == second.staging:
                    monkeypatch.setattr(Path, "rename", rename)
                    first.publish()
                return rename(path, target)

            monkeypatch.setattr(Path, "rename", first_is_faster)
            what = "cannot write" if overwrite else "output is already there"
            with pytest.raises(OutputError, match=f"{what}.*{out}"):
                second.publish()
    assert (out / "ledger.json").read_text().strip() == name and hidden(tmp_path) == []


def test_what_was_staged_is_cleared_and_the_folder_stays_that_of_its_run(tmp_path):
    with Output(tmp_path / "out", fingerprint={"of": "all"}, resume="own") as made:
        kept = {path.name: path.read_bytes() for path in made.staging.iterdir()}
        (made.staging / "parquet" / "ops").mkdir(parents=True)
        (made.staging / "parquet" / "ops" / "part").write_bytes(b"rows")
        (made.staging / ".events.0").write_bytes(b"a record")
        clear(made.staging)
        assert {path.name: path.read_bytes() for path in made.staging.iterdir()} == kept
        shutil.rmtree(made.staging)
        with pytest.raises(OutputError):
            clear(made.staging)
