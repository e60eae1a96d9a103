"""Speed and memory of the pipeline against what they must be: rank files to Perfetto or traffic.

Whole processes with their imports, interleaved, kernels cached, input in the page cache, output on
tmpfs; medians of the rounds, largest peaks. Every run must have the counts of its events. The large
run is on disk, as runs are; the small one lies on tmpfs like what Polars reads.

    python -m benchmarks pipeline_speed --small 5000000 --large 50000000 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine, measure, runs
from benchmarks.measure import Cost, Goal
from benchmarks.peers import PEERS, inputs
from benchmarks.peers_speed import Judged

POLARS = PEERS[0]
EVERYTHING, TRAFFIC, ALONE = "everything", "traffic", "everything, 1 worker"
EXPORT = {
    # The default budget of a trace is less than what 50 M operations take.
    EVERYTHING: ("export=perfetto", "export.perfetto.budget_mb=1000000"),
    TRAFFIC: ("export=json",),
}
CSV_BYTES = 350
"""Of an event for Polars: CSV in, NDJSON out, and the Parquet files in between."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--small", type=int, default=5_000_000, help="operations")
    parser.add_argument("--large", type=int, default=50_000_000, help="operations")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="folder to work in; default: /dev/shm")
    disk = Path(tempfile.gettempdir())
    told = f"folder of the large run; default: {disk}"
    parser.add_argument("--disk", type=Path, default=disk, help=told)
    options = parser.parse_args(arguments)
    small = options.small * (runs.RECORD_BYTES + runs.PERFETTO_BYTES + CSV_BYTES)
    needed = options.large * runs.PERFETTO_BYTES + small
    with (
        measure.scratch(options.scratch, needed) as folder,
        measure.scratch(options.disk, options.large * runs.RECORD_BYTES) as disk,
    ):
        found = measured(folder, disk, options)
    print(f"{options.ranks} ranks; {machine.describe()}")
    print(costs_table(found))
    print("\nGoals are those of 128 ranks, 5 M and 50 M operations, on 2 quiet cores.")
    print(measure.goals_table([*speed_goals(found), *size_goals(found), *start_goals(found)]))


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        runs: The small and the large run, by name.
        costs: By (name of the run, what was done).
        empty: Of the same commands over a run of four operations, by what was done.
        perfetto_bytes: Of the output, by name of the run.
        polars: On the small run.
        first_open_s: From the start of the process to the first rank file that is opened.
        cold: Everything over four operations, with an empty cache of kernels.
        help_s: Of ``--help``.
    """

    runs: Mapping[str, runs.Synthetic]
    costs: Mapping[tuple[str, str], Cost]
    empty: Mapping[str, Cost]
    perfetto_bytes: Mapping[str, int]
    polars: Cost
    first_open_s: float
    cold: Cost
    help_s: float

    def rate(self, run: str, what: str) -> float:
        """Return 10^6 events a second."""
        return self.runs[run].events / self.costs[run, what].wall_s / 1e6

    def cpu_ns(self, run: str, what: str, *, imports: bool) -> float:
        """Return CPU time per event; without imports that of a run of four operations is off."""
        start = 0.0 if imports else self.empty[what.split(",")[0]].cpu_s
        return (self.costs[run, what].cpu_s - start) / self.runs[run].events * 1e9


def measured(folder: Path, disk: Path, options: argparse.Namespace) -> Measured:
    """Generate the runs and measure."""
    out, rounds = folder / "out", options.rounds
    empty = runs.synthetic(folder / "empty", ranks=2, events=4)
    small = runs.synthetic(folder / "small", options.ranks, options.small)
    measure.apart(inputs.write, small.folder, folder, {POLARS.input})
    everything = {"small": runs.pipeline(small, out, *EXPORT[EVERYTHING])}
    commands: dict[tuple[str, str], Callable[[], Cost]] = {
        ("empty", what): runs.pipeline(empty, out, *export) for what, export in EXPORT.items()
    }
    commands["small", EVERYTHING] = everything["small"]
    commands["small", TRAFFIC] = runs.pipeline(small, out, *EXPORT[TRAFFIC])
    commands["small", POLARS.name] = Judged(POLARS, folder, small)
    commands["", "help"] = lambda: measure.run([*runs.PIPELINE, "--help"])
    found = medians(commands, rounds)
    shutil.rmtree(folder / POLARS.input)
    large = runs.synthetic(disk / "large", options.ranks, options.large)
    os.sync()  # else the disk is written while the commands are measured
    everything["large"] = runs.pipeline(large, out, *EXPORT[EVERYTHING])
    commands = {
        ("large", EVERYTHING): everything["large"],
        ("large", TRAFFIC): runs.pipeline(large, out, *EXPORT[TRAFFIC]),
        ("large", ALONE): runs.pipeline(large, out, *EXPORT[EVERYTHING], "cluster.workers=1"),
    }
    found |= medians(commands, rounds)
    return Measured(
        {"small": small, "large": large},
        {key: cost for key, cost in found.items() if key[0] in ("small", "large")},
        {what: found["empty", what] for what in EXPORT},
        {name: one.output_bytes(".pftrace") for name, one in everything.items()},
        found["small", POLARS.name],
        first_open_s(empty, out, rounds),
        cold(empty, out, rounds),
        found["", "help"].wall_s,
    )


def medians(
    commands: Mapping[tuple[str, str], Callable[[], Cost]], rounds: int
) -> dict[tuple[str, str], Cost]:
    """Return the median cost of each command."""
    costs = measure.interleaved(commands, rounds)
    return {key: measure.median(each) for key, each in costs.items()}


def first_open_s(run: runs.Synthetic, out: Path, rounds: int) -> float:
    """Return the time from the start of a process until it opens the first rank file."""
    command = [*runs.PIPELINE, f"run={run.folder}", f"out={out}", *EXPORT[EVERYTHING]]
    times = []
    for _ in range(rounds):
        times.append(measure.first_open_s(command, run.folder))
        shutil.rmtree(out)
    return statistics.median(times)


def cold(run: runs.Synthetic, out: Path, rounds: int) -> Cost:
    """Return the cost of a first run, when no kernel is compiled yet."""
    once = runs.pipeline(run, out, *EXPORT[EVERYTHING])
    costs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            costs.append(once({"NUMBA_CACHE_DIR": cache}))
    return measure.median(costs)


def costs_table(found: Measured) -> str:
    """Return what every command cost."""
    rows = []
    for (run, what), cost in found.costs.items():
        ours = what != POLARS.name
        rows.append(
            (
                f"{millions(found.runs[run])} M, {what}",
                f"{cost.wall_s:.2f}",
                f"{found.rate(run, what):.2f}",
                f"{found.cpu_ns(run, what, imports=True):.0f}",
                f"{found.cpu_ns(run, what, imports=False):.1f}" if ours else "",
                f"{cost.peak_mb:.0f}",
                str(cost.processes),
            )
        )
    head = ("what", "wall s", "M events/s", "CPU ns/event", "without imports", "peak MB")
    return measure.table((*head, "processes"), rows)


def speed_goals(found: Measured) -> list[Goal]:
    """Return the goals of time."""
    small, large = (f"{millions(run)} M" for run in found.runs.values())
    rate, cpu = "M events/s", "ns/event"
    ratio = found.polars.wall_s / found.costs["small", EVERYTHING].wall_s
    workers = found.costs["large", ALONE].wall_s / found.costs["large", EVERYTHING].wall_s

    def cpu_ns(what: str) -> float:
        return found.cpu_ns("large", what, imports=False)

    def rated(run: str, what: str, must: float, aim: float) -> Goal:
        size = small if run == "small" else large
        return Goal(f"{size}, {what}", found.rate(run, what), must, aim, rate, more=True)

    return [
        rated("small", EVERYTHING, 4, 6),
        Goal(f"{small}, everything, against {POLARS.name}", ratio, 3, None, "times", more=True),
        rated("large", EVERYTHING, 12, 18),
        rated("small", TRAFFIC, 5, 8),
        rated("large", TRAFFIC, 30, 50),
        Goal(f"CPU without imports, {large}, everything", cpu_ns(EVERYTHING), 110, 75, cpu),
        Goal(f"CPU without imports, {large}, traffic", cpu_ns(TRAFFIC), 18, 11, cpu),
        Goal(f"two workers against one, {large}, everything", workers, 1.6, None, "times", True),
    ]


def size_goals(found: Measured) -> list[Goal]:
    """Return the goals of memory and of the output."""
    goals = []
    for name, run in found.runs.items():
        peak = found.costs[name, EVERYTHING].peak_mb
        goals.append(Goal(f"peak memory, {millions(run)} M, everything", peak, 600, 400, "MB"))
    for name, run in found.runs.items():
        size = found.perfetto_bytes[name] / run.events
        goals.append(
            Goal(f"Perfetto with size and flow, {millions(run)} M", size, 50, 46, "B/event")
        )
    return goals


def start_goals(found: Measured) -> list[Goal]:
    """Return the goals of starting."""
    cold, warm = found.cold, found.empty[EVERYTHING]
    return [
        Goal("start-up to the first rank file that is opened", found.first_open_s, 0.6, 0.4, "s"),
        Goal(
            "cold kernels: 4 operations to Perfetto", cold.wall_s, 3, 1.5, "s",
            note=f"CPU {cold.cpu_s:.1f} s; warm {warm.wall_s:.2f} s, CPU {warm.cpu_s:.1f} s",
        ),
        Goal("--help", found.help_s, 0.1, 0.03, "s"),
    ]  # fmt: skip


def millions(run: runs.Synthetic) -> str:
    """Return how many operations a run has, in millions."""
    return f"{run.events / 1e6:.3g}"


if __name__ == "__main__":
    main()
