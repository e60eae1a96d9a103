"""Says how far the work is: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TextIO

WIDTH = 30
REDRAW_S = 0.1
LINE_EVERY_S = 10.0


def tell(stream: TextIO | None, text: str) -> None:
    """Write what the work does not depend on: it goes on where the disk is full."""
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.write(text)
            stream.flush()


class Progress:
    """Counts finished tasks of one phase, a context manager.

    Args:
        what: Name of the phase.
        total: Tasks to do.
        stream: Where to write; None writes nothing.
    """

    def __init__(self, what: str, total: int, stream: TextIO | None = sys.stderr) -> None:
        self._what = what
        self._total = total
        self._stream = stream
        self._terminal = stream is not None and stream.isatty()
        self._done = 0
        self._started = self._shown = time.monotonic()

    def __enter__(self) -> Progress:
        if self._terminal:
            self._draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        seconds = time.monotonic() - self._started
        end = "done" if kind is None else "stopped"
        line = f"{self._what}: {self._done}/{self._total} {end}, {seconds:.1f} s"
        tell(self._stream, f"\r\x1b[K{line}\n" if self._terminal else f"{line}\n")

    def step(self) -> None:
        """Note that a task is finished."""
        self._done += 1
        now = time.monotonic()
        if now - self._shown >= (REDRAW_S if self._terminal else LINE_EVERY_S):
            self._shown = now
            self._draw()

    def say(self, text: str) -> None:
        """Write a line about what is going on beside the tasks."""
        clear = "\r\x1b[K" if self._terminal else ""
        tell(self._stream, f"{clear}{self._what}: {text}\n")

    def _draw(self) -> None:
        if self._terminal:
            filled = WIDTH * self._done // max(self._total, 1)
            bar = "#" * filled + "-" * (WIDTH - filled)
            tell(self._stream, f"\r\x1b[K{self._what} [{bar}] {self._done}/{self._total}")
        else:
            tell(self._stream, f"{self._what}: {self._done}/{self._total}\n")
