"""Each mistake a user can make: one clear line, its own exit code, no traceback."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgpack
import pyarrow.parquet as pq
import pytest

from sigmatrace.errors import ConfigError, OutputError
from sigmatrace.testing.synthetic import generate
from sigmatrace.testing.write import header_item, map_item
from sigmatrace.trace_format import Item


def one_line(spoken, code, *parts):
    assert spoken.code == code, spoken
    lines = [line for line in spoken.err.splitlines() if "error:" in line]
    assert len(lines) == 1, spoken.err
    assert "Traceback" not in spoken.err
    for part in parts:
        assert part in lines[0]


def test_no_such_folder(command, tmp_path):
    one_line(command(f"run={tmp_path}/none"), 3, f"{tmp_path}/none", "does not exist")
    assert not (tmp_path / "none").exists()


def test_no_trace_files(command, tmp_path):
    one_line(command(f"run={tmp_path}"), 3, "no trace files", str(tmp_path))


def test_only_foreign_files(command, tmp_path):
    (tmp_path / "notes.msgpack").write_text("hello")
    one_line(command(f"run={tmp_path}"), 3, "notes.msgpack")


def test_foreign_files_among_good_ones_are_counted(command, small):
    (small / "notes.msgpack").write_text("hello")
    (small / "other.msgpack").write_bytes(msgpack.packb({"a": [1, 2, 3]}))
    (small / "README.txt").write_text("not looked at")
    spoken = command(f"run={small}", "export=json")
    assert spoken.code == 0
    foreign = 5 + len(msgpack.packb({"a": [1, 2, 3]}))
    assert f"{foreign} bytes foreign" in spoken.out
    book = json.loads((small / "sigmatrace-out/ledger.json").read_text())
    assert book["capture"]["bytes"]["foreign"] == foreign
    assert book["records"]["op"]["read"] == 200
    assert not book["lossless"]


def test_newer_format(command, small):
    (small / "host-1-1.msgpack").write_bytes(header_item(version=[2, 0]))
    one_line(command(f"run={small}"), 4, "host-1-1.msgpack", "version 2.0")


def test_mixed_runs(command, small):
    (small / "host-1-1.msgpack").write_bytes(header_item(run_id="other"))
    one_line(command(f"run={small}"), 5, "2 runs", "'other'", "run_id=")
    spoken = command(f"run={small}", "run_id=other", "export=json")
    assert spoken.code == 0, spoken
    assert "1 process on 1 host" in spoken.out


def test_unknown_names(command, small):
    one_line(command(f"run={small}", "export=jsn"), 2, "unknown export", "did you mean 'json'")
    one_line(command(f"run={small}", "stage=[clok]"), 2, "unknown stage", "'clock'")
    one_line(command(f"run={small}", "strcit=true"), 2, "unknown option 'strcit'", "'strict'")
    one_line(command(f"run={small}", "--debugg"), 2, "--debugg", "--debug")
    one_line(command(small), 2, "is not an option", f"run={small}")


def test_stages_do_not_fit(tmp_path, small):
    source = BROKEN.replace("METHOD", "apply").replace("t_ns", "missing")
    (tmp_path / "broken.py").write_text(source)
    (tmp_path / "conf/stage").mkdir(parents=True)
    chosen = "# @package stage.broken\n_target_: broken.Broken\n"
    (tmp_path / "conf/stage/broken.yaml").write_text(chosen)
    words = [f"run={small}", f"--config-dir={tmp_path}/conf", "stage=[clock,broken]"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = python(*words, "export=json", env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 7, done.stderr
    assert "broken requires ops.missing, which no chosen stage produces" in done.stderr
    assert not (small / "sigmatrace-out").exists()


def test_what_a_stage_lacks_is_brought_in(command, small):
    assert command(f"run={small}", "stage=[traffic]", "export=json").code == 0
    ledger = json.loads((small / "sigmatrace-out/ledger.json").read_text())
    assert set(ledger["stages"]) == {"clock", "topology", "traffic"}


def test_unwritable_output(command, small, tmp_path):
    (tmp_path / "file").write_text("x")
    one_line(command(f"run={small}", f"out={tmp_path}/file"), 6, "is a file")
    one_line(command(f"run={small}", f"out={tmp_path}/file/below"), 6, "cannot write")
    one_line(command(f"run={small}", "out=/proc/sigmatrace"), 6, "cannot write /proc/sigmatrace")


def test_output_already_there(command, small):
    assert command(f"run={small}", "export=json").code == 0
    one_line(command(f"run={small}", "export=json"), 6, "already there", "overwrite=true")
    assert command(f"run={small}", "export=json", "overwrite=true").code == 0


def test_cut_file(command, small):
    path = sorted(small.glob("*.msgpack"))[0]
    path.write_bytes(path.read_bytes()[:-500])
    one_line(command(f"run={small}", "export=json", "strict=true"), 8, path.name, "cut")
    assert not (small / "sigmatrace-out").exists()
    spoken = command(f"run={small}", "export=json")
    assert spoken.code == 0
    assert "bytes cut" in spoken.out
    assert json.loads((small / "sigmatrace-out/ledger.json").read_text())["balanced"]


def without_end(path):
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\x95\xa4STRC")])


def test_killed_process(command, small):
    """Nothing is cut or damaged, but nobody knows what the process had still to write."""
    path = sorted(small.glob("*.msgpack"))[0]
    without_end(path)
    strict = command(f"run={small}", "export=json", "strict=true")
    one_line(strict, 8, path.name, "no end item", "killed")
    assert not (small / "sigmatrace-out").exists()
    spoken = command(f"run={small}", "export=json")
    assert spoken.code == 0
    assert "lost       1 file without an end item: killed, replaced by exec" in spoken.out
    assert f"({path.name})" in spoken.out
    book = json.loads((small / "sigmatrace-out/ledger.json").read_text())
    assert book["balanced"] and not book["lossless"]
    assert book["capture"]["open_files"] == [str(path)]
    assert book["records"]["op"]["read_open"] > 0
    assert sum(book["records"]["op"][key] for key in ("read", "read_open")) == 200


@pytest.mark.parametrize("nature", ["forbidden", "empty"])
def test_a_file_of_which_nothing_is_read(command, small, monkeypatch, nature):
    path = small / "rank0.msgpack"
    first = sorted(small.glob("*.msgpack"))[0]
    first.rename(path)
    if nature == "empty":
        path.write_bytes(b"")
        told, why = "1 file of 0 bytes, nothing was written (rank0.msgpack)", "empty"
    else:
        told = "1 file could not be read (rank0.msgpack: Permission denied)"
        why = "unreadable: Permission denied"
        forbid(monkeypatch, path)
    one_line(command(f"run={small}", "strict=true"), 8, f"{path}: {why}")
    spoken = command(f"run={small}", "export=report")
    assert spoken.code == 0 and f"lost       {told}" in spoken.out
    book = json.loads((small / "sigmatrace-out/ledger.json").read_text())
    assert book["balanced"] and not book["lossless"]
    page = (small / "sigmatrace-out/report.html").read_text()
    assert "Nothing was lost" not in page and told in page
    none = "none that could be read" if nature == "forbidden" else "none"
    assert f"1 of 2 have a file; rank 0 has {none}\n" in spoken.out


def test_files_that_nobody_may_read(command, small, monkeypatch):
    first, second = sorted(small.glob("*.msgpack"))
    forbid(monkeypatch, first, second)
    why = f"{first}: Permission denied, and 1 more file"
    one_line(command(f"run={small}"), 3, "no trace data can be read", why)


def forbid(monkeypatch, *paths):
    """Let files be unreadable, for root too."""
    real = os.open

    def refuse(path, *arguments, **options):
        if os.fspath(path) in map(str, paths):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)


def test_recording_that_stopped_early(command, small):
    path = sorted(small.glob("*.msgpack"))[0]
    without_end(path)
    totals = {"1": {"written": 100, "dropped": 0}, "2": {"written": 2, "dropped": 0}}
    fields = {"t_tsc": 1, "schemas": totals, "lost": {}, "reason": "disk full"}
    path.write_bytes(path.read_bytes() + map_item(Item.END, fields))
    spoken = command(f"run={small}", "export=json", "strict=true")
    one_line(spoken, 8, path.name, "stopped early", "disk full")


def test_flipped_byte_in_the_data(command, small):
    path = max(small.glob("*.msgpack"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    at = data.index(b"\xa4data\xc6") + 40
    data[at] ^= 0xFF
    path.write_bytes(data)
    one_line(command(f"run={small}", "export=json", "strict=true"), 8, "damaged")
    spoken = command(f"run={small}", "export=json")
    assert spoken.code == 0
    book = json.loads((small / "sigmatrace-out/ledger.json").read_text())
    assert book["balanced"] and not book["lossless"]
    damaged = sum(one["damaged"] for one in book["records"].values())
    assert 0 < damaged <= 16
    assert book["records"]["op"]["read"] == 200 - book["records"]["op"]["damaged"]
    size = f"{book['capture']['bytes']['damaged']:,}".replace(",", " ")
    assert f"{size} bytes damaged ({path.name})" in spoken.out
    assert "may come from that" in spoken.out


def test_dropped_records_are_a_loss(command, tmp_path):
    generate(tmp_path / "run", ranks=2, events=400, loss=0.1, chunk_records=16)
    one_line(command(f"run={tmp_path}/run", "export=json", "strict=true"), 8, "op records dropped")
    assert list(tmp_path.glob("run/.*")) == []


def test_a_lossless_run_is_fine_when_strict(command, small):
    assert command(f"run={small}", "export=json", "strict=true").code == 0


def test_plan(command):
    spoken = command("--plan", "export=[json,csv]")
    assert spoken.code == 0
    names = [line.split()[1] for line in spoken.out.splitlines() if line.startswith("stage")]
    assert set(names) == {"clock", "completion", "topology", "match", "one_sided", "traffic"} | {
        "wqe",
        "doorbell",
    }
    assert spoken.out.startswith("index ")
    assert spoken.out.endswith("passes over event bytes: 1\n")


def test_plan_tells_of_the_run_that_is_given(command, small):
    size = sum(path.stat().st_size for path in small.iterdir())
    words = ["--plan", f"run={small}", "partition_mb=7", "window=1ms..2ms"]
    run, window, index, *_ = command(*words).out.splitlines()
    amount = f"2 files, {size / 1024:.3g} KiB; read in partitions of 7 MiB of records"
    assert run == f"run        {small}: {amount}"
    assert window == "window     1ms..2ms: chunks of records outside are not read"
    assert index.startswith("index ")
    assert command(*words[:-1]).out.splitlines()[1] == index
    assert not (small / "sigmatrace-out").exists()
    for path in small.iterdir():
        path.unlink()
    one_line(command(*words), 3, "no trace files")


def test_multirun_goes_on_after_a_bad_run(command, small, copy_of):
    other = copy_of(small)
    spoken = command("--multirun", f"run={small},{small}/none,{other}", "export=json")
    one_line(spoken, 3, "none does not exist")
    lines = spoken.out.splitlines()
    titles = [f"job {at}: run='{run}' export=json" for at, run in enumerate(
        (small, f"{small}/none", other))]  # fmt: skip
    assert [line for line in lines if line.startswith("job ")] == titles
    assert lines[-1] == "2 done, 1 failed: job 1"
    for folder in (small, other):
        assert (folder / "sigmatrace-out/summary.json").is_file()


def test_known_launchers_are_named(command, small):
    spoken = command("--multirun", "hydra/launcher=submitit_loacl", f"run={small}")
    one_line(spoken, 2, "did you mean 'submitit_local'?", "basic", "submitit_slurm")


def test_yaml_syntax_error_names_file_and_line(command, small, tmp_path):
    (tmp_path / "conf/stage").mkdir(parents=True)
    (tmp_path / "conf/stage/bad.yaml").write_text("a: 1\n  b: [\n")
    spoken = command(f"run={small}", f"--config-dir={tmp_path}/conf", "stage=[clock,bad]")
    one_line(spoken, 2, "bad.yaml, line 2", "not valid YAML")


def test_odd_folder(command, small):
    odd = small.rename(small.parent / "a run [1] of 'größe', {x}=$y")
    spoken = command(f"+run={odd}", "export=json")
    assert spoken.code == 0, spoken
    assert (odd / "sigmatrace-out/summary.json").is_file()


def python(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "sigmatrace", *map(str, words)],
        capture_output=True, text=True, timeout=120, **options,
    )  # fmt: skip


def test_module_entry_and_debug(tmp_path):
    done = python(f"run={tmp_path}/none")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert "Traceback" in python(f"run={tmp_path}/none", "--debug").stderr


def test_help_and_version_import_nothing_heavy():
    code = (
        "import sys, runpy; sys.argv = ['x', sys.argv[1]]\n"
        "try: runpy.run_module('sigmatrace', run_name='__main__')\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = {'hydra', 'dask', 'numba', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for flag in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", code, flag], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "sigmatrace" in done.stdout


def test_a_termination_is_said_and_ends_the_process_as_ever():
    code = (
        "import os, signal, sys\n"
        "from sigmatrace import __main__, cli\n"
        "cli.main = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.argv = ['x', 'run=y']\n"
        "__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.startswith("terminated; ") and done.stderr.count("\n") == 1


def test_a_full_disk_behind_stdout_is_one_line(small, tmp_path):
    command = [sys.executable, "-m", "sigmatrace", f"run={small}", f"out={tmp_path / 'out'}"]
    env = {key: text for key, text in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert done.returncode == OutputError.exit_code
    assert done.stderr.splitlines()[-1].endswith("error: stdout: No space left on device")
    assert (tmp_path / "out" / "ledger.json").is_file()


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_that_cannot_be_written_is_one_line(word):
    command = [sys.executable, "-m", "sigmatrace", word]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == OutputError.exit_code
    assert done.stderr == "sigmatrace-pipeline: error: stdout: No space left on device\n"


def test_a_full_disk_behind_stderr_does_not_end_a_run(small, tmp_path):
    command = [sys.executable, "-m", "sigmatrace", f"run={small}", f"out={tmp_path / 'out'}"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.returncode == 0 and "output" in done.stdout
    assert (tmp_path / "out" / "ledger.json").is_file()


def test_a_folder_that_was_removed_is_one_line(small, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, sys\n"
        "from sigmatrace.cli import main\n"
        f"os.rmdir({str(gone)!r})\n"
        f"sys.exit(main([{f'run={small}'!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=gone, capture_output=True, text=True)
    assert done.returncode == ConfigError.exit_code
    assert "the current folder was removed" in done.stderr and done.stderr.count("\n") == 1


def test_a_plain_run_leaves_hydra_to_the_process_that_composes(small, tmp_path):
    code = (
        "import sys\n"
        "from sigmatrace import __main__, alone, compose_ahead\n"
        "compose_ahead.os.sched_getaffinity = lambda pid: {0, 1}\n"
        "heavy = {'hydra', 'omegaconf', 'dask', 'matplotlib', 'pandas', 'pyarrow.acero'}\n"
        "alone.leave = lambda code: print(code, heavy & set(sys.modules))\n"
        f"sys.argv = ['x', {f'run={small}'!r}, {f'out={tmp_path}/out'!r}]\n"
        "__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n0 set()\n")


STAGE = """
import os, signal
from sigmatrace.stages.base import Stage

class Stop(Stage):
    name = "stop"
    requires = {"ops": {"t_ns": "i8"}}

    def apply(self, part, resolved):
        os.kill(os.getpid() if KIND == "threads" else os.getppid(), signal.SIGINT)
        return part
"""


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_interrupt(tmp_path, small, kind):
    (tmp_path / "stop.py").write_text(STAGE.replace("KIND", repr(kind)))
    (tmp_path / "conf/stage").mkdir(parents=True)
    (tmp_path / "conf/stage/stop.yaml").write_text("# @package stage.stop\n_target_: stop.Stop\n")
    words = [f"run={small}", f"--config-dir={tmp_path}/conf", f"cluster={kind}", "export=json"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    stages = "stage=[clock,topology,match,traffic,stop]"
    done = python(*words, stages, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.stderr
    assert [path for path in small.iterdir() if path.suffix != ".msgpack"] == []


BROKEN = """
from sigmatrace.stages.base import Stage

class Broken(Stage):
    name = "broken"
    requires = {"ops": {"t_ns": "i8"}}
    summary = "after"

    def METHOD(self, *_):
        return {}["nothing"]
"""


@pytest.mark.parametrize(
    ("method", "doing"),
    [("apply", "apply of partition 0"), ("summarize", "summarize of partition")],
)
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_stage_of_the_users_own_that_raises(tmp_path, small, method, doing, kind):
    (tmp_path / "broken.py").write_text(BROKEN.replace("METHOD", method))
    (tmp_path / "conf/stage").mkdir(parents=True)
    yaml = "# @package stage.broken\n_target_: broken.Broken\n"
    (tmp_path / "conf/stage/broken.yaml").write_text(yaml)
    words = [f"run={small}", f"--config-dir={tmp_path}/conf", "export=json", f"cluster={kind}"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    stages = "stage=[clock,topology,match,traffic,broken]"
    done = python(*words, stages, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 7
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    for part in (f"stage broken failed in {doing}", "KeyError: 'nothing'", "--debug"):
        assert part in line
    number = BROKEN.splitlines().index('        return {}["nothing"]') + 1
    assert f"{tmp_path}/broken.py, line {number}" in line
    assert "bug of sigmatrace" not in line and "Traceback" not in done.stderr
    assert not (small / "sigmatrace-out").exists()


def test_a_stage_cannot_end_the_process_in_silence(tmp_path, small):
    ends = BROKEN.replace("METHOD", "apply").replace('return {}["nothing"]', "raise SystemExit(0)")
    (tmp_path / "broken.py").write_text(ends)
    (tmp_path / "conf/stage").mkdir(parents=True)
    (tmp_path / "conf/stage/broken.yaml").write_text(
        "# @package stage.broken\n_target_: broken.Broken\n"
    )
    words = [f"run={small}", f"--config-dir={tmp_path}/conf", "export=json"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    stages = "stage=[clock,topology,match,traffic,broken]"
    done = python(*words, stages, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 7
    assert "stage broken failed in apply of partition 0: SystemExit: 0" in done.stderr


def test_names_that_are_not_utf8(tmp_path, small):
    run = tmp_path / os.fsdecode(b"run\xff")
    small.rename(run)
    done = python(f"run={run}", f"out={tmp_path}/out", "export=[json,csv,parquet,perfetto]")
    assert done.returncode == 0, done.stderr
    (path, _) = pq.read_table(tmp_path / "out/parquet/processes.parquet").column("path").to_pylist()
    assert path.startswith(f"{tmp_path}/run\\xff/")


def test_two_jobs_of_a_multirun_never_write_to_one_folder(command, small):
    words = ("--multirun", f"run={small}", "export=json,csv", "overwrite=true")
    for launcher in ("basic", "submitit_local"):
        spoken = command(*words, f"hydra/launcher={launcher}")
        one_line(spoken, 2, f"two jobs of this multirun write to {small}/sigmatrace-out")
        spoken = command(*words, f"hydra/launcher={launcher}", f"out={small.parent}/out")
        one_line(spoken, 2, f"two jobs of this multirun write to {small.parent}/out")
    assert not (small / "sigmatrace-out").exists() and not (small.parent / "out").exists()
    out = "out=" + str(small.parent / "out-${hydra:job.num}")
    assert command(*words, out).code == 0
    assert (small.parent / "out-0/summary.json").is_file()
    assert (small.parent / "out-1/csv").is_dir()


def test_an_output_that_cannot_be_is_refused_before_anything_is_read(command, small):
    (small.parent / "file").write_text("x")
    spoken = command(f"run={small}", f"out={small.parent}/file/out", "export=json")
    one_line(spoken, 6, "cannot write")
    assert "index" not in spoken.err


def test_a_folder_of_empty_files_has_no_trace_data(command, tmp_path):
    for pid in range(3):
        (tmp_path / f"host-{pid}-1.msgpack").touch()
    spoken = command(f"run={tmp_path}", "export=json")
    one_line(spoken, 3, "no trace data")


def test_ranks_without_a_file_are_named(command, tmp_path):
    generate(tmp_path / "run", ranks=4, events=100)
    assert "ranks " not in command(f"run={tmp_path}/run", "export=json").out
    files = sorted((tmp_path / "run").glob("*.msgpack"))
    files[-1].unlink()
    spoken = command(f"run={tmp_path}/run", "export=json", "overwrite=true")
    assert re.search(r"ranks +3 of 4 have a file; rank \d has none", spoken.out)
