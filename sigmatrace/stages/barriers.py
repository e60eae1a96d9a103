"""Stage barriers: where processes or GPUs come together, who came first and who last.

Found in three ways, each apart:

* ``region``: regions of the program whose name contains ``region`` (``barrier_regions``).
* ``doorbell``: bursts of atomics that GPUs ring for; the first of a burst is the arrival.
* ``phase``: bursts of operations of processes, where there is neither of these; the last one of a
  burst is the arrival, at the silence that follows. Of two processes there are none: one that
  answers each message of the other one keeps pace with it, too.

Of bursts only those count that fit each other (``bursts``). Regions are kept as they are; of
operations no more than intervals, so memory does not grow with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Partition, Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.barrier_regions import Found, barriers_of, marks_of
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.stages.bursts import Bursts, Ints, aligned, bursts_of
from sigmatrace.stages.channels import Channels
from sigmatrace.text import counted, time_text
from sigmatrace.trace_format import INITIATORS, Layer, Op

DOORBELL_FLOORS, PHASE_FLOORS = 1 << 20, 1 << 12
"""Intervals of a GPU, and of a process, are at most about so many: 24 bytes each."""
FLOOR_NS = 1000
PHASE_MEMBERS = 3
"""The fewest processes whose phases of traffic are told. Nothing in it tells a barrier of two from
request and response: who has sent waits for the other one in both, so that each message of a
ping-pong would be a barrier."""
_ERROR_MOST_NS = 1e15
"""A clock that nobody calibrated may be off by anything; days are enough, and fit into 64 bits."""


@dataclass(frozen=True)
class Seen:
    """What a partition has of barriers."""

    marks: pa.Table
    doorbells: Bursts
    operations: Bursts
    floors_ns: tuple[int, int]


@dataclass(frozen=True)
class Met:
    """Both tables, and the stage's part of the ledger."""

    barriers: pa.Table
    arrivals: pa.Table
    ledger: Mapping[str, Any]


class Barriers(Stage):
    """Makes ``barriers`` and ``barrier_arrivals``.

    Args:
        region: Regions are barriers if their name contains this, in upper or lower case.
    """

    name: ClassVar[str] = "barriers"
    summary: ClassVar[SummaryKind] = "after"
    requires: ClassVar[Columns] = {
        "marks": {"proc": "i4", "name": "u4", "kind": "u1", "t_ns": "i8"},
        "ops": {"proc": "i4", "channel": "u4", "op": "u1", "t_ns": "i8"},
        "channels": {"proc": "i4", "object": "u4", "layer": "u1"},
        "gpu_queues": {"proc": "i4", "object": "u4", "gpu": "u4"},
        "names": {"proc": "i4", "name": "u4", "text": "str"},
        "clock_quality": {"error_ns": "f8"},
        "processes": {"host": "str"},
    }
    produces: ClassVar[Columns] = {
        name: STAGE_TABLES[name] for name in ("barriers", "barrier_arrivals")
    }

    def __init__(self, region: str = "barrier") -> None:
        if not region:
            raise ValueError("region is empty: every region would be a barrier")
        self.region = region

    def summarize(self, part: Partition) -> Seen:
        """Note the partition's regions, and when its processes and GPUs were busy."""
        floors = _floors(part.run)
        key, t_ns = _atomics(part)
        rows = np.flatnonzero(np.isin(part.column("ops", "op"), INITIATORS))
        proc, when = (part.column("ops", name)[rows] for name in ("proc", "t_ns"))
        busy = bursts_of(proc.astype(np.int64) << 32, when, floors[1])
        return Seen(marks_of(part, self.region), bursts_of(key, t_ns, floors[0]), busy, floors)

    def combine(self, left: Seen, right: Seen) -> Seen:
        """Put both together."""
        floors = left.floors_ns
        return Seen(
            pa.concat_tables([left.marks, right.marks]),
            left.doorbells.joined(right.doorbells, floors[0]),
            left.operations.joined(right.operations, floors[1]),
            floors,
        )

    def resolve(self, summary: Seen, run: Run) -> Met:
        """Find barriers in what the run had."""
        error_ns = np.minimum(run.column("clock_quality", "error_ns"), _ERROR_MOST_NS)
        tolerance_ns = int(2 * error_ns.max(initial=0))
        regions = barriers_of(summary.marks, run, self.region, tolerance_ns)
        shared = [one for one in regions if one.proc.size > 1]
        doorbells = _of_bursts("doorbell", summary.doorbells, summary.floors_ns[0])
        found = [*shared, *doorbells]
        phases = [] if found else _of_bursts("phase", summary.operations, summary.floors_ns[1])
        found += phases
        off_ns = [_off_ns(one.proc, error_ns, run) for one in found]
        barriers, arrivals = _tables(found, off_ns)
        ledger: dict[str, Any] = {
            "barriers": barriers.num_rows,
            "by_kind": {
                kind: sum(len(one.arrival) for one in found if one.kind == kind)
                for kind in ("region", "doorbell", "phase")
            },
            "region_begins_and_ends": summary.marks.num_rows,
            "region_names_of_one_process": len(regions) - len(shared),
            "not_all_took_part": sum(one.incomplete for one in shared),
            "left_before_all_came": sum(one.contradicted for one in shared),
            "doorbell_bursts_that_do_not_fit": 0 if doorbells else summary.doorbells.key.size,
            "phase_bursts_that_do_not_fit": 0 if found else summary.operations.key.size,
            "uncertain": int(column(barriers, "uncertain").sum()),
            "clocks_off_ns": max(off_ns, default=0),
        }
        return Met(barriers, arrivals, ledger)

    def results(self, resolved: Met) -> Mapping[str, pa.Table]:
        """Return ``barriers`` and ``barrier_arrivals``."""
        return {"barriers": resolved.barriers, "barrier_arrivals": resolved.arrivals}

    def account(self, resolved: Met) -> Mapping[str, object]:
        """Return how many there are of each kind, and what was left out."""
        return resolved.ledger

    def lines(self, resolved: Met, run: Run) -> Sequence[str]:
        """Return how many there are of each kind and how wide they spread; what was left out."""
        return list(_lines(resolved))


def _floors(run: Run) -> tuple[int, int]:
    """Return the longest pauses in ns that doorbells, and operations, are not told apart by."""
    begin, end = run.extent_ns
    span = max(end - begin, 0)
    return max(FLOOR_NS, span // DOORBELL_FLOORS), max(FLOOR_NS, span // PHASE_FLOORS)


def _off_ns(proc: Ints, error_ns: NDArray[np.float64], run: Run) -> int:
    """Return how far clocks of members may be off each other; those of one host are one clock."""
    hosts = run.tables["processes"].column("host").take(pa.array(proc))
    if len(hosts.unique()) < 2:
        return 0
    return int(np.sort(error_ns[np.unique(proc)])[-2:].sum())


def _atomics(part: Partition) -> tuple[Ints, Ints]:
    """Return process and GPU, as one key, and time of the atomics that GPUs started."""
    channels = Channels.of(part)
    rows = channels.rows_of_layer(Layer.MLX5DV)
    rows = rows[np.isin(part.column("ops", "op")[rows], (Op.ATOMIC, Op.ATOMIC_FETCH))]
    own = channels.channel[rows].astype(np.int64) - channels.low
    thing = channels.column("channels", "object", 0)[own] if rows.size else own
    proc = part.column("ops", "proc")[rows].astype(np.int64)
    queues = [part.run.column("gpu_queues", x).astype(np.int64) for x in ("proc", "object", "gpu")]
    known = queues[0] << 32 | queues[1]
    order = np.argsort(known, kind="stable")
    wanted = proc << 32 | thing
    at = np.searchsorted(known[order], wanted)
    is_known = np.append(known[order], -1)[at] == wanted
    gpu = np.where(is_known, np.append(queues[2][order], 0)[at], 0)
    return proc << 32 | gpu, part.column("ops", "t_ns")[rows]


def _of_bursts(kind: str, bursts: Bursts, floor_ns: int) -> list[Found]:
    is_doorbell = kind == "doorbell"
    found = aligned(bursts, floor_ns, "first" if is_doorbell else "last")
    if found is None or (not is_doorbell and found.key.size < PHASE_MEMBERS):
        return []
    came = found.first if is_doorbell else found.last
    return [Found(kind, "", found.key >> 32, found.key & 0xFFFFFFFF, came)]


def _tables(found: Sequence[Found], off_ns: Sequence[int]) -> tuple[pa.Table, pa.Table]:
    """Return ``barriers`` and ``barrier_arrivals``, numbered by the time of the first arrival.

    Args:
        found: Barriers.
        off_ns: Of each, how far its members' clocks may be off each other.
    """
    made = [_barriers(one, off) for one, off in zip(found, off_ns, strict=True)]
    barriers = pa.concat_tables(made or [_barriers(_NONE, 0)])
    arrivals = pa.concat_tables([_arrivals(one) for one in found] or [_arrivals(_NONE)])
    order = np.lexsort((column(barriers, "last_ns"), column(barriers, "first_ns")))
    number = np.empty(order.size, np.int32)
    number[order] = np.arange(order.size)
    own = np.repeat(number, column(barriers, "members"))
    by_barrier = pa.array(np.argsort(own, kind="stable"))
    barriers = barriers.take(pa.array(order)).add_column(
        0, "barrier", pa.array(np.arange(order.size, dtype=np.int32))
    )
    return barriers, arrivals.add_column(0, "barrier", pa.array(own)).take(by_barrier)


_NO_ONE = np.zeros(0, np.int64)
_NONE = Found("", "", _NO_ONE, _NO_ONE, np.zeros((0, 0), np.int64))


def _barriers(found: Found, off_ns: int) -> pa.Table:
    count = len(found.arrival)
    edges = [found.arrival.min(axis=1, initial=2**62), found.arrival.max(axis=1, initial=0)]
    order = np.argsort(found.arrival, axis=1, kind="stable")
    who = np.append(found.proc, 0).astype(np.int32)
    return pa.table(
        {
            "kind": pa.array([found.kind] * count, pa.string()),
            "name": pa.array([found.name] * count, pa.string()),
            "members": np.full(count, found.proc.size, np.int32),
            "first_ns": edges[0],
            "last_ns": edges[1],
            "spread_ns": edges[1] - edges[0],
            "first_proc": who[order[:, :1].ravel()],
            "last_proc": who[order[:, -1:].ravel()],
            "uncertain": (edges[1] - edges[0] <= off_ns) & (off_ns > 0),
        }
    )


def _arrivals(found: Found) -> pa.Table:
    order = np.argsort(found.arrival, axis=1, kind="stable")
    came = np.take_along_axis(found.arrival, order, axis=1)
    position = np.broadcast_to(np.arange(found.proc.size, dtype=np.int32), came.shape)
    return pa.table(
        {
            "position": position.ravel(),
            "proc": found.proc.astype(np.int32)[order].ravel(),
            "gpu": found.gpu.astype(np.uint32)[order].ravel(),
            "arrival_ns": came.ravel(),
            "late_ns": (came - came[:, :1]).ravel(),
        }
    )


def _lines(met: Met) -> Iterator[str]:
    kinds = np.array(met.barriers["kind"].to_pylist(), object)
    names = np.array(met.barriers["name"].to_pylist(), object)
    spread = column(met.barriers, "spread_ns")
    for kind, name in sorted(set(zip(kinds.tolist(), names.tolist(), strict=True))):
        own = np.sort(spread[(kinds == kind) & (names == name)])
        what = f"region {name}" if kind == "region" else f"by {_TEXT[kind]}"
        median, most = time_text(int(own[(own.size - 1) // 2])), time_text(int(own[-1]))
        yield (
            f"barriers   {counted(own.size, 'barrier')} ({what}): from first to last arrival "
            f"{median} in the median, at most {most}"
        )
    for key, what in (
        ("not_all_took_part", "not reached by all members"),
        ("left_before_all_came", "that a member left before the last one came"),
    ):
        if met.ledger[key]:
            yield f"             {counted(met.ledger[key], 'barrier')} {what}: left out"
    if uncertain := met.ledger["uncertain"]:
        off_ns = met.ledger["clocks_off_ns"]
        off = time_text(off_ns) if off_ns < _ERROR_MOST_NS else "nobody knows by how much"
        yield (
            f"             {counted(uncertain, 'barrier')} within what clocks of hosts may be off "
            f"({off}): who came last is not sure"
        )


_TEXT = {"doorbell": "GPU doorbells", "phase": "phases of traffic"}
