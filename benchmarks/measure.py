"""What the benchmarks of whole processes share: costs, medians, goals, scratch folders.

Heavy preparation takes place in a process ``apart``, so that its memory is free while a tool runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SAMPLE_S = 0.05
TIMEOUT_S = 1800
LAUNCH = (sys.executable, "-IS", str(Path(__file__).with_name("launch.py")))
IN_OPEN, IN_ISDIR = 0x20, 0x40000000


class CountsDifferError(SystemExit):
    """A tool did other work than the one that it is compared with."""


@dataclass(frozen=True)
class Cost:
    """What a command cost, imports and all.

    Attributes:
        wall_s: From its start to its end.
        cpu_s: User and system time of its process, and of those that it waited for.
        peak_mb: Peak resident memory, 10^6 bytes: of the one process as the kernel counted it;
            of several the largest sum seen, in which what they share counts once.
        processes: Most processes at a time.
        output: What it printed.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float
    processes: int
    output: str


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end, in a session of its own, by way of ``launch.py``.

    Raises:
        SystemExit: It failed; what it printed is told.
    """
    told, tells = os.pipe()
    with tempfile.TemporaryFile() as output, os.fdopen(told) as costs:
        launcher = subprocess.Popen(
            [*LAUNCH, str(tells), *command],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={**_environment(), **(env or {})},
            start_new_session=True,
            pass_fds=(tells,),
        )
        os.close(tells)
        watch = _Watch(launcher.pid)
        watch.start()
        try:
            launcher.wait(TIMEOUT_S)
        finally:
            watch.end()
            _end(launcher)
        output.seek(0)
        text = output.read().decode(errors="replace")
        wall, cpu, peak, code = map(float, costs.read().split() or (0, 0, 0, launcher.returncode))
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code:.0f}\n{text}")
    if watch.processes > 1:
        peak = max(peak, watch.peak)
    return Cost(wall, cpu, peak / 1e6, watch.processes, text)


def _environment() -> dict[str, str]:
    """Return the environment of commands: Python keeps byte code, as installed packages have it."""
    return {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """End a launcher, and what it left behind in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()


class _Watch(threading.Thread):
    """Samples the memory of all processes of a session but its first, the launcher.

    Those count that are there in two samples in succession: one that is about to become another
    program (vfork) still shares all of its parent's memory, and would double it.
    """

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self.session = session
        self.peak = 0
        self.processes = 1
        self._others = {session}
        """Ids of living processes that are known to be none of them, so as to look but once."""
        self._done = threading.Event()

    def run(self) -> None:
        now: set[int] = set()
        while not self._done.wait(SAMPLE_S):
            before, now = now, self._living()
            living = before & now
            self.processes = max(self.processes, len(living))
            if len(living) > 1:  # what one process has, the kernel knows better
                self.peak = max(self.peak, sum(map(_proportional, living)))

    def end(self) -> None:
        self._done.set()
        self.join()

    def _living(self) -> set[int]:
        """Return the ids of the processes that have not ended."""
        with os.scandir("/proc") as entries:
            all_ids = {int(entry.name) for entry in entries if entry.name.isdecimal()}
        self._others &= all_ids
        living = set()
        for process in all_ids - self._others:
            try:
                # Behind the name, which may hold anything: state, parent, group, session.
                stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(stat[3]) != self.session:
                self._others.add(process)
            elif stat[0] != "Z":
                living.add(process)
        return living


def _proportional(process: int) -> int:
    """Return the resident bytes of a process; what n processes share counts an nth in each."""
    try:
        rolled_up = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:  # it has ended meanwhile
        return 0
    return (
        next(int(line.split()[1]) for line in rolled_up.splitlines() if line[:4] == "Pss:") * 1024
    )


def first_open_s(command: Sequence[str], folder: Path) -> float:
    """Run a command; return the seconds from its start until it opens a file in ``folder``.

    The kernel tells (inotify), so the command need not know that it is measured.

    Raises:
        SystemExit: It failed, or opened none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    events = libc.inotify_init1(os.O_CLOEXEC)
    if events < 0 or libc.inotify_add_watch(events, os.fsencode(folder), IN_OPEN) < 0:
        raise OSError(ctypes.get_errno(), f"inotify cannot watch {folder}")
    quiet = subprocess.DEVNULL
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=_environment())
    end = os.pidfd_open(process.pid)
    try:
        opened = None
        while opened is None:
            ready, _, _ = select.select([events, end], [], [], TIMEOUT_S)
            if events in ready and _opens_file(os.read(events, 1 << 16)):
                opened = time.perf_counter() - start
            elif events not in ready:
                raise SystemExit(f"{' '.join(command)}: opened no file in {folder}")
        if process.wait(TIMEOUT_S):
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
        return opened
    finally:
        process.kill()
        process.wait()
        os.close(end)
        os.close(events)


def _opens_file(events: bytes) -> bool:
    """Tell whether one of these inotify events is of a file, not of the folder itself."""
    at = 0
    while at < len(events):
        _, mask, _, size = struct.unpack_from("iIII", events, at)
        if mask & IN_OPEN and not mask & IN_ISDIR:
            return True
        at += 16 + size
    return False


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each measure; the largest peak."""
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        max(cost.peak_mb for cost in costs),
        max(cost.processes for cost in costs),
        costs[-1].output,
    )


def interleaved(
    commands: Mapping[Any, Callable[[], Cost]], rounds: int, once: Collection[Any] = ()
) -> dict[Any, list[Cost]]:
    """Run each command once unmeasured, then all of them in turn, ``rounds`` times.

    Those in ``once`` run in the first round alone, and not before.
    """
    for name, run_it in commands.items():
        if name not in once:
            run_it()
    costs: dict[Any, list[Cost]] = {name: [] for name in commands}
    for turn in range(rounds):
        for name, run_it in commands.items():
            if turn == 0 or name not in once:
                costs[name].append(run_it())
    return costs


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a new process, whose memory goes with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def agree(tool: str, found: Mapping[str, int], truth: Mapping[str, int]) -> None:
    """Refuse to go on when a tool's counts are not those of the events.

    Raises:
        CountsDifferError: Any count that the tool gives is another one, or it gives none.
    """
    wrong = [
        f"{name} {value} instead of {truth[name]}"
        for name, value in found.items()
        if value != truth[name]
    ]
    if wrong or not found:
        text = "; ".join(wrong) or "gives no counts"
        raise CountsDifferError(f"{tool} did other work: {text}")


@dataclass(frozen=True)
class Goal:
    """A row of a table of goals.

    Attributes:
        what: Is measured.
        value: Measured.
        must, aim: Limits; None if there is none.
        unit: Of all three.
        more: Whether more is better.
        note: What else is to be known.
    """

    what: str
    value: float
    must: float | None
    aim: float | None
    unit: str
    more: bool = False
    note: str = ""

    def met(self) -> str:
        """Return which of the limits is met, in a word."""
        if self.must is None:
            return ""
        sign = 1 if self.more else -1
        reached = [
            limit is not None and sign * self.value >= sign * limit
            for limit in (self.must, self.aim)
        ]
        return "aim" if reached[1] else "must" if reached[0] else "NO"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return a Markdown table whose columns are aligned, the first ``texts`` to the left."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(widths[at]) if at < texts else cell.rjust(widths[at])
            for at, cell in enumerate(cells)
        ]
        return f"| {' | '.join(padded)} |"

    marks = ["-" * (width + 1) + ("-" if at < texts else ":") for at, width in enumerate(widths)]
    return "\n".join([line(head), f"|{'|'.join(marks)}|", *map(line, rows)])


def goals_table(goals: Sequence[Goal]) -> str:
    """Return the table of goals: what was measured, and what it should be."""

    def limit(value: float | None) -> str:
        return "" if value is None else f"{value:g}"

    rows = [
        (
            f"{goal.what}{f' ({goal.note})' if goal.note else ''}",
            f"{goal.value:.3g}" if goal.value < 100 else f"{goal.value:.0f}",
            limit(goal.must),
            limit(goal.aim),
            goal.unit,
            goal.met(),
        )
        for goal in goals
    ]
    return table(("what", "measured", "must", "aim", "unit", "met"), rows)


@contextmanager
def scratch(where: Path | None, needed: int) -> Iterator[Path]:
    """Yield a folder that is removed afterwards; tmpfs if it has ``needed`` bytes.

    Raises:
        SystemExit: There is not enough space.
    """
    shared = Path("/dev/shm")
    where = where or (shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir()))
    free = os.statvfs(where)
    there = free.f_bavail * free.f_frsize
    if where == shared:
        # Files on tmpfs are memory; half of what is free is left to the programs.
        there = min(there, _available() // 2)
    if there < needed:
        raise SystemExit(
            f"{where} has {there / 1e9:.1f} GB to spare and {needed / 1e9:.1f} GB are needed: "
            "choose fewer --events, or another folder with --scratch"
        )
    with tempfile.TemporaryDirectory(dir=where, prefix="sigmatrace-bench-") as name:
        yield Path(name)


def _available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
