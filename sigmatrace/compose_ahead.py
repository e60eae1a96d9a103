"""Composes the options in a second process, while the first one imports what computes.

Hydra takes as long to import and to compose as all else takes to import, and threads would take
turns at it.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from sigmatrace.errors import SigmaTraceError

if TYPE_CHECKING:
    from sigmatrace.settings import Settings

_PR_SET_PDEATHSIG = 1


class Ahead:
    """Options that are being composed.

    Args:
        pid: Of the second process.
        pipe: Where it writes them; this object closes it.
    """

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe

    def settings(self) -> Settings | None:
        """Wait for the options; None where this process has to compose them itself.

        Raises:
            SigmaTraceError: An option is unknown or has an impossible value.
        """
        with os.fdopen(self.pipe, "rb") as pipe:
            data = pipe.read()
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # children that end are ignored here: nobody knows how it ended
            return None
        told: Settings | SigmaTraceError | None = pickle.loads(data) if status == 0 else None
        if isinstance(told, SigmaTraceError):
            raise told
        return told


def start(words: Sequence[str]) -> Ahead | None:
    """Start composing the options of a command line, before this process has any thread.

    None where there is no second core or process for it, or where Hydra has more to do than that.
    """
    if any(word.startswith("-") and word != "--plan" for word in words):
        return None
    if len(os.sched_getaffinity(0)) < 2:
        return None
    reader, writer = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        return None
    if pid == 0:
        _tell(words, writer, parent)
    os.close(writer)
    return Ahead(pid, reader)


def _tell(words: Sequence[str], pipe: int, parent: int) -> NoReturn:
    """Write the options, or the user's mistake, into the pipe, and end; silently if it cannot."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _end_with(parent)
        data = pickle.dumps(_composed(words))
        with os.fdopen(pipe, "wb") as file:
            file.write(data)
        code = 0
    finally:
        os._exit(code)  # what the first process does at its end is not done here


def _end_with(parent: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be said
        os._exit(1)


def _composed(words: Sequence[str]) -> Settings | SigmaTraceError | None:
    from sigmatrace import argv
    from sigmatrace.compose import composed

    try:
        command = argv.parse(words)
        return composed(command) if command.is_plain else None
    except SigmaTraceError as error:
        return error
