"""What a command does once its options are known, and one clear line for each user error."""

from __future__ import annotations

import gc
import sys

from sigmatrace.errors import SigmaTraceError
from sigmatrace.settings import Settings

OWN_BUG = 1


def work(settings: Settings) -> str:
    """Do what is configured, and return the folder of the output.

    Raises:
        SigmaTraceError: See ``sigmatrace.errors``.
    """
    from sigmatrace import api

    if not gc.isenabled():  # as __main__ left it: the first job of this process
        gc.freeze()  # what was imported stays, and need not be searched for garbage
        gc.enable()
    if settings.plan:
        print(api.plan(settings).text())
    else:
        print(api.execute(settings, progress=sys.stderr).text())
    return str(settings.out)


def report(error: Exception) -> int:
    """Print an error in one line and return its exit code."""
    print(line(error), file=sys.stderr)
    return error.exit_code if isinstance(error, SigmaTraceError) else OWN_BUG


def line(error: Exception) -> str:
    """Return what went wrong, as one line."""
    known = isinstance(error, SigmaTraceError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    hint = "" if known else " (a bug of sigmatrace; --debug shows where)"
    return f"sigmatrace-pipeline: error: {' '.join(text.splitlines())}{hint}"
