"""Width: many rank files, and ranks that all talk to all: CPU time and memory by step.

Each run is generated, correlated in a process of its own, checked against its truth, and removed.

    python -m benchmarks width --files 512 1024 2048 4096 --events 10000
    python -m benchmarks width --files --all 128 256 512 1024 --export json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import machine, measure, runs
from benchmarks.steps import Steps

EVENTS_OF_A_CHANNEL = 4
"""Operations in all-to-all runs, sends and receives, per ordered pair of ranks."""
LEAST_NS = 10**8
"""Of a step that is printed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, nargs="*", default=[256, 512])
    parser.add_argument("--events", type=int, default=2000, help="of each file")
    parser.add_argument("--all", type=int, nargs="*", default=[64, 128])
    parser.add_argument("--export", default="json")
    parser.add_argument("--scratch", default="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(inside(*options.measure)))
        return
    print(f"width; {machine.describe()}", flush=True)
    shapes: list[dict[str, Any]] = [
        {"ranks": n, "events": n * options.events} for n in options.files
    ]
    shapes += [
        {"ranks": n, "peers": n - 1, "events": EVENTS_OF_A_CHANNEL * n * (n - 1)}
        for n in options.all
    ]
    for shape in shapes:
        with tempfile.TemporaryDirectory(dir=options.scratch, prefix="sigmatrace-width-") as name:
            one(shape, options.export, Path(name))


def one(shape: dict[str, Any], export: str, folder: Path) -> None:
    """Generate a run, measure it, check it, and print its lines."""
    run = runs.synthetic(folder / "run", hosts=16, **shape)
    command = [sys.executable, "-m", "benchmarks.width", "--measure"]
    cost = measure.run([*command, str(run.folder), str(folder / "out"), export])
    found = json.loads(cost.output.splitlines()[-1])
    ledger = json.loads((folder / "out" / "ledger.json").read_text())
    assert ledger["balanced"]
    measure.agree("sigmatrace", runs.counts(ledger), run.counts)
    channels = ledger["stages"]["topology"]["channels"]
    print(
        f"{shape['ranks']} files, {run.events} operations, {channels} channels, {export}: "
        f"{found['wall']:.1f} s, CPU {found['cpu']:.1f} s "
        f"({found['cpu'] / run.events * 1e9:.0f} ns an operation), "
        f"peak {cost.peak_mb:.0f} MB; {found['tasks']} tasks"
    )
    for name, ns in sorted(found["steps"].items(), key=lambda step: -step[1]):
        if ns >= LEAST_NS:
            print(f"    {name:24} {ns / 1e9:7.2f} s")


def inside(run: str, out: str, export: str) -> dict[str, Any]:
    """Run the pipeline in this process; return seconds, tasks, and CPU time in ns by step."""
    from sigmatrace import api, passes, pipeline

    settings = api.compose([f"run={run}", f"out={out}", f"export=[{export}]", "cluster.workers=2"])
    steps = Steps()
    steps.watch_index()
    steps.watch(passes, "read", "read")
    steps.watch_chosen(settings)
    tasks: list[int] = []
    made = passes.graph_of

    def graph(*arguments: Any) -> Any:
        result = made(*arguments)
        tasks.append(len(result[0]))
        return result

    wall, cpu = time.perf_counter(), time.process_time()
    with mock.patch.object(pipeline, "graph_of", graph):
        api.execute(settings)
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "tasks": sum(tasks),
        "steps": steps.ns,
    }


if __name__ == "__main__":
    main()
