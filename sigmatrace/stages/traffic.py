"""Stage traffic: how much went from where to where, in which sizes, and when.

Operations of all modes are summed up by channel and class of sizes. From these sums follow
``sizes``, by endpoint, and ``traffic``, by process.

Rows of ``traffic`` and ``sizes`` point the way that the bytes go: those of a GET from the process
that is asked to the one that asks. A RECV is the other end of a SEND and points from the sender
(-1 when not known) to the receiver; a matrix of traffic sums the initiators' operations only, or
it counts messages twice.

Nested are operations with ``OpFlag.NESTED``: another one of the same layer made them, and their
bytes are its bytes. The others are all that their layer moved, whatever called it; so layers are
not to be added up: what is sent at one may be seen again at the one below.

Operations of mode ``aggregate`` are not in ``timeline``: they have no times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.errors import PipelineError
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import STAGE_TABLES, TIMELINE_CELLS, Columns
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.stages.sums import LIMB, LOW, Sums, add_all, column_sums, sums_of
from sigmatrace.stages.traffic_sums import (
    BIN_SHIFT_MIN,
    OP,
    bin_of,
    bin_shift,
    layer_of,
    op_of,
    proc_of,
    sum_operations,
)
from sigmatrace.stages.traffic_tables import tables_of
from sigmatrace.text import byte_text, counted
from sigmatrace.trace_format import INITIATORS, OpFlag, layer_text

PROCS_MAX = (1 << 25) - 2
TOP = 5
"""Pairs of processes in the closing summary, by layer."""


@dataclass(frozen=True)
class Amounts:
    """Traffic of some partitions.

    Attributes:
        operations: By channel, class of sizes, operation, nested (``size_kernel``).
        aggregates: Likewise, those of mode ``aggregate``.
        shift: log2 of the width in ns of a time bin.
        first_bin: ``t_ns >> shift`` of the earliest operation, or None without any.
        last_bin: Likewise of the latest one, which may be nested and so in no bin.
        bins: By bin from ``first_bin``, process, layer, operation (``bin_kernel``).
    """

    operations: Sums
    aggregates: Sums
    shift: int
    first_bin: int | None
    last_bin: int
    bins: Sums


@dataclass(frozen=True)
class Totals:
    """Tables, facts and ledger."""

    tables: Mapping[str, pa.Table]
    facts: Mapping[str, object]
    ledger: Mapping[str, Any]


class Traffic(Stage):
    """Makes ``traffic``, ``sizes`` and ``timeline``."""

    name: ClassVar[str] = "traffic"
    summary: ClassVar[SummaryKind] = "after"
    requires: ClassVar[Columns] = {
        "ops": {
            "channel": "u4",
            "op": "u1",
            "flags": "u1",
            "size_bytes": "u8",
            "t_ns": "i8",
        },
        "aggregates": {
            "channel": "u4",
            "op": "u1",
            "size_bits": "u1",
            "flags": "u1",
            "count": "u8",
            "size_bytes": "u8",
        },
        "channels": {"proc": "i4", "object": "u4", "layer": "u1"},
        "routes": {"src_proc": "i4", "dst_proc": "i4", "src_name": "str", "dst_name": "str"},
    }
    produces: ClassVar[Columns] = {
        "traffic": STAGE_TABLES["traffic"],
        "sizes": STAGE_TABLES["sizes"],
        "timeline": STAGE_TABLES["timeline"],
    }

    def summarize(self, part: Partition) -> Amounts:
        """Sum the partition's operations by channel and by time bin."""
        aggregates = _aggregates(part)
        if part.tables["ops"].num_rows == 0:
            return Amounts(_nothing(), aggregates, BIN_SHIFT_MIN, None, 0, _nothing())
        summed = sum_operations(part)
        when = summed.shift, summed.first_bin, summed.last_bin
        return _within_cells(Amounts(summed.operations, aggregates, *when, summed.bins))

    def combine_all(self, summaries: Sequence[Amounts]) -> Amounts:
        """Add all; their time bins become as wide as all of the time, and of the rows, need."""
        operations = add_all([one.operations for one in summaries])
        aggregates = add_all([one.aggregates for one in summaries])
        timed = [one for one in summaries if one.first_bin is not None]
        if not timed:
            return replace(summaries[0], operations=operations, aggregates=aggregates)
        begin = min((one.first_bin or 0) << one.shift for one in timed)
        last = max(one.last_bin << one.shift for one in timed)
        shift = max(*(one.shift for one in timed), bin_shift(begin, last))
        first_bin = begin >> shift
        bins = add_all([_rebin(one, shift, first_bin) for one in timed])
        return _within_cells(Amounts(operations, aggregates, shift, first_bin, last >> shift, bins))

    def resolve(self, summary: Amounts, run: Run) -> Totals:
        """Turn sums into tables."""
        if run.tables["processes"].num_rows > PROCS_MAX:
            raise PipelineError(f"stage traffic: more than {PROCS_MAX} processes")
        total = add_all([summary.operations, summary.aggregates])
        tables, over = tables_of(total, run)
        timeline, timeline_over = _timeline(summary.bins)
        facts = {
            "bin_ns": 1 << summary.shift,
            "timeline_ns": (summary.first_bin or 0) << summary.shift,
        }
        ledger: dict[str, Any] = {
            "operations": _count(summary.operations),
            "aggregated_operations": _count(summary.aggregates),
            "aggregated_bytes": _total_bytes(summary.aggregates),
            "size_bytes": _total_bytes(total),
            "size_unknown": sum(tables["traffic"].column("size_unknown").to_pylist()),
            "in_timeline": int(summary.bins.sums[:, 0].sum()),
            "byte_sums_beyond_u64": over + timeline_over,
        }
        ledger["balance"] = _balance(ledger, tables["sizes"])
        return Totals({**tables, "timeline": timeline}, facts, ledger)

    def results(self, resolved: Totals) -> Mapping[str, pa.Table]:
        """Return the tables ``traffic``, ``sizes`` and ``timeline``."""
        return resolved.tables

    def facts(self, resolved: Totals) -> Mapping[str, object]:
        """Return ``bin_ns`` and ``timeline_ns``: bin b begins at timeline_ns + b * bin_ns."""
        return resolved.facts

    def account(self, resolved: Totals) -> Mapping[str, object]:
        """Return operations and bytes, sends and receives both."""
        return resolved.ledger

    def lines(self, resolved: Totals, run: Run) -> Sequence[str]:
        """Return the pairs of processes with most bytes, by layer; and if sums are cut off."""
        return [*_beyond(resolved.ledger), *_talkers(run)]


def _nothing() -> Sums:
    return Sums(np.zeros(0, np.uint64), np.zeros((0, 3), np.uint64))


def _within_cells(amounts: Amounts) -> Amounts:
    """Return the same in bins as wide as ``TIMELINE_CELLS`` needs.

    Bins are aligned to their width, so some of the rows never need wider ones than all of them:
    in whatever order partitions are added, the result is the same.
    """
    while amounts.bins.key.size > TIMELINE_CELLS and amounts.first_bin != amounts.last_bin:
        shift, first_bin = amounts.shift + 1, (amounts.first_bin or 0) >> 1
        bins = _rebin(amounts, shift, first_bin)
        amounts = replace(
            amounts, shift=shift, first_bin=first_bin, last_bin=amounts.last_bin >> 1, bins=bins
        )
    return amounts


def _aggregates(part: Partition) -> Sums:
    """Return the sums of the partition's rows of mode ``aggregate``, keys as of ``size_kernel``."""
    if part.tables["aggregates"].num_rows == 0:
        return _nothing()
    channel, op, size_bits, flags, count, size_bytes = (
        part.column("aggregates", name)
        for name in ("channel", "op", "size_bits", "flags", "count", "size_bytes")
    )
    key = (flags & np.uint8(OpFlag.NESTED) != 0).astype(np.uint64)
    for column, bit in ((channel, 17), (size_bits, 9), (op, 1)):
        key |= column.astype(np.uint64) << np.uint64(bit)
    sums = np.stack([count, size_bytes & LOW, size_bytes >> LIMB], axis=1)
    used = count > 0
    return sums_of(key[used], sums[used])


def _balance(ledger: Mapping[str, Any], sizes: pa.Table) -> list[dict[str, Any]]:
    """Return the equations of the stage; sums beyond 64 bits are not judged."""
    equations: list[dict[str, Any]] = [
        {"name": "operations = op records", "left": ledger["operations"], "right": "records.op"}
    ]
    for what in ("operations", "bytes"):
        name = f"aggregated {what} = those that aggregate records stand for"
        sides = {"left": ledger[f"aggregated_{what}"], "right": f"capture.aggregated_{what}"}
        equations.append({"name": name, **sides})
    whole = [ledger["operations"], ledger["aggregated_operations"]]
    counts, size_bytes = (sum(sizes.column(name).to_pylist()) for name in ("count", "size_bytes"))
    equations.append({"name": "operations by size = operations", "left": counts, "right": whole})
    if not ledger["byte_sums_beyond_u64"]:
        sides = {"left": size_bytes, "right": ledger["size_bytes"]}
        equations.append({"name": "bytes by size = bytes", **sides})
    return equations


def _rebin(amounts: Amounts, shift: int, first_bin: int) -> Sums:
    """Return the sums in wider bins, counted from another first one."""
    key, own = amounts.bins.key, amounts.first_bin or 0
    if shift == amounts.shift:
        return Sums(key + np.uint64(own - first_bin), amounts.bins.sums)
    wide = (bin_of(key).astype(np.int64) + own) >> (shift - amounts.shift)
    key = key >> OP << OP | (wide - first_bin).astype(np.uint64)
    return sums_of(key, amounts.bins.sums)


def _timeline(bins: Sums) -> tuple[pa.Table, int]:
    """Return the table, ordered by bin, process, layer and operation, and sums beyond u64."""
    size_bytes, over = column_sums(bins)
    # There are TIMELINE_BINS at most: numbers of 16 bits are sorted in no time.
    order = np.argsort(bin_of(bins.key).astype(np.uint16), kind="stable")
    key = bins.key[order]
    columns = {
        "bin": bin_of(key).astype(np.uint32),
        "proc": proc_of(key),
        "layer": layer_of(key),
        "op": op_of(key),
        "count": bins.sums[order, 0],
        "size_bytes": size_bytes[order],
    }
    return pa.table(columns), over


def _count(sums: Sums) -> int:
    return _total(sums.sums[:, 0])


def _total_bytes(sums: Sums) -> int:
    return _total(sums.sums[:, 1]) + (_total(sums.sums[:, 2]) << 32)


def _total(values: NDArray[np.uint64]) -> int:
    """Return a sum that may be beyond 64 bits."""
    return int((values & LOW).sum()) + (int((values >> LIMB).sum()) << 32)


def _beyond(ledger: Mapping[str, Any]) -> Iterator[str]:
    """Say that sums are too small. No program moves so much: sizes are wrong."""
    if count := ledger["byte_sums_beyond_u64"]:
        what = counted(count, "sum of bytes is", "sums of bytes are")
        yield f"sums       {what} beyond 64 bits and told as 16 EiB: sizes must be wrong"


def _talkers(run: Run) -> Iterator[str]:
    """Yield the ``TOP`` pairs of each layer, a message counted once."""
    names = ("src_proc", "dst_proc", "layer", "count", "size_bytes")
    keep = np.isin(run.column("traffic", "op"), INITIATORS)
    keep &= run.column("traffic", "nested") == 0
    rows = {name: run.column("traffic", name)[keep] for name in names}
    labels = run.tables["processes"].column("label").to_pylist()
    for layer in np.unique(rows["layer"]):
        here = {key: values[rows["layer"] == layer] for key, values in rows.items()}
        pair = here["src_proc"].astype(np.int64) << 32 | (here["dst_proc"].astype(np.int64) + 1)
        pairs, which = np.unique(pair, return_inverse=True)
        limbs = here["count"], here["size_bytes"] & LOW, here["size_bytes"] >> LIMB
        total = sums_of(which.astype(np.uint64), np.stack(limbs, axis=1))
        size_bytes, count = column_sums(total)[0], total.sums[:, 0]
        top = np.argsort(-size_bytes.astype(np.float64), kind="stable")[:TOP]
        for number, at in enumerate(top):
            ends = int(pairs[at]) >> 32, (int(pairs[at]) & 0xFFFFFFFF) - 1
            src, dst = (labels[proc] if proc >= 0 else "unknown" for proc in ends)
            head = f"top {layer_text(int(layer))}" if number == 0 else ""
            amount = f"{byte_text(int(size_bytes[at]))} in {counted(int(count[at]), 'operation')}"
            yield f"{head:10} {src} -> {dst}: {amount}"
