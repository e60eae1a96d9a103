"""Calibration: time stamp counters of processes to their hosts' clocks.

Processes of one host (same ``boot_id``) read one TSC, and their pairs of one clock source are
fitted together: that gives more pairs to judge each other by, a short-lived process gets its
host's rate, and two processes of a host are never put in a wrong order by two fits. A process
whose own pairs contradict the joint fit is fitted alone, and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.clock_columns import NEVER_NS, Clocks, with_chunks
from sigmatrace.stages.clock_fit import HZ_RANGE, SLACK_NS, Fit, fit, narrow, possible, single
from sigmatrace.table_order import in_order
from sigmatrace.trace_format import QUEUE_PAIR_LAYERS

NAMED = 20
"""At most this many processes are named in the ledger; the count is complete."""


@dataclass(eq=False)
class _Process:
    """What is known of one process's clock."""

    label: str
    host: str
    boot_id: str
    start_ns: int
    hz: float
    tsc: np.ndarray
    wall_ns: np.ndarray
    width: np.ndarray
    source: str
    fit: Fit | None = None
    bad: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    how: str = "host"


def calibrated(run: Run) -> Clocks:
    """Return the clocks of a run as its index has them: those of hosts as they are."""
    processes = _processes(run)
    for members in _hosts(processes):
        _fit_host(members)
    good = np.array([process.fit is not None for process in processes], bool)
    # How far events of the others are from those of these ones nobody knows.
    placed = good | ~good.any()
    clocks = with_chunks(_flatten(processes, _untimed(run)), run, placed)
    return replace(clocks, is_cut=run.window_ns is not None)


def _processes(run: Run) -> list[_Process]:
    """Return the processes by number, each with its pairs in order of the TSC."""
    rows = run.tables["processes"].to_pydict()
    size = max(rows["proc"], default=-1) + 1
    clocks = in_order(run.tables["clocks"], ["proc", "tsc"])
    proc, tsc = clocks.column("proc").to_numpy(), clocks.column("tsc").to_numpy()
    wall, width = clocks.column("wall_ns").to_numpy(), clocks.column("width_tsc").to_numpy()
    begin = np.searchsorted(proc, np.arange(size + 1))
    sources = clocks.column("source")
    place = {number: row for row, number in enumerate(rows["proc"])}
    processes = []
    for number in range(size):
        row, own = place[number], slice(begin[number], begin[number + 1])
        hz = float(rows["tsc_hz"][row])
        processes.append(
            _Process(
                label=rows["label"][row],
                host=rows["host"][row],
                boot_id=rows["boot_id"][row],
                start_ns=rows["start_ns"][row],
                hz=hz if HZ_RANGE[0] <= hz <= HZ_RANGE[1] else 0.0,
                tsc=tsc[own],
                wall_ns=wall[own],
                width=width[own],
                source=sources[own.start].as_py() if own.start < own.stop else "",
            )
        )
    return processes


def _hosts(processes: Sequence[_Process]) -> list[list[_Process]]:
    """Group processes that share one TSC and one clock source; without pairs: any source."""
    groups: dict[tuple[object, ...], list[_Process]] = {}
    orphans = []
    for number, process in enumerate(processes):
        boot = process.boot_id or f"process {number}"
        if process.tsc.size:
            groups.setdefault((boot, process.source), []).append(process)
        else:
            orphans.append((boot, process))
    first = {key[0]: group for key, group in reversed(list(groups.items()))}
    for boot, process in orphans:
        if boot not in first:
            first[boot] = groups[boot, ""] = []
        first[boot].append(process)
    return list(groups.values())


def _fit_host(members: list[_Process], how: str = "host") -> None:
    """Set ``fit``, ``bad`` and ``how`` of the processes that share one TSC.

    A step of the wall clock is one that some process lived through. Where none did, the
    processes on both sides are fitted apart: their counters need not be the same one.
    """
    rates = [process.hz for process in members if process.hz]
    hz = float(np.median(rates)) if rates else 0.0
    joint = fit(
        np.concatenate([process.tsc for process in members]),
        np.concatenate([process.wall_ns for process in members]),
        np.concatenate([process.width for process in members]),
        hz,
    )
    apart = _apart(members, joint) if joint is not None and joint.steps else set()
    if apart:
        _fit_host([process for process in members if process not in apart], how)
        _fit_host([process for process in members if process in apart], "alone")
        return
    wide = _wide(members, hz)
    for process in members:
        process.fit, process.how = joint, how if joint else "none"
        process.bad = _bad(process, wide)
        if process.tsc.size > 1 and process.bad.all():
            alone = fit(process.tsc, process.wall_ns, process.width, process.hz or hz)
            if alone is not None:
                process.fit, process.how = alone, "alone"
                process.bad = _bad(process, wide)


def _apart(members: list[_Process], joint: Fit) -> set[_Process]:
    """Return the processes off the longest part of a fit, unless a process saw a step."""
    apart = set()
    for process in members:
        if process.tsc.size == 0:
            continue
        off = np.abs(process.wall_ns - joint.at(process.tsc))
        inside = off <= process.width.astype(np.float64) / 2 * joint.rate + SLACK_NS
        known = np.abs(joint.residual_ns(process.tsc, process.wall_ns)) < off
        if inside.any() and (known & ~inside).any():
            return set()
        if not inside.any():
            apart.add(process)
    return apart if len(apart) < len(members) else set()


def _wide(members: list[_Process], hz: float) -> float:
    """Return the width in ticks above which a pair of these processes counts as bad."""
    width = np.concatenate([process.width for process in members])
    kept = width[narrow(width, hz)]
    return float(kept.max()) if kept.size else 0.0


def _bad(process: _Process, wide: float) -> np.ndarray:
    """Return which pairs of a process are wide, impossible or off the fit."""
    if process.fit is None:
        return np.ones(process.tsc.size, bool)
    off = np.abs(process.fit.residual_ns(process.tsc, process.wall_ns))
    allowed = process.width.astype(np.float64) / 2 * process.fit.rate + SLACK_NS
    usable = possible(process.tsc, process.wall_ns, process.width) & (process.width <= wide)
    return ~usable | (off > allowed)


def _untimed(run: Run) -> np.ndarray:
    """Return whose ``aux`` is no time: that of queue pairs is a position (docs/format.md 2.1)."""
    return np.append(np.isin(run.column("channels", "layer"), QUEUE_PAIR_LAYERS), False)


def _flatten(processes: list[_Process], untimed: np.ndarray) -> Clocks:
    maps: dict[int, int] = {}
    fits: list[Fit] = []
    numbers = []
    for process in processes:
        used = process.fit or single(0, process.start_ns, 1e9 / (process.hz or 1e9))
        if process.fit is None or id(used) not in maps:
            maps[id(used)] = len(fits)
            fits.append(used)
        numbers.append(maps[id(used)])
    sizes = np.array([one.x.size for one in fits], np.int64)
    empty = [np.zeros(0, np.int64)]
    return Clocks(
        map_of_proc=np.array(numbers, np.int32),
        begin=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        ref_tsc=np.array([one.ref_tsc for one in fits], np.uint64),
        knot_x=np.concatenate([one.x for one in fits] or empty).astype(np.int64),
        knot_y=np.concatenate([one.y for one in fits] or empty).astype(np.int64),
        slope=np.concatenate([one.slope for one in fits] or empty).astype(np.float64),
        is_sure=np.array([one.is_sure for one in fits], bool),
        ns_per_tick=np.array([fits[number].rate for number in numbers], np.float64),
        untimed=untimed,
        names=_names(processes, numbers),
        span_ns=_spans(processes),
        quality=_quality(processes),
        chunks=pa.table({}),
        facts={},
        ledger=_ledger(processes),
    )


def _quality(processes: list[_Process]) -> pa.Table:
    rows: dict[str, list[Any]] = {name: [] for name in STAGE_TABLES["clock_quality"]}
    for number, process in enumerate(processes):
        one = process.fit
        rows["proc"].append(number)
        rows["pairs"].append(int(process.tsc.size))
        rows["bad_pairs"].append(int(process.bad.sum()))
        rows["offset_ns"].append(_zero_ns(one) if one else process.start_ns)
        drift = (one.rate * process.hz / 1e9 - 1) * 1e6 if one and process.hz else 0.0
        rows["drift_ppm"].append(drift)
        rows["error_ns"].append(_error_ns(process))
        rows["calibrated"].append(one is not None)
    types = [pa.int32(), pa.int32(), pa.int32(), pa.int64(), pa.float64(), pa.float64(), pa.bool_()]
    return pa.table(rows, schema=pa.schema(list(zip(rows, types, strict=True))))


def _zero_ns(one: Fit) -> int:
    """Return the Unix ns at which the TSC read 0, by the overall rate (about the boot)."""
    ns = int(one.y[0]) - round((one.ref_tsc + int(one.x[0])) * one.rate)
    return min(max(ns, -(2**63)), 2**63 - 1)


def _error_ns(process: _Process) -> float:
    """Return the larger of half the worst width used and the worst good pair's distance."""
    if process.fit is None:
        return float("inf")
    off = np.abs(process.fit.residual_ns(process.tsc, process.wall_ns))[~process.bad]
    return max(process.fit.error_ns, float(off.max(initial=0)))


def _spans(processes: list[_Process]) -> np.ndarray:
    """Return by process when it began and ended to record, ``(processes, 2)`` i8 Unix ns."""
    spans = np.full((len(processes), 2), NEVER_NS)
    for process, span in zip(processes, spans, strict=True):
        good = process.tsc[~process.bad]
        if process.fit is not None and good.size:
            seen = process.fit.at(good)
            began = process.start_ns + int(seen[0]) - int(process.wall_ns[~process.bad][0])
            span[:] = (
                min(int(seen.min()), began if process.start_ns > 0 else int(seen[0])),
                seen.max(),
            )
        elif process.start_ns > 0:
            span[:] = process.start_ns
    return spans


def _names(processes: list[_Process], maps: Sequence[int]) -> tuple[str, ...]:
    """Return a name by map: that of the host, and of a process where the host has several."""
    first: dict[int, _Process] = {}
    for process, number in zip(processes, maps, strict=True):
        first.setdefault(number, process)
    hosts = [process.host for process in first.values()]
    return tuple(
        one.host if one.host and hosts.count(one.host) == 1 else f"{one.host} ({one.label})"
        for _, one in sorted(first.items())
    )


def _ledger(processes: list[_Process]) -> dict[str, object]:
    def named(chosen: list[str]) -> dict[str, object]:
        return {"count": len(chosen), "first": chosen[:NAMED]}

    fits = {id(process.fit): process for process in processes if process.fit is not None}
    steps = [
        f"the wall clock of {process.host or process.label} was set by {jump / 1e9:+.6f} s between "
        f"{before} and {after} ns; times follow the clock of the longer part"
        for process in fits.values()
        if process.fit is not None
        for before, after, jump in process.fit.steps
    ]
    good = [(process.width[~process.bad], process.fit) for process in processes]
    widths = [float(w.max()) * one.rate for w, one in good if one is not None and w.size]
    return {
        "maps": len(fits),
        "pairs": sum(int(process.tsc.size) for process in processes),
        "bad_pairs": sum(int(process.bad.sum()) for process in processes),
        "worst_width_ns": max(widths, default=0.0),
        "uncalibrated": named([p.label for p in processes if p.fit is None]),
        "by_host": named([p.label for p in processes if p.fit and not p.tsc.size]),
        "unsure_rate": named([p.label for p in processes if p.fit and not p.fit.is_sure]),
        "fitted_alone": named([p.label for p in processes if p.how == "alone"]),
        "steps": named(steps),
    }
