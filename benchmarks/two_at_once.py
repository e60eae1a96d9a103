"""What this machine gives two that compute at once: why two workers are not twice as fast as one.

Processes that share nothing run alone and two at a time: arithmetic within the first cache, copies
of memory, and the pipeline with one worker over the same run. What two get of twice the work of
one is the most that two workers could, but for the part of a run that is one thread: start and end,
which is about what a run of four operations takes.

    python -m benchmarks two_at_once --events 20000000 --rounds 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks import machine, measure, runs
from benchmarks.measure import Cost
from benchmarks.pipeline_speed import EVERYTHING, EXPORT, TRAFFIC, medians, millions

ARITHMETIC = """
import hashlib
block = bytes(16 << 10)
for _ in range(100_000): hashlib.sha256(block)
"""
COPIES = """
import numpy as np
a, b = np.ones((2, 32 << 20))
for _ in range(25): b[:] = a
"""
ALONE, TOGETHER, WORKERS = "alone", "together", "two workers"
OWN = (EVERYTHING, TRAFFIC)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--events", type=int, default=20_000_000, help="operations")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="folder to work in; default: /dev/shm")
    options = parser.parse_args(arguments)
    needed = options.events * (runs.RECORD_BYTES + 2 * runs.PERFETTO_BYTES)
    with measure.scratch(options.scratch, needed) as folder:
        run = runs.synthetic(folder / "run", options.ranks, options.events)
        empty = runs.synthetic(folder / "empty", ranks=2, events=4)
        found = medians(commands(folder, run, empty), options.rounds)
    print(f"{options.ranks} ranks, {millions(run)} M operations; {machine.describe()}")
    print(shared_table(found))
    print()
    print(workers_table(found))


def commands(
    folder: Path, run: runs.Synthetic, empty: runs.Synthetic
) -> dict[tuple[str, str], Callable[[], Cost]]:
    """Return all that is measured, by what it is and how often at a time."""
    every: dict[tuple[str, str], Callable[[], Cost]] = {}
    for what, code in (("arithmetic", ARITHMETIC), ("copies of memory", COPIES)):
        every |= alone_and_together(what, [partial(script, code)] * 2)
    for what in OWN:
        words = (*EXPORT[what], "cluster.workers=1")
        outs = (folder / "out", folder / "other")
        every |= alone_and_together(what, [runs.pipeline(run, out, *words) for out in outs])
        every[what, WORKERS] = runs.pipeline(run, outs[0], *EXPORT[what], "cluster.workers=2")
        every["empty", what] = runs.pipeline(empty, outs[0], *words)
    return every


def script(code: str) -> Cost:
    """Run a piece of Python."""
    return measure.run([sys.executable, "-c", code])


def alone_and_together(
    what: str, two: Sequence[Callable[[], Cost]]
) -> dict[tuple[str, str], Callable[[], Cost]]:
    """Return a command that runs the first of two, and one that runs both at once."""

    def both() -> Cost:
        with ThreadPoolExecutor(len(two)) as pool:
            started = [pool.submit(one) for one in two]
            return max((one.result() for one in started), key=lambda cost: cost.wall_s)

    return {(what, ALONE): two[0], (what, TOGETHER): both}


def shared_table(found: dict[tuple[str, str], Cost]) -> str:
    """Return what two at once get."""
    rows = []
    for what in dict.fromkeys(what for what, how in found if how == TOGETHER):
        one, both = found[what, ALONE], found[what, TOGETHER]
        rows.append(
            (
                what,
                *(f"{cost.wall_s:.2f}" for cost in (one, both)),
                *(f"{cost.cpu_s:.2f}" for cost in (one, both)),
                f"{2 * one.wall_s / both.wall_s:.2f}",
            )
        )
    walls = "wall s, alone", "two at once"
    head = ("processes that share nothing", *walls, "CPU s, alone", "each of two", "times")
    return measure.table(head, rows)


def workers_table(found: dict[tuple[str, str], Cost]) -> str:
    """Return what two workers of one process get, and what would be left by the table above."""
    rows = []
    for what in OWN:
        one, two = found[what, ALONE].wall_s, found[what, WORKERS].wall_s
        shared = 2 * one / found[what, TOGETHER].wall_s
        serial = found["empty", what].wall_s
        most = one / (serial + (one - serial) / shared)
        numbers = (one, two, serial, one / two, most)
        rows.append((what, *(f"{number:.2f}" for number in numbers)))
    seconds = "one worker, wall s", "two workers", "4 operations"
    return measure.table(("one process", *seconds, "times", "at most"), rows)


if __name__ == "__main__":
    main()
