"""Tables of the report: the rows that matter most, as text that can be sorted and filtered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sigmatrace.export import tables
from sigmatrace.export.report.flows import LEVELS
from sigmatrace.participants import member_words
from sigmatrace.partition import Run
from sigmatrace.text import byte_text, count_text, counted, time_text


@dataclass(frozen=True)
class Spec:
    """Which rows of a table are shown.

    Attributes:
        name: Of the table.
        title: What it has; ``{}`` is what a member is called, of the level that counts.
        order: The column by which the largest come first; "" as they are.
        columns: Those shown; none named: all but numbers of processes that have a label.
        only: Column and value of the rows that count.
    """

    name: str
    title: str
    order: str = ""
    columns: tuple[str, ...] = ()
    only: tuple[str, str] | None = None


_COMMUNICATION = ("layer", "src", "dst", "operations", "size_bytes", "mean_bytes", "size_unknown")
SPECS = (
    *(
        Spec("communication", "Communication by {}", "size_bytes", _COMMUNICATION, ("level", of))
        for of in LEVELS
    ),
    Spec("imbalance", "Imbalance"),
    Spec("links", "Links between processes, longest idle first", "longest_idle_ns"),
    Spec("message_latency", "Latency of messages", "p99_ns"),
    Spec("waits", "Waits for a late sender or receiver", "late_sender_ns"),
    Spec("in_flight", "Messages in flight", "max"),
    Spec("barriers", "Barriers, widest first", "spread_ns"),
    Spec("stragglers", "Stragglers", "caused_ns"),
    Spec("critical_path", "Critical path"),
    Spec("errors", "Errors", "count"),
    Spec("queues", "Queues of queue pairs", "outstanding"),
    Spec("latencies", "From post to completion", "max_ns"),
    Spec("doorbell_batches", "Requests at a doorbell"),
    Spec("wire_flows", "Compared with the packet capture"),
)
"""The tables of the analyses, in the order of the report."""
QUALITY = (
    Spec("clock_hosts", "Clocks of hosts", "bound_ns"),
    Spec("clock_quality", "Clocks of processes, least certain first", "error_ns"),
    Spec("damage", "Damage of files", "size_bytes"),
)
PROCESSES = Spec(
    "processes",
    "Processes",
    columns=("label", "host", "pid", "mode", "layers", "end", "absent", "lost", "command"),
)
_MOMENTS = ("first_ns", "last_ns", "begin_ns", "end_ns", "arrival_ns")
"""Columns that are points in time, and not lengths."""
_TITLES = {
    "src": "from",
    "dst": "to",
    "label": "process",
    "size_bytes": "bytes",
    "mean_bytes": "mean size",
}
_UNIX = "offset_ns"
_CODES = ("object", "gpu", "qpn", "barrier", "step", "position")
"""Columns of numbers that count nothing."""


@dataclass(frozen=True)
class Cell:
    """A cell: what it shows, and the number by which it is sorted, where it is one."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class Shown:
    """A table as it is shown.

    Attributes:
        name: As in the schema.
        anchor: Its id in the page.
        title: Its heading.
        head: Names of columns.
        rows: Cells of each row.
        more: What is not shown, and where it is; "" if all is.
    """

    name: str
    anchor: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    more: str


def shown(run: Run, specs: Sequence[Spec], rows_max: int) -> Iterator[Shown]:
    """Yield the tables that have rows.

    Args:
        run: All tables.
        specs: Which ones.
        rows_max: How many rows of each.
    """
    for spec in specs:
        if spec.name in run.tables and (found := _chosen(run.tables[spec.name], spec)).num_rows:
            yield _shown(run, spec, found, rows_max)


def _chosen(table: pa.Table, spec: Spec) -> pa.Table:
    if spec.only is None:
        return table
    return table.filter(pc.equal(table.column(spec.only[0]), spec.only[1]))


def _shown(run: Run, spec: Spec, table: pa.Table, rows_max: int) -> Shown:
    total = table.num_rows
    if spec.order:
        table = table.take(_heaviest(table, spec.order, rows_max))
    table = table.slice(0, rows_max)
    named = tables.named(Run({**run.tables, spec.name: table}, run.facts), spec.name)
    columns = spec.columns or _readable(named.column_names)
    base_ns = run.fact_ns("base_ns") if "base_ns" in run.facts else 0
    cells = [
        [_cell(name, value, base_ns) for value in named.column(name).to_pylist()]
        for name in columns
    ]
    anchor = f"table-{spec.name}" + (f"-{spec.only[1]}" if spec.only else "")
    more = ""
    if total > rows_max:
        by = f", those with most {_title(spec.order)}" if spec.order else ""
        more = (
            f"{count_text(rows_max)} of {counted(total, 'row')}{by}. All are in "
            f"csv/{spec.name}.csv of export=csv and in parquet/{spec.name}.parquet of "
            "export=parquet."
        )
    rows = list(zip(*cells, strict=True))
    title = spec.title.format(member_words(run, spec.only[1])[0]) if spec.only else spec.title
    return Shown(spec.name, anchor, title, _titles(columns), rows, more)


def _heaviest(table: pa.Table, order: str, count: int) -> np.ndarray:
    """Return the rows with the largest values, in that order; equal ones as they were."""
    values = table.column(order).to_numpy()
    values = np.nan_to_num(values.astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    return np.argsort(-values, kind="stable")[:count]


def _readable(names: Sequence[str]) -> list[str]:
    """Return columns in the order of reading: who, then what; no numbers of processes."""
    who = [name for name in ("label", "src", "dst", "peer") if name in names]
    rest = [name for name in names if name not in who]
    hidden = {"proc", "src_proc", "dst_proc", "peer_proc", "group"} if who else set()
    return [*who, *(name for name in rest if name not in hidden)]


def _titles(names: Sequence[str]) -> list[str]:
    """Return headings; where two would be alike, with what tells them apart."""
    found = [_title(name) for name in names]
    units = {"_ns": " time", "_bytes": " bytes"}
    for at, name in enumerate(names):
        unit = next((units[end] for end in units if name.endswith(end)), "")
        if [_title(other) for other in names].count(found[at]) > 1:
            found[at] += unit
    return found


def _title(name: str) -> str:
    if name in _TITLES:
        return _TITLES[name]
    return name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")


def _cell(name: str, value: Any, base_ns: int) -> Cell:
    """Return a value with its unit."""
    if value is None or value == "":
        return Cell("unknown" if name in ("src", "dst", "peer", "label") else "")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, str):
        return Cell(value)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return Cell("unknown", "-1e400")
        word = "no bound" if name.endswith("_ns") else "infinite"
        return Cell(word if value > 0 else f"-{word}", f"{math.copysign(1, value):.0f}e400")
    if name in _MOMENTS:
        return Cell(f"{(value - base_ns) / 1e9:.6f} s", str(value - base_ns))
    if name.endswith("_bytes"):
        return Cell(byte_text(value), str(value))
    if name.endswith("_ns"):
        return Cell(time_text(value), str(value))
    if isinstance(value, float):
        return Cell(f"{value:.4g}", str(value))
    return Cell(str(value) if name in _CODES else count_text(value), str(value))
