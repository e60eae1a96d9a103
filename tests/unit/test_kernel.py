"""Kernels are compiled when they are called, once for all processes that share a cache."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sigmatrace import kernel_ahead
from sigmatrace.export.kernels import order, packets
from sigmatrace.stages.kernels import rows

CALL = """
import sys
from types import SimpleNamespace
import numpy as np
from sigmatrace.export.kernels.order import group_rows
print(*(list(map(int, one)) for one in group_rows(np.array([1, 0, 1], np.uint32), 0, 2)), sep="|")
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


@pytest.mark.parametrize(("suffix", "kept"), [("nbc", 100), ("nbc", 0), ("nbi", 0), ("nbi", 30)])
def test_a_damaged_cache_is_made_anew(python, tmp_path, suffix, kept):
    (tmp_path / "made.py").write_text(MADE)
    use = USE.format(f"made.inner{VALUES}")
    whole = python("-c", use)
    for path in tmp_path.rglob(f"*.{suffix}"):
        path.write_bytes(path.read_bytes()[:kept])
    assert python("-c", use) == whole
    assert python("-c", use) == ([whole[0][0], "False"], whole[1])


def test_a_cache_that_is_full_is_said_once_and_kernels_are_called(python):
    full = """
import errno
from numba.core import caching
def save(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
caching.IndexDataCacheFile.save = save
"""
    told = "import logging, sys; logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
    said, cached = python("-c", told + full + CALL)
    assert said[-2] == "[1, 0, 2]|[0, 1, 3]" and not cached
    assert sum("cannot be kept in" in line for line in said) == 1


def test_ahead_compiles_all_of_a_module(python):
    words = ("-m", "sigmatrace.kernel_ahead", "sigmatrace.stages.kernels.rows")
    assert python(*words)[1] == {"rows.number_rows_kernel"}


@pytest.fixture
def started(monkeypatch):
    """The second processes that would have been started: their words, and what Popen was told."""
    found = []
    monkeypatch.setattr(kernel_ahead.subprocess, "Popen", lambda *a, **k: found.append((*a, k)))
    monkeypatch.setattr(kernel_ahead.atexit, "register", lambda *a: None)
    monkeypatch.setattr(kernel_ahead.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(kernel_ahead, "_claims", None)
    yield found
    for _, told in found:
        os.close(*told["pass_fds"])


def test_ahead_is_started_once_with_what_is_called_last_first(started, caplog):
    kernel_ahead.start.cache_clear()
    kernel_ahead.start()
    kernel_ahead.start()
    ((words, _),) = started
    assert words.index(packets.__name__) < words.index(order.__name__) < words.index(rows.__name__)
    assert [one.startswith("kernels: compiled now") for one in caplog.messages] == [True]


def test_without_a_second_process_to_be_had_the_first_one_goes_on(monkeypatch):
    def refused(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(kernel_ahead.subprocess, "Popen", refused)
    monkeypatch.setattr(kernel_ahead.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(kernel_ahead, "_claims", None)
    kernel_ahead.start.cache_clear()
    kernel_ahead.start()
    os.close(kernel_ahead._claims)


def test_on_one_core_nothing_is_compiled_ahead(monkeypatch, caplog):
    monkeypatch.setattr(kernel_ahead.subprocess, "Popen", None)
    monkeypatch.setattr(kernel_ahead.os, "sched_getaffinity", lambda _: {0})
    kernel_ahead.start.cache_clear()
    kernel_ahead.start()
    assert len(caplog.messages) == 1  # who waits knows why


def test_a_kernel_keeps_its_name_and_text():
    assert order.sort_rows.__name__ == "sort_rows"
    assert "stable" in order.sort_rows.__doc__
    found = order.group_rows(np.array([0, 0], np.uint32), 0, 1)
    assert [one.tolist() for one in found] == [[0, 1], [0, 2]]


def test_a_compiler_starts_no_other_one(started, monkeypatch):
    """Else each starts the next, and all outlive the run."""
    kernel_ahead.start.__wrapped__()
    told = started[0][1]["env"]
    name = "SIGMATRACE_IS_SECOND_COMPILER"
    assert told[name] == str(os.getpid())
    monkeypatch.setenv(name, told[name])
    kernel_ahead.start.__wrapped__()
    assert len(started) == 1


HOLD = """
import sys
from sigmatrace import kernel_ahead
found = [kernel_ahead.try_claim(name) for name in ("held here", "free")]
kernel_ahead.release("free")
print(*found, flush=True)
kernel_ahead.claim("held here")
print("now it is mine", flush=True)
sys.stdin.read()
"""


def test_what_one_process_compiles_the_other_one_leaves_alone_or_waits_for(monkeypatch):
    claims = os.memfd_create("claims")
    monkeypatch.setattr(kernel_ahead, "_claims", claims)
    kernel_ahead.claim("held here")
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "PYTHONPATH": path, "SIGMATRACE_CLAIMED_KERNELS": str(claims)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(claims,),
    ) as other:
        assert other.stdout.readline() == "False True\n"
        assert kernel_ahead.try_claim("free")
        assert select.select([other.stdout], [], [], 0)[0] == []
        kernel_ahead.release("held here")
        assert other.stdout.readline() == "now it is mine\n"
        assert not kernel_ahead.try_claim("held here")
    os.close(claims)


def test_claims_end_with_their_process_and_without_a_second_one_there_are_none(monkeypatch):
    claims = os.memfd_create("claims")
    path = os.pathsep.join(filter(None, sys.path))
    subprocess.run(
        [sys.executable, "-c", "from sigmatrace import kernel_ahead as a; a.claim('x')"],
        env={**os.environ, "PYTHONPATH": path, "SIGMATRACE_CLAIMED_KERNELS": str(claims)},
        pass_fds=(claims,),
        check=True,
    )
    monkeypatch.setattr(kernel_ahead, "_claims", claims)
    assert kernel_ahead.try_claim("x")
    os.close(claims)
    monkeypatch.setattr(kernel_ahead, "_claims", None)
    assert kernel_ahead.try_claim("x")
    kernel_ahead.release("x")


def test_a_compiler_whose_run_has_ended_ends(monkeypatch):
    monkeypatch.setenv("SIGMATRACE_IS_SECOND_COMPILER", "1")
    monkeypatch.setattr(kernel_ahead.ctypes, "CDLL", lambda name: SimpleNamespace(prctl=max))
    monkeypatch.setattr(kernel_ahead.os, "getppid", lambda: 2)
    kernel_ahead.main(["a module that there is not"])
