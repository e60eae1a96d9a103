"""``sigmatrace-pipeline`` and ``python -m sigmatrace``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def main() -> int:
    """Run the command line of this process and return the exit code.

    Help and version are answered before anything heavy is imported.
    """
    words = sys.argv[1:]
    if not words or "--help" in words or "-h" in words:
        from sigmatrace.usage import TEXT

        return _print(TEXT) or (0 if words else 2)
    if "--version" in words:
        from sigmatrace.version import version_text

        return _print(f"{version_text()}\n")
    signal.signal(signal.SIGTERM, _terminated)
    from sigmatrace import alone

    alone.begin()  # the first job lets garbage be searched for again
    from sigmatrace import cli, compose_ahead

    alone.leave(cli.main(words, compose_ahead.start(words)))


def _print(text: str) -> int:
    """Print all that is asked for; return the exit code."""
    from sigmatrace.errors import OutputError
    from sigmatrace.text import print_no_more

    try:
        print(text, end="", flush=True)
    except OSError as error:
        print_no_more()
        if isinstance(error, BrokenPipeError):
            return 1
        print(f"sigmatrace-pipeline: error: stdout: {error.strerror}", file=sys.stderr)
        return OutputError.exit_code
    return 0


def _terminated(number: int, *_: Any) -> None:
    """Say so, and end by the signal itself: what is done is kept for the next run to go on with."""
    os.write(2, b"terminated; the same command goes on from what is done (not with resume=none)\n")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main())
