"""The launcher with real processes: it must be as if nothing stood in between."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launching import LAUNCHER, WAIT_S, capture, script

from sigmatrace.testing.write import RankFile

pytestmark = pytest.mark.usefixtures("clean_environment")


@contextlib.contextmanager
def started(*words, **options):
    """Start the launcher, and end it whatever happens."""
    with subprocess.Popen([*LAUNCHER, *map(str, words)], **options) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_exit_code(tmp_path, code):
    assert capture("-o", tmp_path / "run", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE, signal.SIGABRT])
def test_the_launcher_ends_by_the_signal_that_ended_the_command(tmp_path, number):
    done = capture("-o", tmp_path / "run", "--", "sh", "-c", f"kill -{number.value} $$")
    assert done.returncode == -number
    assert f"was ended by {number.name}" in done.stderr


_COUNT = """
import signal, sys
got = []
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), lambda n, _: got.append(n) or print("got", n, flush=True))
print("ready", flush=True)
sys.stdin.readline()
print("total", len(got), flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"])
def test_a_signal_to_the_launcher_reaches_the_command_once(tmp_path, name):
    words = script(tmp_path, _COUNT)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with started("-o", tmp_path / "run", "--", *words, name, **pipes) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(getattr(signal, name))
        assert child.stdout.readline() == f"got {getattr(signal, name).value}\n"
        rest, _ = child.communicate("\n", timeout=WAIT_S)
        assert rest == "total 1\n"
        assert child.returncode == 7


@contextlib.contextmanager
def terminal(*words):
    """Run the launcher as the foreground job of a new terminal; yields pid and terminal."""
    pid, master = pty.fork()
    if pid == 0:
        os.execv(LAUNCHER[0], [*LAUNCHER, *map(str, words)])
    try:
        yield pid, master
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        os.close(master)


def read_until(master: int, text: str) -> str:
    """Read from a terminal until a text was seen."""
    seen = ""
    while text not in seen:
        ready, _, _ = select.select([master], [], [], WAIT_S)
        assert ready, f"no {text!r} in {seen!r}"
        seen += os.read(master, 4096).decode()
    return seen


def test_ctrl_c_reaches_the_command_once(tmp_path):
    with terminal("-o", tmp_path / "run", "--", *script(tmp_path, _COUNT), "SIGINT") as job:
        pid, master = job
        read_until(master, "ready")
        os.write(master, b"\x03")
        read_until(master, "got 2")
        os.write(master, b"\n")
        assert "total 1" in read_until(master, "total 1")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def wait_stopped(group: int) -> None:
    """Wait until all processes of a group are stopped.

    The shell prompts when the first one is, and another one may still read what is typed then.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        stats = [stat for path in Path("/proc").glob("[0-9]*/stat") if (stat := _fields(path))]
        if all(state == "T" for state, _parent, of, *_ in stats if of == str(group)):
            return
        assert time.monotonic() < deadline, f"process group {group} does not stop"
        select.select([], [], [], 0.01)  # the kernel tells the parents alone


def _fields(stat: Path) -> list[str]:
    """What follows the name in a process's stat; nothing of one that has ended."""
    with contextlib.suppress(OSError):
        return stat.read_text(errors="replace").rpartition(")")[2].split()
    return []


def test_a_job_of_a_shell_can_be_stopped_and_continued(tmp_path):
    words = [*LAUNCHER, "-o", str(tmp_path / "run"), "--", *script(tmp_path, _COUNT), "SIGUSR1"]
    pid, master = pty.fork()
    if pid == 0:
        os.environ.update(PS1="prompt", TERM="dumb")
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        read_until(master, "prompt")
        os.write(master, (" ".join(f"'{word}'" for word in words) + "\n").encode())
        read_until(master, "ready\r\n")
        job = os.tcgetpgrp(master)
        os.write(master, b"\x1a")
        assert "Stopped" in read_until(master, "prompt")  # who types before may lose it
        wait_stopped(job)
        os.write(master, b"fg\n")
        read_until(master, "main()")  # the shell names the job that it continues
        os.write(master, b"\n")
        assert "total 0\r\n" in read_until(master, "prompt")
        os.write(master, b"echo code=$?\n")
        read_until(master, "code=7")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(master)


def test_stdin_and_stdout_are_the_commands_own(tmp_path):
    data = bytes(range(256)) * 1000
    done = capture("-o", tmp_path / "run", "--", "cat", input=data, text=False)
    assert done.stdout == data


def test_an_inherited_file_stays_open(tmp_path):
    read, write = os.pipe()
    done = capture("-o", tmp_path / "r", "--", "bash", "-c", f"echo hi >&{write}", pass_fds=[write])
    os.close(write)
    with os.fdopen(read) as file:
        assert file.read() == "hi\n"
    assert done.returncode == 0


def test_command_not_found(tmp_path):
    done = capture("-o", tmp_path / "run", "--", "no-such-command")
    assert done.returncode == 127
    assert done.stderr == "sigmatrace-capture: no-such-command: command not found\n"
    assert not (tmp_path / "run").exists()


def test_not_executable(tmp_path):
    (tmp_path / "file").touch(mode=0o644)
    for target in ("file", "."):
        done = capture("-o", tmp_path / "run", "--", tmp_path / target)
        assert done.returncode == 126
        assert len(done.stderr.splitlines()) == 1


def test_a_script_without_an_interpreter_line_is_the_shells(tmp_path):
    path = tmp_path / "plain"
    path.write_text("echo from $1; exit 5")
    path.chmod(0o755)
    done = capture("-o", tmp_path / "run", "--", path, "shell")
    assert (done.stdout, done.returncode) == ("from shell\n", 5)


def test_an_interpreter_that_is_missing_leaves_no_folder(tmp_path):
    path = tmp_path / "script"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    done = capture("-o", tmp_path / "run", "--", path)
    assert done.returncode == 127
    assert not (tmp_path / "run").exists()


def test_no_thread_takes_the_signals_that_are_waited_for(tmp_path):
    """Reading the run that is there loads libraries that start threads."""
    (tmp_path / "run").mkdir()
    with RankFile(tmp_path / "run", run_id="other"):
        pass
    program = script(
        tmp_path,
        "import sys\n"
        "from pathlib import Path\n"
        "from sigmatrace.capture import launch, process\n"
        "def run(command, environment):\n"
        "    for task in Path('/proc/self/task').iterdir():\n"
        "        status = (task / 'status').read_text()\n"
        "        print(task.name, status.partition('SigBlk:')[2].split()[0])\n"
        "    return process.Ended(1, 0)\n"
        "process.run = run\n"
        "launch.main()\n",
    )
    words = [*program, "-o", str(tmp_path / "run"), "--append", "--", "true"]
    done = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    told = dict(line.split() for line in done.communicate(timeout=WAIT_S)[0].splitlines())
    others = [int(mask, 16) for thread, mask in told.items() if int(thread) != done.pid]
    assert others, "no library has started a thread: this test shows nothing"
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        assert all(mask >> (number - 1) & 1 for mask in others)
