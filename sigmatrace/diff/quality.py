"""What has to be known before differences are believed: losses, clocks, and unlike runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sigmatrace import ledger
from sigmatrace.diff.comparison import Comparison
from sigmatrace.diff.identity import process_names
from sigmatrace.diff.noise import LEVEL
from sigmatrace.diff.sources import Source
from sigmatrace.export.report import facts
from sigmatrace.export.report.flows import in_order
from sigmatrace.partition import Run, column
from sigmatrace.text import count_text, counted, listed, time_text

SIDES = ("A", "B")
_LENGTHS_ALIKE = 1.01
"""Of windows, the longest : the shortest; beyond it a difference of sums says little."""
_FREEDOM_FEW = 4
"""With fewer degrees of freedom only what is many times the spread can be told from noise."""


def side_text(runs: Sequence[Source]) -> str:
    """Return what one side is."""
    processes = max(one.processes.num_rows for one in runs)
    hosts = max(len(set(one.processes.column("host").to_pylist())) for one in runs)
    most = "" if len(runs) == 1 else "at most "
    return (
        f"{listed([one.name for one in runs])}: {counted(len(runs), 'run')} of {most}"
        f"{counted(processes, 'process', 'processes')} on {most}{counted(hosts, 'host')}"
    )


def attention(a: Sequence[Source], b: Sequence[Source]) -> list[str]:
    """Return what speaks against comparing the runs, a sentence each; [] if nothing does."""
    found = [
        f"{side} ({one.name}): {text}"
        for side, runs in zip(SIDES, (a, b), strict=True)
        for one in runs
        for text in _of_run(one)
    ]
    return [*found, *_members(a, b), *_unlike(a, b), *_windows(a, b)]


def noise_text(found: Comparison) -> str:
    """Return how it was judged whether a difference is noise."""
    threshold = f"changes of at least {100 * found.threshold:.4g} % count"
    a, b = map(len, found.sides)
    if not found.is_noise_known:
        return (
            f"not measured (one run a side): {threshold}, noise or not; -a RUN ... -b RUN ... "
            "with several runs a side tell"
        )
    few = ""
    if a + b - 2 < _FREEDOM_FEW:
        few = "; runs are few, so that only large changes can be told from noise"
    return (
        f"measured from {a} + {b} runs: {threshold} that exceed it (false alarms: at most "
        f"{100 * LEVEL:.0f} %, for all comparisons together){few}"
    )


def _of_run(run: Source) -> Iterator[str]:
    """Yield what is wrong with the data of a run."""
    if run.window_ns is not None and not run.duration_ns:
        yield "nothing was recorded in that time"
    tables = Run({"clock_quality": run.read("clock_quality", ["calibrated"], None)})
    yield from ledger.losses(run.book)
    uncertain = column(run.read("barriers", ["uncertain"], None), "uncertain")
    if unsure := int(uncertain.sum()):
        which = f"{count_text(unsure)} of {counted(uncertain.size, 'barrier')}"
        yield f"{which}: clocks do not tell who came first and last, and how far apart"
    said = (one.text for one in facts.verdicts(tables, run.book) if not one.good)
    yield from (text.rstrip(".") for text in said)


def _members(a: Sequence[Source], b: Sequence[Source]) -> Iterator[str]:
    """Yield which processes are not in all runs."""
    own = [[set(process_names(one.processes)) for one in side] for side in (a, b)]
    whole = set().union(*own[0], *own[1])
    for side, runs, members in zip(SIDES, (a, b), own, strict=True):
        for run, there in zip(runs, members, strict=True):
            if missing := sorted(whole - there, key=in_order):
                yield (
                    f"{side} ({run.name}) has {count_text(len(there))} of "
                    f"{counted(len(whole), 'process', 'processes')}; missing: {listed(missing)}"
                )


def _unlike(a: Sequence[Source], b: Sequence[Source]) -> Iterator[str]:
    """Yield in what else the runs differ."""
    for name in ("mode", "layers", "command"):
        first, second = (
            {text for one in side for text in one.processes.column(name).to_pylist()}
            for side in (a, b)
        )
        if first != second:
            texts = (listed([name or "unknown" for name in sorted(one)]) for one in (first, second))
            yield "the {} of processes differs: A {}; B {}".format(name, *texts)
    if len({frozenset(one.processes.column("host").to_pylist()) for one in (*a, *b)}) > 1:
        yield "hosts differ: each is compared with the one that has the same lowest rank"


def _windows(a: Sequence[Source], b: Sequence[Source]) -> Iterator[str]:
    if all(one.window_ns is None for one in (*a, *b)):
        return
    lengths = [[one.duration_ns for one in side] for side in (a, b)]
    if max(map(max, lengths)) > _LENGTHS_ALIKE * min(map(min, lengths)):
        texts = (" / ".join(map(time_text, sorted(set(one)))) for one in lengths)
        yield "time that was looked at differs, and so do all sums: A {}; B {}".format(*texts)
