"""What ran, how good the data is, and what was found, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sigmatrace.clock_doubts import untimed_pairs, untimed_text
from sigmatrace.export.report.flows import in_order
from sigmatrace.partition import Run
from sigmatrace.text import count_text, counted, listed, printable, time_text
from sigmatrace.window import text_of

NAMED = 8
"""Hosts and commands that a line names."""
_RAN = ("events", "time", "window")
_FOUND = (
    "top", "imbalance", "latency", "waits", "barriers", "path", "errors", "doorbells",
)  # fmt: skip
"""First words of lines of the summary; all others are about the quality of the data."""
_FINDING = "finding"
"""Of lines that tell findings: those are told in full, from their table."""
_WIDTH = 11
"""Columns of the first word."""


@dataclass(frozen=True)
class Line:
    """A term and what is said of it, in one or several lines."""

    term: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Told:
    """The lines of the closing summary, by what they are about."""

    ran: Sequence[Line]
    quality: Sequence[Line]
    found: Sequence[Line]


def told(said: Sequence[str]) -> Told:
    """Sort the lines of the closing summary."""
    lines: list[Line] = []
    for line in said:
        if line.startswith(" ") and lines:  # goes on with the line above
            lines[-1] = Line(lines[-1].term, (*lines[-1].texts, " ".join(line.split())))
        else:
            lines.append(Line(line[:_WIDTH].strip(), (line[_WIDTH:].strip(),)))
    kinds: dict[str, list[Line]] = {"ran": [], "quality": [], "found": []}
    for one in lines:
        if one.term == _FINDING:
            continue
        first = one.term if one.term in (*_RAN, *_FOUND) else one.term.partition(" ")[0]
        kinds["ran" if first in _RAN else "found" if first in _FOUND else "quality"].append(one)
    return Told(**kinds)


def ran(run: Run, said: Sequence[Line]) -> list[Line]:
    """Return what ran: commands, processes, hosts, layers, mode, time, window."""
    processes = run.tables["processes"]
    columns = {
        name: processes.column(name).to_pylist()
        for name in ("command", "host", "layers", "mode", "rank", "run_id")
    }
    hosts = sorted({*columns["host"]}, key=in_order)
    ranks = len({rank for rank in columns["rank"] if rank >= 0})
    known = f"of {counted(ranks, 'known rank')}" if ranks else "none with a known rank"
    layers = Counter(layer for one in columns["layers"] for layer in one.split(",") if layer)
    found = [
        Line("command", _several(Counter(columns["command"]))),
        Line("run", _several(Counter(columns["run_id"]))),
        Line("processes", (f"{counted(processes.num_rows, 'process', 'processes')}, {known}",)),
        Line("hosts", (f"{count_text(len(hosts))}: {listed(hosts, NAMED)}",)),
        Line("layers", (", ".join(layers) or "none",)),
        Line("mode", _several(Counter(columns["mode"]))),
    ]  # fmt: skip
    found += _start(run)
    return [*found, *(one for one in said if one.term != "window"), _window(run, said)]


def title(run: Run) -> str:
    """Return what tells the report from others: the run's folder, its processes, its window."""
    processes = counted(run.tables["processes"].num_rows, "process", "processes")
    window = "" if run.window_ns is None else text_of(*run.window_ns, run.fact_ns("base_ns"))
    return ", ".join(filter(None, (printable(str(run.facts["folder"])), processes, window)))


def _start(run: Run) -> Iterator[Line]:
    """Say when what was looked at began, and how long it lasted."""
    if "last_ns" not in run.facts or not (base_ns := run.fact_ns("base_ns")):
        return
    begin_ns, end_ns = run.extent_ns
    if end_ns < begin_ns:  # the window lies outside of the run
        return
    start = datetime.fromtimestamp(begin_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    after = f" ({time_text(begin_ns - base_ns)} after the run's)" if begin_ns > base_ns else ""
    yield Line("start", (f"{start}{after}, for {time_text(end_ns - begin_ns)}",))


def _window(run: Run, said: Sequence[Line]) -> Line:
    for one in said:
        if one.term == "window":
            return one
    if run.window_ns is not None:
        return Line("window", (text_of(*run.window_ns, run.fact_ns("base_ns")),))
    return Line("window", ("the whole run",))


def _several(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return words that occur, most frequent first, with how often if there are several."""
    heavy = sorted(counts.items(), key=lambda one: -one[1])
    if len(heavy) == 1:
        return (heavy[0][0] or "unknown",)
    few = [f"{word or 'unknown'} ({count_text(count)} x)" for word, count in heavy[:NAMED]]
    return (*few, f"and {count_text(len(heavy) - NAMED)} more") if len(heavy) > NAMED else (*few,)


@dataclass(frozen=True)
class Verdict:
    """A sentence on the quality of the data, and whether it is a good one."""

    good: bool
    text: str


def verdicts(run: Run, book: Mapping[str, Any]) -> list[Verdict]:
    """Return whether anything is lost, numbers add up, messages are matched, clocks can be used.

    Args:
        run: All tables.
        book: The ledger, but for the exporters' part.
    """
    wrong = [one["name"] for one in book["balance"] if not one["ok"]]
    count = len(book["balance"])
    found = [
        Verdict(True, "Nothing was lost at capture.")
        if book["lossless"]
        else Verdict(False, "Some of what happened is not in the data: see what was lost."),
        Verdict(False, f"{len(wrong)} of {count} equations of the ledger do not hold: {wrong[0]}")
        if wrong
        else Verdict(True, f"All {count} equations of the ledger hold: numbers that were counted "
                           "in different places agree."),
    ]  # fmt: skip
    found += [*_matched(book), *_clocks(run, book)]
    return sorted(found, key=lambda one: one.good)


def _matched(book: Mapping[str, Any]) -> Iterator[Verdict]:
    own = book["stages"].get("match", {}).get("own", {})
    ends = sum(own.get(what, 0) for what in ("sends", "receives"))
    lacking = ends - sum(own.get(f"{what}_matched", 0) for what in ("sends", "receives"))
    cut = _cut_off(own) if book["capture"]["window"] else 0
    total = counted(ends, "send or receive", "sends and receives")
    if lacking > cut:
        which = f"{count_text(lacking - cut)} of {total}"
        yield Verdict(False, f"{which} not matched: their other end is not in the data.")
    elif ends and not cut:
        yield Verdict(True, "Every send has its receive, and every receive its send.")
    if cut:
        which = f"{count_text(cut)} of {total}"
        yield Verdict(True, f"{which} not matched, as the window may have cut off their other "
                            "end: that is no loss.")  # fmt: skip


def _cut_off(own: Mapping[str, Any]) -> int:
    """Return how many ends lack the other one for no reason that a window would not explain."""
    return sum(
        own.get(f"{what}s_unmatched", {}).get(f"not_seen_{other}", 0)
        for what, other in (("send", "received"), ("receive", "sent"))
    )


def _clocks(run: Run, book: Mapping[str, Any]) -> Iterator[Verdict]:
    calibrated = run.tables["clock_quality"].column("calibrated").to_pylist()
    lacking = calibrated.count(False)
    if lacking:
        which = f"{count_text(lacking)} of {counted(len(calibrated), 'clock')}"
        yield Verdict(False, f"{which} not calibrated: times between processes are doubtful.")
    if untied := _untied(run):
        which = f"{counted(len(untied), 'clock')} without a bound ({listed(untied, NAMED)})"
        yield Verdict(False, f"{which}: messages do not tell how far off the reference, "
                             "so times between hosts are doubtful.")  # fmt: skip
    of_messages = book["stages"].get("clock", {}).get("messages", {})
    if unchecked := of_messages.get("not_checked", {}).get("count", 0):
        which = counted(unchecked, "clock")
        yield Verdict(False, f"{which} not compared with those of other hosts: times "
                             "between hosts are as exact as their wall clocks.")  # fmt: skip
    if backwards := book["stages"].get("messages", {}).get("received_before_sent"):
        which = counted(backwards, "message")
        yield Verdict(False, f"{which} received before they were sent: clocks disagree.")
    if "message_latency" in run.tables and (untimed := untimed_pairs(run)).any():
        text = untimed_text(run, untimed)
        yield Verdict(False, f"{text[0].upper()}{text[1:]}.")


def _untied(run: Run) -> list[str]:
    """Return the clocks that were to be corrected by messages, and could not be tied to others."""
    if "clock_hosts" not in run.tables:
        return []
    table = run.tables["clock_hosts"].select(["host", "tied"]).to_pylist()
    return [row["host"] for row in table if not row["tied"]]


@dataclass(frozen=True)
class Finding:
    """A finding.

    Attributes:
        share: Of time, messages or bytes that it concerns, as text; "" if that is not known.
        kind: As in the table.
        text: What was found.
        table: Where the evidence is; "" if that is no table.
        rows: Which rows of it, or all of the evidence.
    """

    share: str
    kind: str
    text: str
    table: str
    rows: str


def findings(run: Run) -> list[Finding] | None:
    """Return the findings, heaviest first; None if nobody looked for any."""
    if "findings" not in run.tables:
        return None
    rows = run.tables["findings"].to_pylist()
    rows.sort(key=lambda row: (-row["weight"], row["position"]))
    return [_finding(run, row) for row in rows]


def _finding(run: Run, row: Mapping[str, Any]) -> Finding:
    first, _, rest = row["evidence"].partition(" ")
    table, rows = (first, rest) if first in run.tables else ("", row["evidence"])
    share = "" if row["share"] is None else f"{row['share']:.0%}"
    return Finding(share, row["kind"], row["text"], table, rows)
