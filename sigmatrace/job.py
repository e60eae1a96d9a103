"""What a command does once its options are known, and one clear line for each user error."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sigmatrace.errors import SigmaTraceError
from sigmatrace.settings import Settings

OWN_BUG = 1


def only_work(settings: Settings) -> str:
    """Do the only work of this process, and return the folder of the output.

    At its first array Arrow imports pandas where it is installed, to know a Series when it gets
    one; that takes longer than all that a short run computes. Steps of this package give it none,
    a user's own may. Who asks Arrow for pandas (``to_pandas``) gets it all the same.

    Raises:
        SigmaTraceError: See ``sigmatrace.errors``.
    """
    chosen = (*settings.stage.values(), *settings.export.values())
    if all(str(one.get("_target_")).startswith("sigmatrace.") for one in chosen):
        import pyarrow as pa

        with _not_to_be_imported("pandas"):
            pa.array([])
    return work(settings)


@contextmanager
def _not_to_be_imported(package: str) -> Iterator[None]:
    """Let imports of a package fail as if it was not there, if it is not imported yet."""

    class Refuses:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Refuses)
    try:
        yield
    finally:
        sys.meta_path.remove(Refuses)


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
    known = isinstance(error, SigmaTraceError | OSError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    hint = "" if known else " (a bug of sigmatrace; --debug shows where)"
    return f"sigmatrace-pipeline: error: {' '.join(text.splitlines())}{hint}"
