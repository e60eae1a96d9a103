"""The closing report: what was hooked and recorded, one line per process."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LINES_MAX = 32


@dataclass(frozen=True)
class Captured:
    """What one rank file holds.

    Attributes:
        host: Host name.
        pid: Process id.
        ppid: Its parent's.
        rank: MPI rank, -1 when unknown.
        start_ns: Wall clock in ns when recording began.
        program: Name of the program.
        libraries: Hooked libraries as ``(name, version, how)``.
        operations: Operations recorded.
        size_bytes: Bytes of trace on disk.
        dropped: Records dropped.
        lost: What else could not be recorded, by reason.
        moves_data: Whether any operation is more than a flush, probe or cancel.
        end: Why recording ended; "" when the file has no end item.
    """

    host: str
    pid: int
    ppid: int
    rank: int
    start_ns: int
    program: str
    libraries: tuple[tuple[str, str, str], ...]
    operations: int
    size_bytes: int
    dropped: int
    lost: dict[str, int] = field(default_factory=dict)
    end: str = "exit"
    moves_data: bool = True

    def line(self) -> str:
        """Return the one line of this process."""
        who = f"rank {self.rank} " if self.rank >= 0 else ""
        libraries = ", ".join(
            f"{name} {version} ({how})".replace("  ", " ") for name, version, how in self.libraries
        )
        parts = [
            _count(self.operations, "operation"),
            f"{_size(self.size_bytes)} of trace",
            f"{self.dropped:,} dropped",
            *(f"{reason}: {count:,}" for reason, count in self.lost.items()),
        ]
        if not self.end:
            parts.append("no end (killed, replaced by exec, or still running)")
        elif self.end not in ("exit", "stop"):
            parts.append(f"stopped: {self.end}")
        return (
            f"{who}{self.program} [{self.host}:{self.pid}]:"
            f" {libraries or 'no library'}; {', '.join(parts)}"
        )


def lines(captured: Sequence[Captured], folder: Path) -> list[str]:
    """Return the report: a line per process, totals, and the next command to run.

    Args:
        captured: The processes, in the order in which they are to be named.
        folder: The run's folder as the user wrote it.
    """
    shown = [one.line() for one in captured[:_LINES_MAX]]
    if len(captured) > _LINES_MAX:
        shown.append(f"... and {len(captured) - _LINES_MAX:,} more processes")
    if len(captured) > 1:
        shown.append(total(captured))
    return [*shown, next_command(folder)]


def total(captured: Sequence[Captured]) -> str:
    """Return the line of totals."""
    return (
        f"{len(captured):,} processes:"
        f" {_count(sum(one.operations for one in captured), 'operation')},"
        f" {_size(sum(one.size_bytes for one in captured))} of trace,"
        f" {sum(one.dropped for one in captured):,} dropped"
    )


def next_command(folder: Path) -> str:
    """Return how to go on."""
    return f"next: sigmatrace-pipeline {shlex.quote(f'+run={folder}')} export=perfetto"


def descendants(captured: Sequence[Captured], host: str, pid: int) -> list[Captured]:
    """Return the processes on this host that are ``pid`` or come from it, as far as traced."""
    family = {pid}
    for one in sorted(captured, key=lambda one: one.start_ns):
        if one.host == host and one.ppid in family:
            family.add(one.pid)
    return [one for one in captured if one.host == host and one.pid in family]


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _size(size_bytes: int) -> str:
    if size_bytes < 1000:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5 or unit == "TB":
            return f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}"
    raise AssertionError("unreachable")
