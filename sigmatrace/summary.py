"""The closing summary: what came out, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sigmatrace import ledger
from sigmatrace.layout import LEDGER, RUN, SUMMARY
from sigmatrace.partition import Run
from sigmatrace.text import count_text, counted, printable
from sigmatrace.window import text_of

SHOWN = 5
"""Ranks that a line names."""
_ADVICE = {
    "layer cuda is not chosen": "--layers gpu chooses both, mlx5dv and cuda",
    "recording is off": "it must be on when the program allocates them",
    "the CUDA driver is not called through the wrappers": "the program must call CUDA before it "
    "allocates them",
}
"""What to do, by the reason why a register was passed through (``native/gpu/uar.c``)."""


def text(
    run: Run,
    book: Mapping[str, Any],
    told: Sequence[str],
    files: Mapping[str, Sequence[Path]],
    hints: Mapping[str, str],
    out: Path,
) -> str:
    """Return the closing summary of a finished run.

    Args:
        run: All tables.
        book: The ledger.
        told: What stages say.
        files: Finished files by exporter.
        hints: How to open them, by exporter.
        out: Folder of the output.
    """
    lines = [*said(run, book, told), f"output     {out}"]
    for name, made in files.items():
        lines += [f"  {path}" for path in made]
        if name in hints:
            lines += [f"    {line}" for line in hints[name].splitlines()]
    lines += [f"  {out / name}" for name in (SUMMARY, LEDGER, RUN)]
    lines += [f"WARNING: the ledger does not balance: {x}" for x in ledger.violated(book)]
    return "\n".join(lines)


def said(run: Run, book: Mapping[str, Any], told: Sequence[str]) -> list[str]:
    """Return what the closing summary says of the run itself; arguments as of ``text``."""
    lines = (
        *_events(run, book),
        *_time(run),
        *_window(run, book),
        *_absent(run, book),
        *_losses(book),
        *_blind(run, book),
        *told,
        *_pairs(book),
    )
    return [printable(line) for line in lines]


def _events(run: Run, book: Mapping[str, Any]) -> Iterator[str]:
    counts = {name: one["read"] + one["read_open"] for name, one in book["records"].items()}
    shown = {"op": "operation", "completion": "completion", "mark": "mark", "target": "target",
             "request": "posted request", "cqe": "polled completion",
             "doorbell": "doorbell", "wqe": "send queue slot", "kernel": "GPU kernel",
             "aggregate": "aggregate row"}  # fmt: skip
    parts = [counted(counts[key], word) for key, word in shown.items() if counts[key]]
    if counts["aggregate"]:
        parts[-1] += f" for {counted(book['capture']['aggregated_operations'], 'operation')}"
    processes = run.tables["processes"]
    hosts = len(set(processes.column("host").to_pylist()))
    yield (
        f"events     {', '.join(parts) or 'none'} of "
        f"{counted(processes.num_rows, 'process', 'processes')} on {counted(hosts, 'host')}"
    )
    if counts["aggregate"] and not counts["op"]:
        yield "matched    nothing: mode aggregate keeps no single messages"


def _time(run: Run) -> Iterator[str]:
    """Say from when to when the run was, as windows of it are written."""
    if "last_ns" in run.facts:
        base_ns = run.fact_ns("base_ns")
        yield f"time       {text_of(base_ns, run.fact_ns('last_ns'), base_ns)}"


def _window(run: Run, book: Mapping[str, Any]) -> Iterator[str]:
    """Say what of the run was not looked at, where a window was asked for."""
    window = book["capture"]["window"]
    if not window:
        return
    records = book["records"].values()
    outside, not_read = (
        sum(one[what] + one[f"{what}_open"] for one in records) for what in ("outside", "not_read")
    )
    shown = text_of(window["begin_ns"], window["end_ns"], run.fact_ns("base_ns"))
    chunks = window["chunks_read"]
    total = counted(chunks + window["chunks_not_read"], "chunk")
    yield (
        f"window     {shown}: {count_text(chunks)} of {total} read, "
        f"{counted(outside, 'record')} of them outside, {count_text(not_read)} not read"
    )
    begin_ns, last_ns = (run.fact_ns(name) for name in ("base_ns", "last_ns"))
    if not chunks and (window["begin_ns"] > last_ns or window["end_ns"] <= begin_ns):
        extent = text_of(begin_ns, last_ns, begin_ns)
        yield f"             nothing lies in it: the run is {extent}, name a window within that"
        return
    yield "             messages whose other end is outside are not seen; that is no loss"


def _absent(run: Run, book: Mapping[str, Any]) -> Iterator[str]:
    """Name ranks of which there is no file: not copied along, or they used no traced library."""
    processes = run.tables["processes"]
    ranks, worlds = (set(processes.column(name).to_pylist()) for name in ("rank", "world"))
    if len(worlds) != 1 or (world := worlds.pop()) < 1:
        return
    absent = sorted(set(range(world)) - ranks)
    if absent:
        few = ", ".join(map(str, absent[:SHOWN])) + (", ..." if len(absent) > SHOWN else "")
        there = count_text(world - len(absent))
        none = "none that could be read" if book["capture"]["unreadable_files"] else "none"
        yield f"ranks      {there} of {count_text(world)} have a file; rank {few} has {none}"


def _blind(run: Run, book: Mapping[str, Any]) -> Iterator[str]:
    """Say what of GPUs could not be watched, why, and what to do about it."""
    uars, processes = run.tables["uars"].num_rows, run.tables["processes"].num_rows
    reasons = Counter(filter(None, run.tables["uars"].column("passed_through").to_pylist()))
    for reason, count in reasons.items():
        advice = f" ({_ADVICE[reason]})" if reason in _ADVICE else ""
        yield (
            f"registers  {count_text(count)} of {count_text(uars)} not watched, their doorbells "
            f"are not in the trace: {reason}{advice}"
        )
    ways = Counter(filter(None, run.tables["uars"].column("exposed").to_pylist()))
    for way, count in ways.items():
        yield (
            f"registers  {count_text(count)} of {count_text(uars)} with another way to them, whose "
            f"doorbells are not seen: {way}"
        )
    kernels = run.tables["kernels_not_recorded"]
    for reason, count in Counter(kernels.column("reason").to_pylist()).items():
        which = f"{count_text(count)} of {counted(processes, 'process', 'processes')}"
        yield f"kernels    not recorded in {which}: {reason}"
    records = {name: one["read"] + one["read_open"] for name, one in book["records"].items()}
    whole = records["doorbell"] and not book["capture"]["window"]
    if whole and not records["kernel"] and not kernels.num_rows:
        yield "kernels    none recorded: one that has not ended when its process ends is not seen"


def _pairs(book: Mapping[str, Any]) -> Iterator[str]:
    """Say what the exchange ``messages`` found that cannot be: it has no lines of its own."""
    found = book["stages"].get("messages", {})
    for key, what in (
        ("sizes_differ", "of another size at the other end"),
        ("received_before_sent", "received before they were sent: clocks disagree"),
    ):
        if found.get(key):
            which = f"{count_text(found[key])} of {counted(found['messages'], 'message')}"
            yield f"pairs      {which} {what}"


def _losses(book: Mapping[str, Any]) -> Iterator[str]:
    found = ledger.losses(book)
    yield f"lost       {'; '.join(found) if found else 'nothing'}"
    if ledger.is_torn(book):
        yield "             unmatched messages and peers not traced below may come from that"
    if ledger.lacks(book, ("request", "cqe")):
        yield "             requests below are counted as far as the records that are left tell"
    recovered = [
        f"{count_text(count)} {name} records"
        for name, one in book["records"].items()
        if (count := one["recovered"] + one["recovered_open"])
    ]
    if recovered:
        yield f"recovered  {', '.join(recovered)} from ring files"
