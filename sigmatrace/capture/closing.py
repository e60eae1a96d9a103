"""What the launcher says when the traced command has ended."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from sigmatrace.capture import captured, diagnose, gpu, report
from sigmatrace.capture.diagnose import Attempt
from sigmatrace.capture.environment import Settings
from sigmatrace.capture.process import Ended
from sigmatrace.capture.report import Captured
from sigmatrace.capture.runid import job_rank
from sigmatrace.capture.speak import say


def close(attempt: Attempt, settings: Settings, ended: Ended, begin_ns: int) -> None:
    """Report what was recorded, warn when that is nothing, and say how to go on.

    Each rank of a job speaks of its own processes; what concerns the job, rank 0 says.

    Args:
        attempt: What was to be traced.
        settings: How.
        ended: How the command ended.
        begin_ns: Wall clock in ns before the command was started.
    """
    rank = job_rank(attempt.environment)
    found = captured.read(settings.out, settings.run_id, begin_ns)
    if rank is not None:
        found = report.descendants(found, socket.gethostname(), ended.pid)
    if ended.text():
        say(f"{Path(attempt.command[0]).name} {ended.text()}")
    if found:
        say("\n".join(report.lines(found)))
    files = any(settings.out.glob("*.msgpack"))
    of_job = rank == "0" and files
    problem, reasons = _problem(attempt, found)
    if problem and (files or rank in (None, "0")):  # of a job without any file, rank 0 speaks
        where = f"rank {rank}: " if rank is not None and files else ""
        told = reasons if rank in (None, "0") else []
        say("\n".join([f"warning: {where}{problem}", *told]))
    if of_job or (rank is None and found):
        say(report.next_command(shown(settings.out), settings.mode, of_job=of_job))


def shown(folder: Path) -> Path:
    """Return the short way to a folder below the current one."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def _problem(attempt: Attempt, found: Sequence[Captured]) -> tuple[str, list[str]]:
    """Return what is wrong with what was recorded, "" if nothing, and the likely reasons."""
    if not found:
        return "nothing was hooked", diagnose.nothing_hooked(attempt)
    if any(one.moves_data for one in found):
        return "", []
    what = "no operation that moves data was recorded"
    if not any(one.communicates for one in found):
        marks = ", only marks" if any(one.marks for one in found) else ""
        return what + marks, diagnose.nothing_hooked(attempt)
    instead = gpu.instead(found, attempt.environment)
    return what, diagnose.nothing_recorded(attempt, any(one.rank >= 0 for one in found), instead)
