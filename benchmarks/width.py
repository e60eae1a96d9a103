"""Width: many rank files, and ranks that all talk to all: CPU time and memory by step.

Each run is generated, correlated in a process of its own, checked against its truth, and removed.

    python benchmarks/width.py --files 512 1024 2048 4096 --events 10000
    python benchmarks/width.py --files --all 128 256 512 1024 --export json
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS_OF_A_CHANNEL = 4
"""Operations in all-to-all runs, sends and receives, per ordered pair of ranks."""
STEPS = ("index_file", "merge", "plan", "account")
METHODS = ("survey", "apply", "summarize", "combine", "resolve", "write", "finish")


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
        print(json.dumps(measure(*options.measure)))
        return
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
    from sigmatrace.testing.synthetic import generate
    from sigmatrace.testing.synthetic_draw import Shape

    truth = generate(folder / "run", Shape(hosts=16, **shape))
    command = [sys.executable, __file__, "--measure", str(folder / "run"), str(folder / "out")]
    done = subprocess.run([*command, export], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    ledger = json.loads((folder / "out" / "ledger.json").read_text())
    assert ledger["balanced"]
    assert ledger["stages"]["match"]["sends_matched"] == int(truth.pairs["matched"].sum())
    channels = ledger["stages"]["topology"]["channels"]
    print(
        f"{shape['ranks']} files, {truth.operations} operations, {channels} channels, {export}: "
        f"{found['wall']:.1f} s, CPU {found['cpu']:.1f} s "
        f"({found['cpu'] / truth.operations * 1e9:.0f} ns an operation), "
        f"peak {found['peak_mb']:.0f} MB; {found['tasks']} tasks"
    )
    for name, seconds in sorted(found["steps"].items(), key=lambda step: -step[1]):
        if seconds >= 0.1:
            print(f"    {name:24} {seconds:7.2f} s")


def measure(run: str, out: str, export: str) -> dict[str, Any]:
    """Run the pipeline in this process; return CPU seconds by step, and the peak memory."""
    import resource

    from sigmatrace import api, passes, pipeline
    from sigmatrace.capture.read import read

    steps: dict[str, float] = defaultdict(float)
    tasks: list[int] = []
    settings = api.compose([f"run={run}", f"out={out}", f"export=[{export}]", "cluster.workers=2"])
    chosen = api.plan(settings)
    setattr(passes, "read", counted(read, "read", steps))  # noqa: B010
    for name in STEPS:
        setattr(pipeline, name, counted(getattr(pipeline, name), name, steps))
    kinds: set[Any] = {type(step) for step in (*chosen.stages, *chosen.exporters)}
    for kind in kinds:
        for method in METHODS:
            if method in vars(kind):  # of its own: a stage is asked which it has
                label = f"{kind.name}.{method}"
                setattr(kind, method, counted(getattr(kind, method), label, steps))
    made = passes.graph_of

    def graph(*arguments: Any) -> Any:
        result = made(*arguments)
        tasks.append(len(result[0]))
        return result

    setattr(pipeline, "graph_of", graph)  # noqa: B010 - mypy refuses the assignment
    wall, cpu = time.perf_counter(), time.process_time()
    api.execute(settings)
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "tasks": sum(tasks),
        "steps": steps,
    }


def counted(
    function: Callable[..., Any], label: str, steps: dict[str, float]
) -> Callable[..., Any]:
    """Return a function that adds the CPU time of its thread to a step's."""

    @functools.wraps(function)
    def timed(*arguments: Any, **named: Any) -> Any:
        begin = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            steps[label] += time.thread_time() - begin

    return timed


if __name__ == "__main__":
    main()
