"""The launcher's own lines on stderr."""

from __future__ import annotations

import contextlib
import sys

NAME = "sigmatrace-capture"


def say(text: str) -> None:
    """Write lines to stderr in one piece, so that those of other ranks do not mix in."""
    lines = [f"{NAME}: {line}\n" for line in text.splitlines()]
    with contextlib.suppress(OSError):  # nobody reads it; the exit status still counts
        sys.stderr.write("".join(lines))
        sys.stderr.flush()
