"""Where the CPU goes: ns of CPU time per event by step of the pipeline, imports left out.

Steps are timed by their thread's own clock, inside a whole run of the pipeline; so what several
threads cost each other (caches, fresh pages) is in the numbers of ``--workers 2``.

    python benchmarks/stage_cost.py --ranks 128 --events 50000000 --workers 1
    python benchmarks/stage_cost.py --run RUN --workers 2 --repeat 3 partition_mb=8
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

METHODS = ("survey", "apply", "summarize", "combine", "resolve")


class Costs:
    """CPU time by step; what a step calls that is timed itself is not the step's."""

    def __init__(self) -> None:
        self.ns: Counter[str] = Counter()
        self._here = threading.local()
        self._lock = threading.Lock()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed under a name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            outer = getattr(self._here, "inner", 0)
            self._here.inner = 0
            start = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.thread_time_ns() - start
                with self._lock:
                    self.ns[name] += spent - self._here.inner
                self._here.inner = outer + spent

        return call

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Time a function where it is looked up."""
        setattr(owner, attribute, self.timed(name, getattr(owner, attribute)))


def watch_all(costs: Costs) -> None:
    """Time what reads; stages and exporters are timed when they are made."""
    from sigmatrace import passes, pipeline
    from sigmatrace.capture import columns, items, read

    costs.watch(pipeline, "index_file", "index of files")
    costs.watch(pipeline, "merge", "index, merged")
    costs.watch(pipeline, "plan", "partitions")
    costs.watch(passes, "read", "read: the rest")
    costs.watch(read, "_fetch", "read: copy from the page cache")
    costs.watch(items, "is_intact", "read: checksum")
    costs.watch(columns.EventTable, "add", "read: into columns")


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
    with tempfile.TemporaryDirectory(prefix="sigmatrace-cost-") as name:
        folder = options.run
        if folder is None:
            from sigmatrace.testing.synthetic import generate

            folder = Path(name) / "run"
            generate(folder, ranks=options.ranks, events=options.events, mode=options.mode)
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
    costs, plan = Costs(), api.plan

    def planned(given: Any) -> Any:
        chosen = plan(given)
        for stage in chosen.stages:
            for method in METHODS:
                costs.watch(stage, method, f"{stage.name}: {method}")
        for exporter in chosen.exporters:
            costs.watch(exporter, "write", f"{exporter.name}: write")
            costs.watch(exporter, "finish", f"{exporter.name}: finish")
        return chosen

    setattr(api, "plan", planned)  # noqa: B010
    watch_all(costs)
    samples = []
    for _ in range(options.repeat + 1):
        costs.ns.clear()
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        result = api.execute(settings)
        costs.ns["all"] = time.process_time_ns() - cpu
        costs.ns["wall"] = time.perf_counter_ns() - wall
        samples.append(dict(costs.ns))
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{whole:8.2f}  all; {wall:.2f} ns of wall time; peak {peak:.0f} MB")


if __name__ == "__main__":
    main()
