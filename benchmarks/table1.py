"""Runs of the shape and size of Table I of the paper: memory, rates, bytes per event.

Each size in millions of operations is generated on disk, correlated to traffic, matrix, Parquet
and (with --window) Perfetto of that window, correlated to traffic alone, and packed; all of it is
removed before the next. From two sizes on, wall time and peak memory are fitted by a line, and
what it says of 2,000 M operations is printed as what it is: extrapolated.

    python -m benchmarks table1 --millions 43
    python -m benchmarks table1 --millions 43 305 --window 0.1s..0.11s
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine, measure, runs
from benchmarks.measure import Cost, Goal

SLAB = 10_000_000
"""Operations that the generator draws at a time; it then repeats them."""
DISK_BYTES = 64
"""Of an operation: its record, and at most as much again as Parquet or packed."""
WORKSPACE = Path(__file__).parents[1] / "build" / "table1"
PAPER_MILLIONS = (43, 305, 2000)
PACK = (sys.executable, "-m", "sigmatrace.capture.pack")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--millions", type=float, nargs="+", default=[PAPER_MILLIONS[0]])
    parser.add_argument("--window", help="of the Perfetto output, as export.perfetto.window")
    parser.add_argument("--scratch", type=Path, default=WORKSPACE, help=f"default: {WORKSPACE}")
    options = parser.parse_args(arguments)
    options.scratch.mkdir(parents=True, exist_ok=True)
    rows = []
    for millions in options.millions:
        events = round(millions * 1e6)
        with measure.scratch(options.scratch, events * DISK_BYTES) as folder:
            rows.append(Row.of(folder, events, options))
            print(report(rows[-1:], options), flush=True)
    if len(rows) > 1:
        print(report(rows, options))
        print(extrapolated(rows))
    for row in rows:
        print(f"\n{row.name}")
        print(measure.goals_table(goals(row)))


@dataclass(frozen=True)
class Row:
    """What a run of one size cost.

    Attributes:
        run: Its files are removed again.
        generate_s: Time to write it.
        full: Traffic, matrix, Parquet, and Perfetto of the window.
        traffic: Traffic and matrix as JSON alone.
        parquet_bytes: Of the Parquet files of the full output.
        pack: Packing.
        packed_bytes: Of the packed run.
    """

    run: runs.Synthetic
    generate_s: float
    full: Cost
    traffic: Cost
    parquet_bytes: int
    pack: Cost
    packed_bytes: int

    @classmethod
    def of(cls, folder: Path, events: int, options: argparse.Namespace) -> Row:
        """Generate, measure and remove a run."""
        start = time.perf_counter()
        repeats = max(1, round(events / SLAB))
        run = runs.synthetic(folder / "run", options.ranks, events, repeats=repeats)
        generate_s = time.perf_counter() - start
        chosen = ("export=[json,matrix,parquet]",)
        if options.window:
            chosen = ("export=[json,matrix,parquet,perfetto]",)
            chosen += (f"export.perfetto.window={options.window}",)
        full = runs.pipeline(run, folder / "out", *chosen)
        traffic = runs.pipeline(run, folder / "out", "export=json")
        tiny = runs.synthetic(folder / "tiny", ranks=2, events=4)
        runs.pipeline(tiny, folder / "out", *chosen)()  # compiles kernels
        traffic()  # reads the input into memory as far as it fits
        costs = full(), traffic()
        pack, packed_bytes = packed(run, tiny, folder / "packed")
        return cls(run, generate_s, *costs, full.output_bytes("parquet/"), pack, packed_bytes)

    @property
    def name(self) -> str:
        """Millions of operations."""
        return f"{self.run.events / 1e6:.4g} M"


def packed(run: runs.Synthetic, tiny: runs.Synthetic, out: Path) -> tuple[Cost, int]:
    """Pack a run, and see that it is read directly; return the cost and the bytes."""
    measure.run([*PACK, str(tiny.folder), "-o", str(out.parent / "tiny-packed")])  # compiles
    cost = measure.run([*PACK, str(run.folder), "-o", str(out)])
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    runs.pipeline(runs.Synthetic(out, run.counts, size), out.parent / "again", "export=json")()
    shutil.rmtree(out)
    return cost, size


def report(rows: Sequence[Row], options: argparse.Namespace) -> str:
    """Return what was measured."""
    lines = []
    for row in rows:
        events = row.run.events
        lines.append(
            (
                row.name,
                f"{row.generate_s:.0f}",
                f"{row.run.size_bytes / 1e9:.1f}",
                f"{row.run.size_bytes / events:.2f}",
                f"{row.packed_bytes / events:.2f}",
                f"{row.full.wall_s:.1f}",
                f"{events / row.full.wall_s / 1e6:.2f}",
                f"{row.full.cpu_s / events * 1e9:.0f}",
                f"{row.full.peak_mb:.0f}",
                f"{row.parquet_bytes / events:.1f}",
                f"{events / row.traffic.wall_s / 1e6:.2f}",
                f"{row.traffic.cpu_s / events * 1e9:.0f}",
                f"{row.traffic.peak_mb:.0f}",
            )
        )
    window = f", Perfetto of {options.window}" if options.window else ", no Perfetto"
    head = ("run", "made in s", "GB", "B/event", "packed B/event")
    head += ("all wall s", "all M events/s", "all CPU ns/event", "all peak MB")
    head += ("Parquet B/event",)
    head += ("traffic M events/s", "traffic CPU ns/event", "traffic peak MB")
    what = f"all: traffic, matrix, Parquet{window}"
    return f"{options.ranks} ranks; {machine.describe()}; {what}\n{measure.table(head, lines)}"


def goals(row: Row) -> list[Goal]:
    """Return the goals of a run."""
    events = row.run.events
    rate = row.run.size_bytes / row.pack.cpu_s / 1e9
    return [
        Goal("peak memory of all processes", row.full.peak_mb, 1024**3 / 1e6, None, "MB"),
        Goal("raw", row.run.size_bytes / events, 40, None, "B/event"),
        Goal("traffic", events / row.traffic.wall_s / 1e6, 30, 50, "M events/s", more=True),
        Goal("packed", row.packed_bytes / events, 8, None, "B/event"),
        Goal("packing", rate, 0.4, None, "GB/s a core", more=True),
    ]


def extrapolated(rows: Sequence[Row]) -> str:
    """Return what lines through the measured sizes say of the largest run of the paper."""
    events = [row.run.events / 1e6 for row in rows]
    target = PAPER_MILLIONS[-1]
    lines = []
    for what, unit, values in (
        ("all, wall", "s", [row.full.wall_s for row in rows]),
        ("all, CPU", "s", [row.full.cpu_s for row in rows]),
        ("all, peak", "MB", [row.full.peak_mb for row in rows]),
        ("traffic, wall", "s", [row.traffic.wall_s for row in rows]),
        ("traffic, peak", "MB", [row.traffic.peak_mb for row in rows]),
    ):
        slope, start = statistics.linear_regression(events, values)
        pairs = zip(events, values, strict=True)
        off = max(abs((start + slope * size) / value - 1) for size, value in pairs)
        lines.append(
            (
                f"{what}, {unit}",
                f"{start:.1f}",
                f"{slope:.4f}",
                f"{off:.0%}" if len(rows) > 2 else "two sizes, no residue",
                f"{start + slope * target:.0f}",
            )
        )
    largest = max(rows, key=lambda row: row.run.events).name
    head = ("fitted", "fixed", "per million events", "largest deviation")
    return (
        f"\nExtrapolated, not measured: {target} M operations, from lines through "
        f"{len(rows)} sizes up to {largest}; raw files of "
        f"{target * runs.RECORD_BYTES / 1e3:.0f} GB\n"
        + measure.table((*head, f"at {target} M"), lines)
    )


if __name__ == "__main__":
    main()
