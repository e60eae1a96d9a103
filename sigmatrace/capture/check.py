"""``sigmatrace-capture --check``: which layers can be traced on this machine."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sigmatrace.capture.environment import Settings, Shims, missing_layers
from sigmatrace.capture.layers import LAYERS
from sigmatrace.capture.libraries import Library, found
from sigmatrace.text import byte_text

_PTP = "/dev/ptp"
_CPU_FLAGS = {
    "constant_tsc": "the TSC changes its pace",
    "nonstop_tsc": "the TSC stops in idle",
    "sse4_2": "the native core needs SSE 4.2",
}


@dataclass(frozen=True)
class Verdict:
    """What one check found.

    Attributes:
        name: What was checked.
        ok: Whether it can work.
        text: What was found, or why not.
    """

    name: str
    ok: bool
    text: str

    def line(self) -> str:
        """Return the line that is printed."""
        return f"{self.name + ':':<8} {'ok' if self.ok else 'no'}: {self.text}"


def check(
    settings: Settings, shims: Shims | None, environment: Mapping[str, str]
) -> tuple[list[str], bool]:
    """Return the lines to print, and whether at least one layer of these can be traced here."""
    machine = [processor(), clock(settings.clock), output(settings.out)]
    if shims is None:
        layers = [
            Verdict(name, False, "the native libraries are not built: run `make native`")
            for name in settings.layers
        ]
    else:
        layers = [layer(name, settings, shims, environment) for name in settings.layers]
    works = any(verdict.ok for verdict in layers) and all(verdict.ok for verdict in machine)
    return [verdict.line() for verdict in (*machine, *layers)], works


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Verdict:
    """Check that the time stamp counter can be used as a clock."""
    try:
        text = cpuinfo.read_text()
    except OSError as error:
        return Verdict("cpu", False, f"{cpuinfo}: {error.strerror}")
    flags: set[str] = set()
    for line in text.splitlines():
        if line.startswith("flags"):
            flags = set(line.partition(":")[2].split())
            break
    for flag, reason in _CPU_FLAGS.items():
        if flag not in flags:
            return Verdict("cpu", False, f"no {flag}: {reason}")
    return Verdict("cpu", True, "invariant time stamp counter")


def clock(name: str) -> Verdict:
    """Check that the clock can be read that time stamps are paired with.

    Source: ``core/clock.c``, which falls back to ``realtime`` where this says no.
    """
    if name in ("realtime", "tai"):
        return Verdict("clock", True, name)
    if not name.startswith(_PTP):
        return Verdict("clock", False, f"{name}: choose realtime, tai or a device such as {_PTP}0")
    try:
        device = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            time.clock_gettime_ns((~device << 3) | 3)  # FD_TO_CLOCKID of linux/posix-timers.h
        finally:
            os.close(device)
    except OSError as error:
        return Verdict("clock", False, f"{name}: {error.strerror}")
    return Verdict("clock", True, name)


def output(folder: Path) -> Verdict:
    """Check that trace files can be written; leaves nothing behind."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Verdict("output", False, f"{existing}: {error.strerror}")
    free = os.statvfs(existing)
    size = byte_text(free.f_bavail * free.f_frsize)
    return Verdict("output", True, f"{folder} is writable, {size} free")


def layer(name: str, settings: Settings, shims: Shims, environment: Mapping[str, str]) -> Verdict:
    """Check one layer: its shim, and the libraries it would hook."""
    only = Settings(settings.out, settings.run_id, layers=(name,), ofi_entry=settings.ofi_entry)
    if missing_layers(only, shims):
        package = LAYERS[name].package
        return Verdict(name, False, f"built without its shim: install {package} and build again")
    library = LAYERS[name].library
    copies = found(LAYERS[name], environment)
    if not copies:
        # MPI and Python packages bring copies of their own, which are hooked as well.
        return Verdict(
            name, True, f"shim built; no {library} for the loader, only programs that bring one"
        )
    texts = [_copy(library, copy) for copy in copies]
    how = f"{settings.ofi_entry} entry, " if name == "ofi" else ""
    loads = any(copy.version is not None for copy in copies)
    return Verdict(name, loads, how + ", ".join(texts))


def _copy(library: str, copy: Library) -> str:
    if copy.version is None:
        return f"{copy.path} cannot be loaded"
    return f"{library} {copy.version or '(of unknown version)'} {copy.path}"
