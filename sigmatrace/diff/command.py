"""``sigmatrace-diff``: what changed between two sides of runs, and whether that is noise."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sigmatrace.capture.arguments import Parser, exit_code
from sigmatrace.errors import ConfigError
from sigmatrace.text import counted
from sigmatrace.window import Window

if TYPE_CHECKING:
    from sigmatrace.diff.sources import Source

NAME = "sigmatrace-diff"
CHANGED = 13
"""Exit code if something changed that was to be looked for."""
FORMATS = ("table", "csv", "json")
FAILS = ("changed", "worse", "never")
_EPILOG = f"""\
RUN is a run whose pipeline had preset=analysis, or that output. With --window-a or --window-b the
trace files are read for that side, this time alone (as the pipeline's option window).

With one run a side nobody knows how much runs differ by themselves: all that changes by the
threshold or more is reported. With several, only what also exceeds the noise.

  sigmatrace-diff yesterday today
  sigmatrace-diff -a mon tue wed -b thu fri sat --fail-on worse
  sigmatrace-diff run run --window-a 0s..10s --window-b 10s..20s
  sigmatrace-diff yesterday today --format json > changes.json
  sigmatrace-diff yesterday today --html changes.html

exit codes: 0 nothing changed that counts, {CHANGED} something did (--fail-on), 1 own bug or nobody
read the output to its end, 2 option, 3 no run, no output or no tables, 4 damaged tables, 6 the page
cannot be written, 11 too many members of a kind, 130 interrupted; with a window also the pipeline's
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    failed: list[bool] = []
    code = exit_code(NAME, words, lambda: failed.append(_run(parser().parse_args(words))))
    return code or (CHANGED if failed[0] else 0)


def parser() -> Parser:
    """Return the parser of the words after the command's name; it raises ``ConfigError``."""
    made = Parser(
        NAME,
        "RUN_A RUN_B | -a RUN ... -b RUN ... [OPTION ...]",
        "Compares two runs, or two sides of several runs: what changed, how much, and whether "
        "that exceeds noise.",
        _EPILOG,
    )
    made.add_argument("runs", metavar="RUN", nargs="*", type=Path, help="run A, then run B")
    for side in "ab":
        made.add_argument(
            f"-{side}",
            metavar="RUN",
            nargs="+",
            type=Path,
            default=[],
            help=f"runs of side {side.upper()}",
        )
    for side in "ab":
        made.add_argument(
            f"--window-{side}", metavar="BEGIN..END", help=f"of side {side.upper()}: 10s..12.5s"
        )
    made.add_argument(
        "--threshold",
        metavar="PERCENT",
        type=_percent,
        default=0.05,
        help="what changes by less does not count (default: 5%%)",
    )
    made.add_argument(
        "--fail-on",
        choices=FAILS,
        default="changed",
        help=f"what makes the exit code {CHANGED}: any change (default), only what got worse "
        "(slower, more waiting, more errors), or nothing",
    )
    made.add_argument(
        "--top", metavar="N", type=_count, default=5, help="rows of each kind (default: 5)"
    )
    made.add_argument("--all", action="store_true", help="also what did not change")
    made.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    made.add_argument("--html", metavar="FILE", type=Path, help="also write a page of it")
    made.add_debug_and_version()
    return made


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: write a percentage, as in 5%")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on")
    return int(text)


def _run(options: argparse.Namespace) -> bool:
    """Compare, write, and return whether something changed that was to be looked for."""
    sides = _sides(options)
    from sigmatrace.diff import output, page, quality, sources
    from sigmatrace.diff.comparison import compare

    windows = (options.window_a, options.window_b)
    for side, window in zip("ab", windows, strict=True):
        if window is not None:
            Window.parse(f"--window-{side}", window)
    a, b = (
        [sources.opened(run, window) for run in runs]
        for runs, window in zip(sides, windows, strict=True)
    )
    for side, runs in zip("ab", (a, b), strict=True):
        _refuse_twice(side, runs)
    _refuse_on_both(a, b)
    found = compare(a, b, options.threshold)
    doubts = quality.attention(a, b)
    if options.html is not None:
        page.write(found, doubts, options.html)
    if options.format == "table":
        output.table(found, doubts, sys.stdout, options.top, every=options.all)
    elif options.format == "json":
        output.json_text(found, doubts, sys.stdout, every=options.all)
    else:
        for text in doubts:
            print(f"{NAME}: attention: {text}", file=sys.stderr)
        print(f"{NAME}: noise: {quality.noise_text(found)}", file=sys.stderr)
        output.csv(found, sys.stdout, every=options.all)
    fails = {"changed": lambda one: one.changed, "worse": lambda one: one.worse}
    return options.fail_on in fails and found.count(fails[options.fail_on]) > 0


def _refuse_twice(side: str, runs: Sequence[Source]) -> None:
    """Refuse a run that is on a side twice: between it and itself nothing differs, noise neither.

    Raises:
        ConfigError: It is.
    """
    seen: dict[Path, str] = {}
    for run in runs:
        if run.place in seen:
            what = f"-{side}: {seen[run.place]} and {run.name} are one run"
            raise ConfigError(what, "name each run once: noise is what differs between runs")
        seen[run.place] = run.name


def _refuse_on_both(a: Sequence[Source], b: Sequence[Source]) -> None:
    """Refuse a run on both sides of several: they would differ less than what they stand for.

    One run against itself is a way to see that nothing differs.

    Raises:
        ConfigError: There is one.
    """
    of_a = {(run.place, run.window_ns) for run in a}
    twice = [run.name for run in b if (run.place, run.window_ns) in of_a]
    if twice and len(a) + len(b) > 2:
        hint = "name each run on one side: what sides share tells neither change nor noise"
        raise ConfigError(f"{twice[0]} is on both sides", hint)


def _sides(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """Return the runs of both sides."""
    if options.runs and not (options.a or options.b):
        if len(options.runs) == 2:
            return [options.runs[0]], [options.runs[1]]
        hint = "name two, or several of each side by -a RUN ... -b RUN ..."
        raise ConfigError(f"{counted(len(options.runs), 'run')} named", hint)
    if options.runs or not (options.a and options.b):
        raise ConfigError("both sides need a run", f"see {NAME} --help")
    return options.a, options.b
