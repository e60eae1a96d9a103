"""From a command line to an exit code; Hydra is not imported before it is needed."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from sigmatrace import job
from sigmatrace.compose_ahead import Ahead
from sigmatrace.text import print_any_letters

INTERRUPTED = 130


def main(words: Sequence[str], ahead: Ahead | None = None) -> int:
    """Run a command line and return the exit code.

    Args:
        words: The command line.
        ahead: Its options, if they are being composed already.
    """
    print_any_letters()
    try:
        code = _run(words, ahead)
        print(end="", flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return job.OWN_BUG
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        return job.report(error)
    return code


def _run(words: Sequence[str], ahead: Ahead | None) -> int:
    if ahead is not None:
        importlib.import_module("sigmatrace.pipeline")  # while the other process composes
        settings = ahead.settings()
        if settings is not None:
            job.only_work(settings)
            return 0
    from sigmatrace import by_hydra

    return by_hydra.run(words)
