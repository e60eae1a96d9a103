"""Runs a command as if nothing stood in between: signals, terminal, exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sigmatrace.errors import CaptureError

_FORWARDED = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGWINCH,
        signal.SIGTSTP,
        signal.SIGCONT,
    }
)
_WATCHED = _FORWARDED | {signal.SIGCHLD}
# Python ignores these two for itself; an ignored signal would stay ignored in the command.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


class CommandNotFoundError(CaptureError):
    """There is no such command; the exit code is the shells'."""

    exit_code = 127


class NotExecutableError(CaptureError):
    """The command is there but cannot be executed; the exit code is the shells'."""

    exit_code = 126


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        pid: Its process id.
        status: What wait(2) said.
    """

    pid: int
    status: int

    def text(self) -> str:
        """Return "" for success, else e.g. "ended with code 3" or "was ended by SIGKILL"."""
        if os.WIFSIGNALED(self.status):
            return f"was ended by {signal.Signals(os.WTERMSIG(self.status)).name}"
        code = os.WEXITSTATUS(self.status)
        return f"ended with code {code}" if code else ""


def resolve(command: str, search: str) -> str:
    """Return the file that a shell would execute for ``command``.

    Args:
        command: First word of the command line.
        search: Value of PATH.

    Raises:
        CommandNotFoundError: There is no such file.
        NotExecutableError: It is a folder, or not executable for this user.
    """
    if "/" in command:
        candidates = [command]
    else:
        candidates = [f"{(folder or '.').rstrip('/')}/{command}" for folder in search.split(":")]
    found = [path for path in candidates if Path(path).exists()]
    for path in found:
        if not Path(path).is_dir() and os.access(path, os.X_OK):
            return path
    if not found or ("/" not in command and all(Path(path).is_dir() for path in found)):
        raise CommandNotFoundError(f"{command}: command not found")
    what = "is a directory" if Path(found[0]).is_dir() else "not executable"
    raise NotExecutableError(f"{found[0]}: {what}")


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> Ended:
    """Run a command in this process group and wait for its end.

    What the terminal sends reaches the command by itself, as it is in the same process group;
    signals that another process sent to this one are passed on.

    Raises:
        CommandNotFoundError: There is no such command.
        NotExecutableError: It cannot be executed.
    """
    path = resolve(arguments[0], environment.get("PATH", os.defpath))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        pid = _spawn(path, arguments, environment, before)
        return Ended(pid, _wait(pid))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def deaf_threads() -> Iterator[None]:
    """Let threads that are started within (some libraries do so on import) take no signals.

    A signal that ``run`` waits for would be lost in a thread that does not block it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spawn(
    path: str, arguments: Sequence[str], environment: Mapping[str, str], mask: set[int]
) -> int:
    def start(program: str, words: list[str]) -> int:
        return os.posix_spawn(program, words, environment, setsigmask=mask, setsigdef=_RESTORED)

    try:
        try:
            return start(path, list(arguments))
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return start("/bin/sh", ["sh", path, *arguments[1:]])  # a script without "#!"
    except FileNotFoundError as error:
        raise CommandNotFoundError(f"{path}: its interpreter is missing") from error
    except OSError as error:
        raise NotExecutableError(f"{path}: {error.strerror}") from error


def _wait(pid: int) -> int:
    while True:
        info = signal.sigwaitinfo(_WATCHED)
        if info.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            continue
        if info.si_code <= 0:  # from a process; positive: from the kernel, for the whole group
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, info.si_signo)
        if info.si_signo == signal.SIGTSTP:
            _stop()


def _stop() -> None:
    """Stop as the command did, so that the shell gets its terminal back; returns on SIGCONT."""
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def end_like(ended: Ended) -> NoReturn:
    """End this process as the command ended: same exit code, or same signal."""
    if os.WIFSIGNALED(ended.status):
        number = os.WTERMSIG(ended.status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file, the command's
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # as process 1 of a container a signal does not end us
    os._exit(os.WEXITSTATUS(ended.status))
