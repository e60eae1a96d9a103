"""``python -m tests.rigs.mlx5.gpu``: runs all steps, prints verdicts, writes the results.

Exit codes: 0 all is as it should be, 1 something is not, 2 of what was asked for something is
unknown, 77 there is no GPU here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path

from tests.rigs.mlx5.build import Built, build, built_in, nvcc_found
from tests.rigs.mlx5.emulated import Emulated
from tests.rigs.mlx5.gpu import bfs, cases, machine, overhead
from tests.rigs.mlx5.gpu.report import report
from tests.rigs.mlx5.gpu.runner import FAIL, NOT_RUN, PASS, Runner

NO_GPU = 77
_LIBRARY = "libsigmatrace_gpu.so"
STEPS = ("cases", "persistent", "pairs", "bfs", "overhead")


@dataclass(frozen=True)
class Sizes:
    """How much each step does."""

    ops: int
    many: int
    slow: int
    wrap: int
    doorbells: int
    slow_doorbells: int
    qps: int
    searches: tuple[bfs.Search, ...]
    overhead: overhead.Size


_MANY_THREADS = ("blocks=8", "threads=4", "batch=64")
FULL = Sizes(
    ops=150,
    many=512,
    slow=2000,
    wrap=70_000,
    doorbells=2_720_000,
    slow_doorbells=80_000,
    qps=8,
    searches=(
        bfs.Search(14, 2),
        bfs.Search(14, 4),
        bfs.Search(14, 4, _MANY_THREADS),
        bfs.Search(17, 2),
        bfs.Search(17, 4, _MANY_THREADS),
    ),
    overhead=overhead.Size(5000, 1000, overhead.REPETITIONS, 40_000, 10_000),
)
SMALL = Sizes(
    ops=12,
    many=48,
    slow=24,
    wrap=500,
    doorbells=800,
    slow_doorbells=80,
    qps=2,
    searches=(bfs.Search(8, 2), bfs.Search(8, 4, ("blocks=2", "threads=2", "batch=8"))),
    overhead=overhead.Size(40, 10, 1, 400, 400),
)


def _choice(words: str, known: Collection[str]) -> list[str]:
    chosen = words.split(",")
    unknown = [word for word in chosen if word not in known]
    if unknown:
        wrong = f"unknown: {', '.join(unknown)}; choose from {','.join(known)}"
        raise argparse.ArgumentTypeError(wrong)
    return chosen


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu-test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stand-in", action="store_true", help="no GPU, and small numbers")
    parser.add_argument(
        "--steps",
        type=partial(_choice, known=STEPS),
        default=list(STEPS),
        help=f"some of {','.join(STEPS)}",
    )
    parser.add_argument(
        "--rings",
        type=partial(_choice, known=overhead.PLACES),
        default=list(overhead.PLACES),
        help=f"of step overhead: some of {','.join(overhead.PLACES)}",
    )
    parser.add_argument("--rig", type=Path, help="folder where the rig was built; else: build it")
    parser.add_argument("--lib", type=Path, help=f"folder of {_LIBRARY}")
    parser.add_argument("--timeout", type=float, default=60, help="of one program, in seconds")
    parser.add_argument(
        "--write", type=Path, help="Markdown file for the results of all steps on a GPU"
    )
    return parser.parse_args(words)


def _library(folder: Path | None) -> Path:
    wanted = os.environ.get("SIGMATRACE_LIB_DIR")
    if folder is None and wanted:
        folder = Path(wanted)
    if folder is None:  # the package itself is not needed where a folder is named
        folder = Path(str(files("sigmatrace.capture") / "lib"))
    return folder / _LIBRARY


def _rig(options: argparse.Namespace, scratch: Path) -> Built:
    if options.rig:
        return built_in(options.rig.absolute())
    return build(scratch / "rig", None if options.stand_in else nvcc_found())


def _step_cases(runner: Runner, sizes: Sizes) -> None:
    for case in (*cases.single(sizes.ops, sizes.many, sizes.slow), cases.wrap(sizes.wrap)):
        runner.judge(f"traced: {case.name}", partial(cases.run, runner, case))
    runner.judge("traced: doorbells alone", partial(cases.doorbells_alone, runner, sizes.ops))
    for way, is_used in machine.waits().items():
        text = "in all that is above" if is_used else "this processor does not wait so"
        runner.say(f"the sweeper waits by {way}", PASS if is_used else NOT_RUN, text)


def _step_persistent(runner: Runner, sizes: Sizes) -> None:
    many, few = sizes.doorbells, sizes.slow_doorbells
    for mode, memory, doorbells in (
        ("simple", "host", many),
        ("full", "host", many),
        ("full", "mirrored", many),
        ("full", "gpu", few),
    ):
        point = f"persistent kernel, {sizes.qps} queue pairs, rings: {memory}, mode {mode}"
        step = partial(cases.persistent, runner, mode, memory, sizes.qps, doorbells)
        runner.judge(point, step)


def _step_pairs(runner: Runner, sizes: Sizes) -> None:
    for case in cases.pairs(2 * sizes.ops):
        runner.judge(f"two processes: {case.name}", partial(cases.run, runner, case))


def _step_bfs(runner: Runner, sizes: Sizes) -> None:
    for search in sizes.searches:
        runner.judge(f"search: {search.name}", partial(bfs.run, runner, search))


def _measured(runner: Runner, size: overhead.Size, tables: list[overhead.Table], at: str) -> str:
    tables.append(overhead.measure(runner, at, size))
    return "measured"


def _step_overhead(runner: Runner, sizes: Sizes, memories: list[str]) -> list[str]:
    lines = []
    for memory in memories:
        tables: list[overhead.Table] = []
        step = partial(_measured, runner, sizes.overhead, tables, memory)
        runner.judge(f"overhead, rings: {memory}", step)
        for table in tables:
            overhead.judge(runner, table)
            lines += ["", *overhead.lines(table, sizes.overhead)]
    return lines


def _steps(runner: Runner, sizes: Sizes, options: argparse.Namespace) -> list[str]:
    """All steps that are wanted; the tables' lines."""
    lines: list[str] = []
    if "cases" in options.steps:
        _step_cases(runner, sizes)
    if "persistent" in options.steps:
        _step_persistent(runner, sizes)
    with machine.mps(runner.scratch / "mps") as shared:
        if runner.gpu:
            text = "several processes' kernels run at a time" if shared else "it does not start"
            runner.say("MPS", PASS if shared else NOT_RUN, text)
        if "pairs" in options.steps:
            _step_pairs(runner, sizes)
        if "bfs" in options.steps:
            _step_bfs(runner, sizes)
        if "overhead" in options.steps:
            lines = _step_overhead(runner, sizes, options.rings)
    return lines


def _write(options: argparse.Namespace, text: str) -> None:
    """The page is of the whole alone: what is in it was measured on a GPU, in one go."""
    whole = set(options.steps) == set(STEPS) and set(options.rings) == set(overhead.PLACES)
    if options.stand_in or not whole:
        print(f"{options.write} stays as it is: it is written by all steps on a GPU alone")
    else:
        options.write.write_text(text)


def main(words: list[str] | None = None) -> int:
    """Runs what is asked for; the exit code."""
    options, begin = _arguments(words), time.time()
    found = machine.stand_in() if options.stand_in else machine.look()
    if found is None:
        print("gpu-test: no GPU here: nothing was run (--stand-in runs the steps without one)")
        return NO_GPU
    with tempfile.TemporaryDirectory(prefix="gpu-test-") as folder:
        scratch = Path(folder)
        rig = _rig(options, scratch)
        cpus = () if options.stand_in else machine.cpus()
        emulated = Emulated(rig, not options.stand_in, options.timeout, cpus)
        cupti = str(rig.driver / "libcupti.so.13") if options.stand_in else machine.cupti()
        runner = Runner(emulated, _library(options.lib).absolute(), scratch, cupti)
        lines = _steps(runner, SMALL if options.stand_in else FULL, options)
    text = report(found, runner, lines, begin, time.time() - begin)
    print(text)
    if options.write:
        _write(options, text)
    return 0 if all(verdict.outcome != FAIL for verdict in runner.verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
