"""From a command line to an exit code; Hydra is not imported before it is needed."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from sigmatrace import job
from sigmatrace.compose_ahead import Ahead
from sigmatrace.errors import ConfigError
from sigmatrace.text import flush_stdout, print_any_letters, print_no_more

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
        flush_stdout()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        print_no_more()
        return job.OWN_BUG
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        return job.report(error)
    return code


def _run(words: Sequence[str], ahead: Ahead | None) -> int:
    try:
        Path.cwd()
    except FileNotFoundError:
        hint = "options may be relative to it: change to one that is there"
        raise ConfigError("the current folder was removed", hint) from None
    if ahead is not None:
        importlib.import_module("sigmatrace.pipeline")  # while the other process composes
        settings = ahead.settings()
        if settings is not None:
            job.only_work(settings)
            return 0
    from sigmatrace import by_hydra

    return by_hydra.run(words)
