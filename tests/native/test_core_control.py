"""The Python side: one instance with the preloaded core, harmless without."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import plain_reader
import pytest
from native_run import environment

from sigmatrace.capture import control, libs
from sigmatrace.errors import CaptureError

PROGRAM = """
from sigmatrace.capture import control

with control.region("too early"):
    control.counter("too early", 1)
started = control.start()

@control.region("step")
def step(i):
    control.counter("loss", i / 2)

for i in range(3):
    step(i)
control.stop()
control.counter("loss", 99)
again = control.start()
control.instant("end")
control.flush()
print(started, again, control.recording())
"""


@pytest.fixture
def lib_dir(native_lib: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(libs.LIB_DIR_VARIABLE, str(native_lib))
    control._core.cache_clear()
    return native_lib


def run(program: str, out: Path | None, lib_dir: Path, preload: bool) -> str:
    env = environment(out, SIGMATRACE_LIB_DIR=str(lib_dir))
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    if preload:
        env["LD_PRELOAD"] = str(lib_dir / "libsigmatrace_core.so")
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("preload", [True, False])
def test_marks_of_a_python_program(lib_dir: Path, tmp_path: Path, preload: bool) -> None:
    out = tmp_path / "run"
    assert run(PROGRAM, out, lib_dir, preload) == "True True True"
    (rank,) = plain_reader.read_all(out)
    names = {item["id"]: item["name"] for item in rank.objects_of("name")}
    marks = [(names[m["name"]], m["kind"], m["value"]) for m in rank.records(4)]
    steps = [[("step", 1, 0.0), ("loss", 3, i / 2), ("step", 2, 0.0)] for i in range(3)]
    assert marks == [*steps[0], *steps[1], *steps[2], ("end", 4, 0.0)]
    (library,) = rank.objects_of("library")
    assert (library["name"], library["layer"], library["how"]) == ("python", "python", "control")
    assert rank.end is not None and rank.end["reason"] == "exit"


@pytest.mark.parametrize("preload", [True, False])
def test_not_traced(lib_dir: Path, tmp_path: Path, preload: bool) -> None:
    assert run(PROGRAM, None, lib_dir, preload) == "False False False"
    assert not list(tmp_path.iterdir())


def test_clocks(lib_dir: Path) -> None:
    before, before_tsc = time.time_ns(), control.now_tsc()
    pair = control.clock_pair()
    after, after_tsc = time.time_ns(), control.now_tsc()
    assert before <= pair.wall_ns <= after
    assert before_tsc <= pair.tsc <= after_tsc and 0 < pair.width_tsc < after_tsc - before_tsc


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(libs.LIB_DIR_VARIABLE, str(tmp_path))
    with pytest.raises(CaptureError, match=r"libsigmatrace_core\.so is missing"):
        libs.library("core")
