"""Says which stage or exporter failed, and in what."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from sigmatrace.errors import OutputError, PipelineError, SigmaTraceError
from sigmatrace.export.base import Exporter
from sigmatrace.stages.base import Exchange, Stage


@contextmanager
def blamed(step: Stage | Exchange | Exporter, doing: str) -> Iterator[None]:
    """Name the step in which something unexpected happened."""
    try:
        yield
    except SigmaTraceError:
        raise
    except (Exception, SystemExit) as error:  # a stage must not end the process, and in silence
        own = type(step).__module__.startswith("sigmatrace.")
        kind = SigmaTraceError if own else PipelineError
        frames = traceback.extract_tb(error.__traceback__)
        home = getattr(sys.modules.get(type(step).__module__), "__file__", None)
        at = next((one for one in reversed(frames) if one.filename == home), frames[-1])
        hint = f"{at.filename}, line {at.lineno}; --debug shows the way there"
        if isinstance(error, KeyError) and not own:
            hint += "; columns that no step names in requires are not made"
        what = f"{type(error).__name__}: {error}"
        raise kind(f"{_kind(step)} {step.name} failed in {doing}: {what}", hint) from _cause(error)


def _cause(error: BaseException) -> BaseException:
    """Return the error, or its text where it could not come here from another process.

    One whose class takes other arguments than it hands on cannot be made again of them.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a user's class raises anything
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _kind(step: Stage | Exchange | Exporter) -> str:
    """Return the word for a step, as in the configuration."""
    return "export" if isinstance(step, Exporter) else "stage"


@contextmanager
def writing(exporter: Exporter) -> Iterator[None]:
    """Report what the operating system refuses as an output that cannot be written."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{exporter.name} cannot write: {error.strerror or error}", "give another out=DIR"
        ) from error
