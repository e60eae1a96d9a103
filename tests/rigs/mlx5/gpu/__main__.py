"""``python -m tests.rigs.mlx5.gpu``: runs all steps, prints verdicts, writes the results.

Exit codes: 0 all is as it should be, 1 something is not, 77 there is no GPU here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path

from tests.rigs.mlx5.build import Built, build, built_in, nvcc_found
from tests.rigs.mlx5.emulated import Emulated
from tests.rigs.mlx5.gpu import cases, machine, overhead
from tests.rigs.mlx5.gpu.report import report
from tests.rigs.mlx5.gpu.runner import NOT_RUN, PASS, Runner

NO_GPU = 77
_LIBRARY = "libsigmatrace_gpu.so"


@dataclass(frozen=True)
class Sizes:
    """How much each step does."""

    ops: int
    wrap: int
    doorbells: int
    slow_doorbells: int
    qps: int
    overhead: overhead.Size


FULL = Sizes(150, 70_000, 2_720_000, 80_000, 8, overhead.Size(5000, 1000, 5, 20_000))
SMALL = Sizes(12, 500, 800, 80, 2, overhead.Size(40, 10, 2, 50))


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-test", description=__doc__)
    parser.add_argument("--stand-in", action="store_true", help="no GPU, and small numbers")
    parser.add_argument("--steps", default="cases,persistent,pairs,overhead", help="which of these")
    parser.add_argument("--rings", default="mirrored,host,gpu", help="of step overhead: which")
    parser.add_argument("--rig", type=Path, help="folder where the rig was built; else: build it")
    parser.add_argument("--lib", type=Path, help=f"folder of {_LIBRARY}")
    parser.add_argument("--timeout", type=float, default=60, help="of one program, in seconds")
    parser.add_argument("--write", type=Path, help="Markdown file for the results")
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
    for case in (*cases.single(sizes.ops), cases.wrap(sizes.wrap)):
        runner.judge(f"traced: {case.name}", partial(cases.run, runner, case))
    runner.judge("traced: doorbells alone", partial(cases.doorbells_alone, runner, sizes.ops))


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
    wanted, lines = options.steps.split(","), []
    if "cases" in wanted:
        _step_cases(runner, sizes)
    if "persistent" in wanted:
        _step_persistent(runner, sizes)
    with machine.mps(runner.scratch / "mps") as shared:
        if runner.gpu:
            text = "two processes' kernels run at a time" if shared else "it does not start"
            runner.say("MPS", PASS if shared else NOT_RUN, text)
        if "pairs" in wanted:
            _step_pairs(runner, sizes)
        if "overhead" in wanted:
            lines = _step_overhead(runner, sizes, options.rings.split(","))
    return lines


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
        cupti = None if options.stand_in else machine.cupti()
        runner = Runner(emulated, _library(options.lib).absolute(), scratch, cupti)
        lines = _steps(runner, SMALL if options.stand_in else FULL, options)
    text = report(found, runner, lines, begin, time.time() - begin)
    print(text)
    if options.write:
        options.write.write_text(text)
    return 0 if all(verdict.outcome != "FAIL" for verdict in runner.verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
