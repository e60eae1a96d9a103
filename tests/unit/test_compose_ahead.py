"""Options composed by a second process are those that one process would compose."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sigmatrace import compose_ahead

HEAD = """
import atexit, os, signal, sys
from sigmatrace import compose_ahead
compose_ahead.os.sched_getaffinity = lambda pid: {0, 1}
"""


def python(code):
    """Run code in a process of its own: one that forks is not to have threads."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", HEAD + code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )


def said(code):
    done = python(code)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def test_the_second_process_composes_what_this_one_would_and_imports_nothing_here():
    assert said("""
atexit.register(lambda: print(os.getpid() == first))  # once, not in the other process, too
first = os.getpid()
words = ["run=a hydra", "export=[json,perfetto]", "window=1s..2s", "cluster.workers=3", "--plan"]
found = compose_ahead.start(words).settings()
print("hydra" in sys.modules)
from sigmatrace.compose import compose
print(found == compose(words), found.run.name, found.plan, dict(found.cluster)["workers"])
""").split("\n") == ["False", "True a hydra True 3", "True", ""]


def test_a_mistake_is_told_by_this_process():
    assert said("""
from sigmatrace.errors import ConfigError
try:
    compose_ahead.start(["rnu=x"]).settings()
except ConfigError as error:
    print(error)
""").startswith("unknown option 'rnu': did you mean 'run'?")


@pytest.mark.parametrize(
    "word", ["hydra.verbose=true", "hydra/launcher=joblib", "out=${hydra:runtime.cwd}"]
)
def test_what_hydra_has_more_to_do_with_is_left_to_it(word):
    assert said(f"print(compose_ahead.start(['run=x', {word!r}]).settings())") == "None\n"


@pytest.mark.parametrize("flag", ["--multirun", "-m", "--cfg=job", "--info", "--debug", "-sc"])
def test_flags_start_no_process(flag, monkeypatch):
    monkeypatch.setattr(compose_ahead.os, "fork", None)
    assert compose_ahead.start(["run=x", flag]) is None


def test_one_core_starts_no_process(monkeypatch):
    monkeypatch.setattr(compose_ahead.os, "fork", None)
    monkeypatch.setattr(compose_ahead.os, "sched_getaffinity", lambda pid: {0})
    assert compose_ahead.start(["run=x"]) is None


def test_where_there_can_be_no_other_process_this_one_composes():
    assert (
        said("""
def refused():
    raise BlockingIOError(11, "no more processes")
compose_ahead.os.fork = refused
before = os.listdir("/proc/self/fd")
print(compose_ahead.start(["run=x"]), os.listdir("/proc/self/fd") == before)
""")
        == "None True\n"
    )


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "1 / 0", "lambda: 0"])
def test_what_ends_the_second_process_leaves_the_work_to_this_one(ending):
    assert (
        said(
            f"""
compose_ahead._composed = lambda words: {ending}
print(compose_ahead.start(["run=x"]).settings())
""".replace("lambda words: lambda: 0", "lambda words: (lambda: 0)")
        )
        == "None\n"
    )


def test_ignored_children_leave_the_work_to_this_process():
    assert (
        said("""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(compose_ahead.start(["run=x"]).settings())
""")
        == "None\n"
    )


def test_the_second_process_ends_with_the_first():
    """It would hold this test's pipe for ever."""
    done = python("""
compose_ahead._composed = lambda words: signal.pause()
compose_ahead.start(["run=x"])
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert done.returncode == -9
