"""Where the CPU goes: ns of CPU time per event by step of the pipeline, imports left out.

Steps are timed by their thread's own clock, inside a whole run of the pipeline; so what several
threads cost each other (caches, fresh pages) is in the numbers of ``--workers 2``.

    python -m benchmarks stage_cost --ranks 128 --events 50000000 --workers 1
    python -m benchmarks stage_cost --run RUN --workers 2 --repeat 3 partition_mb=8
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import machine, runs
from benchmarks.steps import Steps


def watch_reading(steps: Steps) -> None:
    """Take the times of reading, and of what it consists of."""
    from sigmatrace import passes
    from sigmatrace.capture import columns, items, read

    steps.watch(passes, "read", "read: the rest")
    steps.watch(read, "_fetch", "read: copy from the page cache")
    steps.watch(items, "is_intact", "read: checksum")
    steps.watch(columns.EventTable, "add", "read: into columns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a run's folder; else one is made")
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--mode", choices=("simple", "full"), default="simple")
    parser.add_argument("--export", default="json")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("overrides", nargs="*", help="options of the pipeline")
    options = parser.parse_args()
    print(f"cost by step; {machine.describe()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sigmatrace-cost-") as name:
        folder = options.run
        if folder is None:
            folder = Path(name) / "run"
            runs.synthetic(folder, options.ranks, options.events, mode=options.mode)
        measure(folder, Path(name), options)


def measure(folder: Path, scratch: Path, options: argparse.Namespace) -> None:
    """Run the pipeline, once to warm up, and print medians."""
    from sigmatrace import api
    from sigmatrace.compose import compose

    words = [
        *(f"run={folder}", f"out={scratch / 'out'}", "overwrite=true"),
        *(f"export=[{options.export}]", f"cluster.workers={options.workers}"),
        *options.overrides,
    ]
    settings = compose(words)
    steps = Steps()
    steps.watch_index()
    steps.watch_chosen(settings)
    watch_reading(steps)
    samples = []
    for _ in range(options.repeat + 1):
        steps.ns.clear()
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        result = api.execute(settings)
        steps.ns["all"] = time.process_time_ns() - cpu
        steps.ns["wall"] = time.perf_counter_ns() - wall
        samples.append(dict(steps.ns))
    records = result.ledger["records"]
    events = sum(count["read"] for count in records.values())
    report(samples[1:], events)


def report(samples: list[dict[str, int]], events: int) -> None:
    """Print ns of CPU per event by step, and what no step explains."""
    steps = {
        name: statistics.median(one.get(name, 0) for one in samples) / events for name in samples[0]
    }
    whole, wall = steps.pop("all"), steps.pop("wall")
    steps["not in any step"] = whole - sum(steps.values())
    print(f"{events} events; ns of CPU per event, medians of {len(samples)}")
    for name, ns in sorted(steps.items(), key=lambda step: -step[1]):
        if ns >= 0.005:
            print(f"{ns:8.2f}  {name}")
    print(f"{whole:8.2f}  all; {wall:.2f} ns of wall time")


if __name__ == "__main__":
    main()
