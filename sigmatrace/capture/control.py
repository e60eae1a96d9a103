"""What a Python program can tell the capture: stop and start, regions, counters, clocks.

All of it is harmless in a program that is not traced. When the core was preloaded this module
finds that same instance; else it loads its own, which does nothing unless ``SIGMATRACE_OUT`` is
set and :func:`start` is called. Regions and counters before any file is open (no communication
library seen yet, no :func:`start`) are not kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import cffi

from sigmatrace.capture.libs import library
from sigmatrace.errors import CaptureError
from sigmatrace.trace_format import MarkKind

_DECLARATIONS = """
int st_mode(void);
bool st_library_seen(int layer, const char *name, const char *version, const char *path,
                     const char *how);
bool st_recording(void);
void st_stop(void);
void st_start(void);
void st_flush(void);
uint32_t st_name(const char *text);
void st_mark(uint64_t t_tsc, double value, uint32_t name, uint8_t kind);
uint64_t st_tsc(void);
bool st_clock_pair(uint64_t *tsc, uint64_t *wall_ns, uint64_t *width_tsc);
"""

_PYTHON_LAYER = 0


class ClockPair(NamedTuple):
    """The TSC and a clock, read together."""

    tsc: int
    wall_ns: int
    width_tsc: int


@cache
def _core() -> tuple[cffi.FFI, Any]:
    """The foreign function interface and the core library, loaded once."""
    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS)
    path = library("core")
    try:
        return ffi, ffi.dlopen(str(path))
    except OSError as error:
        raise CaptureError(f"native library {path} cannot be loaded", str(error)) from error


def start() -> bool:
    """Starts recording, or goes on after :func:`stop`.

    Opens the files of this process when no communication library has done so yet; the process
    is then recorded with a library object ``python``.

    Returns:
        True when recording runs now; False in a program that is not traced.
    """
    _ffi, core = _core()
    version = sys.version.split()[0]
    executable = sys.executable or ""
    core.st_library_seen(
        _PYTHON_LAYER,
        b"python",
        version.encode(),
        executable.encode(errors="surrogateescape"),
        b"control",
    )
    core.st_start()
    return bool(core.st_recording())


def stop() -> None:
    """Stops recording until :func:`start`; what this thread buffered is written.

    Operations meanwhile are neither kept nor counted as lost. Since both ends of a stream count
    their messages, stop all processes of a run at a point where no message is under way.
    """
    _core()[1].st_stop()


def flush() -> None:
    """Writes what the calling thread has buffered to the rank file."""
    _core()[1].st_flush()


def recording() -> bool:
    """Is recording running in this process now?"""
    return bool(_core()[1].st_recording())


def _mark(name: str, kind: MarkKind, value: float = 0.0) -> None:
    _ffi, core = _core()
    if core.st_recording():
        core.st_mark(core.st_tsc(), value, core.st_name(name.encode()), int(kind))


@contextmanager
def region(name: str) -> Iterator[None]:
    """Marks a span of the program, as a context manager or a decorator.

    Args:
        name: Shown on the thread's track; regions of a thread must nest.

    Example:
        >>> with region("train step"):
        ...     pass
    """
    _mark(name, MarkKind.BEGIN)
    try:
        yield
    finally:
        _mark(name, MarkKind.END)


def counter(name: str, value: float) -> None:
    """Records the value of a counter at this moment.

    Args:
        name: Of the counter's track.
        value: Kept as a 64-bit float.
    """
    _mark(name, MarkKind.COUNTER, value)


def instant(name: str) -> None:
    """Marks a moment of the program."""
    _mark(name, MarkKind.INSTANT)


def now_tsc() -> int:
    """The time stamp counter, in ticks."""
    return int(_core()[1].st_tsc())


def clock_pair() -> ClockPair:
    """Reads the TSC and the capture's clock together, best of several tries.

    Returns:
        The TSC in the middle of the reading, the clock in ns, and the width of the reading in
        ticks.

    Raises:
        CaptureError: The clock cannot be read.
    """
    ffi, core = _core()
    tsc, wall_ns, width = (ffi.new("uint64_t *") for _ in range(3))
    if not core.st_clock_pair(tsc, wall_ns, width):
        raise CaptureError("the clock of SIGMATRACE_CLOCK cannot be read")
    return ClockPair(int(tsc[0]), int(wall_ns[0]), int(width[0]))
