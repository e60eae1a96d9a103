"""The columns in ns that stage clock adds to events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sigmatrace.errors import PipelineError
from sigmatrace.partition import Partition, Run, arrow_type, column
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.text import counted

SPAN_MAX_NS = 2.0**61
"""Durations are held within this, so that nonsense cannot overflow."""
NEVER_NS = -(2**63)
"""Stands for a time that is not known."""
_TIMED = ("ops", "completions", "marks", "requests", "cqes", "doorbells", "wqes", "kernels")
_SPANS = (("doorbells", "delay_tsc", "delay_ns"), ("kernels", "duration_tsc", "duration_ns"))


def _no_hosts() -> pa.Table:
    """Return the table ``clock_hosts`` without rows."""
    kinds = STAGE_TABLES["clock_hosts"].items()
    return pa.schema([(name, arrow_type(dtype)) for name, dtype in kinds]).empty_table()


@dataclass(frozen=True)
class Clocks:
    """The maps of a run, flat, as the kernel takes them, and their quality.

    Attributes:
        map_of_proc: ``(processes,)`` i4.
        begin: ``(maps + 1,)`` i8, first knot of each map.
        ref_tsc: ``(maps,)`` u8.
        knot_x: ``(knots,)`` i8, ticks.
        knot_y: ``(knots,)`` i8, Unix ns.
        slope: ``(knots,)`` f8, ns per tick.
        is_sure: ``(maps,)`` bool, whether the rates of each map are certain.
        ns_per_tick: ``(processes,)`` f8.
        untimed: ``(channels + 1,)`` bool, operations do not tell how long the call took; the last
            one stands for channels that are not known.
        names: By map, of its host, and of a process where a host has several maps.
        span_ns: ``(processes, 2)`` i8, Unix ns at which each began and ended to record, as far as
            its last event; ``NEVER_NS`` where that is not known.
        quality: Table ``clock_quality``.
        chunks: Table ``chunk_times``.
        facts: ``base_ns``, ``last_ns``.
        ledger: What ``account`` returns.
        is_cut: Only a window of the run is read.
        hosts: Table ``clock_hosts``; without rows unless messages were to correct the clocks.
    """

    map_of_proc: np.ndarray
    begin: np.ndarray
    ref_tsc: np.ndarray
    knot_x: np.ndarray
    knot_y: np.ndarray
    slope: np.ndarray
    is_sure: np.ndarray
    ns_per_tick: np.ndarray
    untimed: np.ndarray
    names: tuple[str, ...]
    span_ns: np.ndarray
    quality: pa.Table
    chunks: pa.Table
    facts: Mapping[str, object]
    ledger: Mapping[str, Any]
    is_cut: bool = False
    hosts: pa.Table = field(default_factory=_no_hosts)


def _facts(span_ns: np.ndarray) -> dict[str, object]:
    """Return ``base_ns`` and ``last_ns`` of ``Clocks.span_ns``."""
    known = span_ns[span_ns[:, 0] != NEVER_NS]
    if not known.size:
        return {"base_ns": 0, "last_ns": 0}
    return {"base_ns": int(known[:, 0].min()), "last_ns": int(known[:, 1].max())}


def add_times(part: Partition, clocks: Clocks) -> Partition:
    """Add ``t_ns`` to all tables of events, and what else they tell in ticks, if it is read.

    Raises:
        PipelineError: A row names a process that is not in the table ``processes``.
    """
    for table in _TIMED:
        if _is_wanted(part, table, "t_ns"):
            part = part.with_columns(table, {"t_ns": _convert(part, table, "t_tsc", clocks)})
    if _is_wanted(part, "cqes", "posted_ns"):
        posted_ns = _convert(part, "cqes", "posted_tsc", clocks)
        posted_ns[part.column("cqes", "posted_tsc") == 0] = 0
        part = part.with_columns("cqes", {"posted_ns": posted_ns})
    for table, ticks, column_ns in _SPANS:
        if _is_wanted(part, table, column_ns):
            part = part.with_columns(table, {column_ns: _span(part, table, ticks, clocks)})
    if _is_wanted(part, "ops", "call_ns"):
        part = part.with_columns("ops", {"call_ns": _calls(part, clocks)})
    return part


def _is_wanted(part: Partition, table: str, name: str) -> bool:
    """Return whether a column is read, and has rows."""
    return part.is_read(table, name) and part.tables[table].num_rows > 0


def _calls(part: Partition, clocks: Clocks) -> np.ndarray:
    """Return how long the call of each operation took."""
    from sigmatrace.stages.kernels.clock import call_kernel

    call_ns = np.empty(part.tables["ops"].num_rows, np.int64)
    columns = [part.column("ops", name) for name in ("op", "aux", "proc")]
    call_kernel(*columns, clocks.ns_per_tick, call_ns)
    if clocks.untimed.any():
        channel = np.minimum(part.column("ops", "channel"), clocks.untimed.size - 1)
        call_ns[clocks.untimed[channel]] = 0
    return call_ns


def _span(part: Partition, table: str, name: str, clocks: Clocks) -> np.ndarray:
    """Return a column of ticks in ns; 2^53 ticks, 26 days at 4 GHz, are exact to 1 ns."""
    ticks = part.column(table, name).astype(np.float64)
    ns = np.rint(ticks * clocks.ns_per_tick[part.column(table, "proc")])
    held: np.ndarray = np.minimum(ns, SPAN_MAX_NS).astype(np.int64)
    return held


def with_chunks(clocks: Clocks, run: Run, placed: np.ndarray) -> Clocks:
    """Return the clocks with the times of the run's chunks, and ``span_ns`` and ``facts`` by them.

    A process that was killed, or still runs, has events after the last reading of its clock.

    Args:
        clocks: Their ``span_ns`` is what readings of the clocks tell.
        run: The index.
        placed: ``(processes,)`` bool, whose events have their place among those of others. When a
            process that is not calibrated began a clock told that its events are not on: of these
            their chunks alone tell.
    """
    table = run.tables["chunks"].select(["proc", "schema", "count"])
    for name in ("first", "last"):
        columns = (run.column("chunks", key) for key in (f"{name}_tsc", "proc"))
        table = table.append_column(f"{name}_ns", pa.array(unix_ns(clocks, *columns)[0]))
    span_ns = _reaching(clocks, table, placed)
    return replace(clocks, chunks=table, span_ns=span_ns, facts=_facts(span_ns))


def _reaching(clocks: Clocks, chunks: pa.Table, placed: np.ndarray) -> np.ndarray:
    """Return ``Clocks.span_ns`` that reaches from the first event to the last one."""
    owner, first_ns, last_ns = (column(chunks, name) for name in ("proc", "first_ns", "last_ns"))
    told = (column(chunks, "count") > 0) & placed[owner]
    owner, first_ns, last_ns = owner[told], first_ns[told], last_ns[told]
    begin, end = clocks.span_ns.T.copy()
    loose = ~column(clocks.quality, "calibrated") | (begin == NEVER_NS)
    anew = owner[loose[owner]]
    begin[anew], end[anew] = 2**63 - 1, NEVER_NS
    np.minimum.at(begin, owner, first_ns)
    np.maximum.at(end, owner, last_ns)
    return np.stack([begin, end], axis=1)


def ticks_at(clocks: Clocks, t_ns: int) -> np.ndarray:
    """Return by process the first TSC ``(processes,)`` u8 whose time is not before ``t_ns``.

    Found by bisection of the same map that gives events their times, so that a comparison of ticks
    is one of times, to the tick. A map does not run backwards; beyond the range of a TSC it is the
    first or the last one.
    """
    proc = np.arange(clocks.map_of_proc.size, dtype=np.int32)
    center: np.ndarray = clocks.ref_tsc[clocks.map_of_proc]
    # The map counts ticks from a reference, modulo 2^64: half of them are before it.
    half = np.uint64(2**63 - 1)
    low: np.ndarray = center - np.minimum(center, half)
    high = center + np.minimum(np.uint64(2**64 - 1) - center, half)
    while (low < high).any():
        middle = low + (high - low) // np.uint64(2)
        before = unix_ns(clocks, middle, proc)[0] < t_ns
        low = np.where(before & (low < high), middle + np.uint64(1), low)
        high = np.where(before, high, middle)
    return low


def unix_ns(clocks: Clocks, t_tsc: np.ndarray, proc: np.ndarray) -> tuple[np.ndarray, int]:
    """Return Unix ns i8[n] of TSC readings, and how many are of a process that does not exist."""
    from sigmatrace.stages.kernels.clock import convert_kernel

    out_ns = np.empty(t_tsc.size, np.int64)
    maps = (clocks.map_of_proc, clocks.begin, clocks.ref_tsc)
    knots = (clocks.knot_x, clocks.knot_y, clocks.slope)
    return out_ns, convert_kernel(t_tsc, proc, *maps, *knots, out_ns)


def _convert(part: Partition, table: str, name: str, clocks: Clocks) -> np.ndarray:
    t_tsc, proc = part.column(table, name), part.column(table, "proc")
    out_ns, unknown = unix_ns(clocks, t_tsc, proc)
    if unknown:
        rows = counted(unknown, "row names", "rows name")
        raise PipelineError(
            f"stage clock: column {table}.proc: {rows} a process that is not in the table processes"
        )
    return out_ns
