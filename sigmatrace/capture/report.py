"""The closing report: what was hooked and recorded, one line per process."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sigmatrace.capture.end import COMPLETE
from sigmatrace.text import byte_text, count_text, counted

_LINES_MAX = 32
_CONTROL = "control"  # how control.py says that it was there


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
        marks: Marks of the program recorded: regions, counters, instants.
        doorbells: Doorbells of GPUs recorded.
        unread: Of these, behind which no WQE was read; 0 where operations move data.
        kernels: Kernels of GPUs recorded.
        unwatched: Registers of NICs whose doorbells could not be seen, by the reason.
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
    marks: int = 0
    doorbells: int = 0
    unread: int = 0
    kernels: int = 0
    unwatched: Mapping[str, int] = field(default_factory=dict)
    moves_data: bool = True

    @property
    def communicates(self) -> bool:
        """Whether a communication library was loaded; the program's own marks need none."""
        return any(how != _CONTROL for _, _, how in self.libraries)

    def line(self) -> str:
        """Return the one line of this process."""
        who = f"rank {self.rank} " if self.rank >= 0 else ""
        libraries = ", ".join(
            f"{name} {version} ({how})".replace("  ", " ") for name, version, how in self.libraries
        )
        parts = [
            _amounts([self]),
            *(f"{reason}: {count_text(count)}" for reason, count in self.lost.items()),
            *(
                f"registers not watched ({reason}): {count_text(count)}"
                for reason, count in self.unwatched.items()
            ),
        ]
        if not self.end:
            parts.append("no end (killed, replaced by exec, or still running)")
        elif self.end not in COMPLETE:
            parts.append(f"stopped: {self.end}")
        return (
            f"{who}{self.program} [{self.host}:{self.pid}]:"
            f" {libraries or 'no library'}; {', '.join(parts)}"
        )


def lines(captured: Sequence[Captured]) -> list[str]:
    """Return the report: a line per process, and totals.

    Args:
        captured: The processes, in the order in which they are to be named.
    """
    shown = [one.line() for one in captured[:_LINES_MAX]]
    if len(captured) > _LINES_MAX:
        more = counted(len(captured) - _LINES_MAX, "more process", "more processes")
        shown.append(f"... and {more}")
    if len(captured) > 1:
        shown.append(f"{counted(len(captured), 'process', 'processes')}: {_amounts(captured)}")
    return shown


def next_command(folder: Path, mode: str, *, of_job: bool) -> str:
    """Return how to go on.

    Args:
        folder: The run's folder as the user wrote it.
        mode: In which the run was recorded; counters alone make no time line.
        of_job: Whether other ranks may still be running.
    """
    export = "[json,matrix]" if mode == "aggregate" else "perfetto"
    when = " when all ranks have ended" if of_job else ""
    words = ["sigmatrace-pipeline", f"+run={folder}", f"export={export}"]
    return f"next{when}: {shlex.join(words)}"


def descendants(captured: Sequence[Captured], host: str, pid: int) -> list[Captured]:
    """Return the processes on this host that are ``pid`` or come from it, as far as traced."""
    family = {pid}
    for one in sorted(captured, key=lambda one: one.start_ns):
        if one.host == host and one.ppid in family:
            family.add(one.pid)
    return [one for one in captured if one.host == host and one.pid in family]


def _amounts(captured: Sequence[Captured]) -> str:
    more = {
        "doorbell": sum(one.doorbells for one in captured),
        "kernel": sum(one.kernels for one in captured),
        "mark": sum(one.marks for one in captured),
    }
    parts = [
        counted(sum(one.operations for one in captured), "operation"),
        *(counted(count, name) for name, count in more.items() if count),
        f"{byte_text(sum(one.size_bytes for one in captured))} of trace",
        f"{count_text(sum(one.dropped for one in captured))} dropped",
    ]
    return ", ".join(parts)
