"""Kernels are compiled when they are called, once for all processes that share a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sigmatrace import kernel_ahead
from sigmatrace.export.kernels import order
from sigmatrace.stages.kernels import rows

CALL = """
import sys
from types import SimpleNamespace
import numpy as np
from sigmatrace.export.kernels.order import group_rows
print(*(list(map(int, one)) for one in group_rows(np.array([1, 0, 1], np.uint32), 2)), sep="|")
print("numba.np.linalg" in sys.modules)
"""
"""``numba.np.linalg`` is of what numba imports to compile; ``group_rows`` allocates memory."""


MADE = """
import numpy as np
from numba import types
from sigmatrace.kernel import I8R, I8W, kernel

i8 = types.int64

@kernel()
def square(x):
    return x * x

@kernel()
def shifted(x, y=3):
    return square(x) + y

@kernel(i8(I8R))
def inner(values):
    total = 0
    for value in values:
        total += shifted(value)
    return total

@kernel(I8W(I8R))
def outer(values):
    found = np.zeros(2, np.int64)
    found[0], found[1] = inner(values), shifted(np.int64(2), np.int64(1))
    return found
"""
"""A kernel that calls another one, and helpers of helpers, one of them for two types."""
USE = "import sys, made, numpy as np; print({}); print('numba.np.linalg' in sys.modules)"
VALUES = "(np.arange(5))"


@pytest.fixture
def python(tmp_path):
    def run(*words):
        path = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        cached = {path.name.split("-")[0] for path in tmp_path.rglob("*.nbi")}
        return done.stdout.split("\n")[:-1], cached

    return run


def test_import_compiles_nothing(python):
    assert python("-c", "import sigmatrace.stages.kernels.rows") == ([], set())


def test_the_second_process_loads_what_the_first_one_compiled(python):
    grouped = "[1, 0, 2]|[0, 1, 3]"
    said, cached = python("-c", CALL)
    assert said == [grouped, "True"] and "order.group_rows" in cached
    assert python("-c", CALL)[0] == [grouped, "False"]


def test_a_kernel_from_the_cache_becomes_a_part_of_one_that_is_compiled(python, tmp_path):
    (tmp_path / "made.py").write_text(MADE)
    squares = sum(x * x + 3 for x in range(5))
    assert python("-c", USE.format(f"made.inner{VALUES}")) == (
        [f"{squares}", "True"],
        {"made.inner"},
    )
    both = {"made.inner", "made.outer"}
    outer = USE.format(f"made.outer{VALUES}.tolist()")
    assert python("-c", outer) == ([f"[{squares}, 5]", "True"], both)
    assert python("-c", outer) == ([f"[{squares}, 5]", "False"], both)


def test_ahead_compiles_all_of_a_module(python):
    words = ("-m", "sigmatrace.kernel_ahead", "sigmatrace.stages.kernels.rows")
    assert python(*words)[1] == {"rows.number_rows_kernel"}


def test_ahead_is_started_once_with_the_longest_module_first(monkeypatch):
    started, ends = [], []
    monkeypatch.setattr(kernel_ahead.subprocess, "Popen", lambda words, **_: started.append(words))
    monkeypatch.setattr(kernel_ahead.atexit, "register", lambda *call: ends.append(call))
    monkeypatch.setattr(kernel_ahead.os, "sched_getaffinity", lambda _: {0, 1})
    kernel_ahead.start.cache_clear()
    kernel_ahead.start()
    kernel_ahead.start()
    (words,) = started
    assert len(ends) == 1
    assert words.index(order.__name__) < words.index(rows.__name__)


def test_on_one_core_nothing_is_compiled_ahead(monkeypatch):
    monkeypatch.setattr(kernel_ahead.subprocess, "Popen", None)
    monkeypatch.setattr(kernel_ahead.os, "sched_getaffinity", lambda _: {0})
    kernel_ahead.start.cache_clear()
    assert kernel_ahead.start() is None


def test_a_kernel_keeps_its_name_and_text():
    assert order.sort_rows.__name__ == "sort_rows"
    assert "stable" in order.sort_rows.__doc__
    found = order.group_rows(np.array([0, 0], np.uint32), 1)
    assert [one.tolist() for one in found] == [[0, 1], [0, 2]]


def test_a_compiler_starts_no_other_one(monkeypatch):
    """Else each starts the next, and all outlive the run."""
    started = []
    monkeypatch.setattr(kernel_ahead.subprocess, "Popen", lambda *a, **k: started.append(k["env"]))
    monkeypatch.setattr(kernel_ahead.atexit, "register", lambda *a: None)
    monkeypatch.setattr(kernel_ahead.os, "sched_getaffinity", lambda pid: {0, 1})
    kernel_ahead.start.__wrapped__()
    ((name, pid),) = (
        set(started[0].items())
        - set(os.environ.items())
        - {("PYTHONPATH", started[0]["PYTHONPATH"])}
    )
    assert pid == str(os.getpid())
    monkeypatch.setenv(name, pid)
    kernel_ahead.start.__wrapped__()
    assert len(started) == 1


def test_a_compiler_whose_run_has_ended_ends(monkeypatch):
    monkeypatch.setenv("SIGMATRACE_IS_SECOND_COMPILER", "1")
    monkeypatch.setattr(kernel_ahead.ctypes, "CDLL", lambda name: SimpleNamespace(prctl=max))
    monkeypatch.setattr(kernel_ahead.os, "getppid", lambda: 2)
    kernel_ahead.main(["a module that there is not"])
