"""Stage links: how long nothing was sent between two processes that talk to each other.

The time of the run (of the window) is divided into at most ``SLOTS`` slots of a power of two of ns.
A slot of a pair of processes and layer is idle if no operation that initiates traffic began in it;
a pair keeps a bit for each slot, so memory does not grow with events. Before a pair's first slot
in use and after its last one nothing is idle. Operations outside of the run's time, as a process
that is not calibrated may have them, count in the first or the last slot, and in the ledger.

Operations and bytes are those of ``traffic``. What has no time (mode ``aggregate``) is in no slot;
a pair that has nothing else has no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.base import SummaryKind
from sigmatrace.stages.channels import Channels
from sigmatrace.stages.pairs import Ints, ends_of, keys_of
from sigmatrace.stages.sums import LIMB, LOW, column_sums, sums_of
from sigmatrace.stages.table_stage import TableStage, Told
from sigmatrace.trace_format import INITIATORS

SLOTS = 1024
SHIFT_MIN = 10
"""log2 of the narrowest slots, in ns."""
_WORDS = SLOTS // 64
_MASK = sum(1 << op for op in INITIATORS)
_BLOCK = 1 << 12
"""Pairs whose bits are looked at together."""


@dataclass(frozen=True)
class Used:
    """Slots in use by pair and layer, of some partitions.

    Attributes:
        key: ``(k,)`` i8, ascending, as of ``pairs.keys_of``.
        bits: ``(k, SLOTS / 64)`` u8, slots in which operations began.
        operations: Those that count.
        others: Those that do not.
        outside: Those that count and lie in no slot.
    """

    key: Ints
    bits: NDArray[np.uint64]
    operations: int
    others: int
    outside: int


class Links(TableStage):
    """Makes ``links``."""

    name: ClassVar[str] = "links"
    summary: ClassVar[SummaryKind] = "after"
    requires: ClassVar[Columns] = {
        "ops": {"channel": "u4", "op": "u1", "flags": "u1", "t_ns": "i8"},
        "channels": {"proc": "i4", "layer": "u1"},
        "routes": {"src_proc": "i4", "dst_proc": "i4"},
        "traffic": STAGE_TABLES["traffic"],
    }
    produces: ClassVar[Columns] = {"links": STAGE_TABLES["links"]}

    def summarize(self, part: Partition) -> Used:
        """Note in which slots operations of the partition began."""
        from sigmatrace.stages.kernels.links import slots_kernel

        channels = Channels.of(part)
        bits = np.zeros((1 + 2 * channels.size, _WORDS), np.uint64)
        operations, outside = 0, 0
        if channels.size:
            begin_ns, shift = slots_of(part.run)
            columns = (part.column("ops", name) for name in ("op", "flags", "t_ns"))
            when = begin_ns, (SLOTS << shift) - 1, shift
            operations, outside = slots_kernel(
                channels.channel, *columns, channels.low, _MASK, *when, _WORDS, bits.ravel()
            )
        at = np.flatnonzero(bits[1:].any(axis=1))
        key, bits = _united(_channel_keys(channels)[at], bits[1:][at])
        return Used(key, bits, operations, channels.channel.size - operations, outside)

    def combine(self, left: Used, right: Used) -> Used:
        """Add both."""
        return Used(
            *_united(
                np.concatenate([left.key, right.key]), np.concatenate([left.bits, right.bits])
            ),
            left.operations + right.operations,
            left.others + right.others,
            left.outside + right.outside,
        )

    def resolve(self, summary: Used, run: Run) -> Told:
        """Turn slots into times."""
        table = _table(summary, run)
        whole = [summary.operations, summary.others]
        ledger: dict[str, Any] = {
            "pairs": table.num_rows,
            "operations": summary.operations,
            "not_counted": summary.others,
            "outside_of_the_time": summary.outside,
            "balance": [{"name": "operations = op records", "left": whole, "right": "records.op"}],
        }
        return Told(table, ledger)


def slots_of(run: Run) -> tuple[int, int]:
    """Return the begin of the first slot in Unix ns, and log2 of the width of slots in ns."""
    begin, end = run.extent_ns
    return begin, max(SHIFT_MIN, (max(end - begin, 0) // SLOTS).bit_length())


def _table(summary: Used, run: Run) -> pa.Table:
    begin_ns, shift = slots_of(run)
    first, last, idle, longest = _gaps(summary.bits)
    count, size_bytes = _amounts(summary.key, run)
    src, dst, layer = ends_of(summary.key)
    return pa.table(
        {
            "src_proc": src,
            "dst_proc": dst,
            "layer": layer,
            "operations": count,
            "size_bytes": size_bytes,
            "first_ns": begin_ns + (first << shift),
            "last_ns": begin_ns + (last + 1 << shift),
            "slot_ns": np.full(src.size, 1 << shift),
            "idle_ns": idle << shift,
            "longest_idle_ns": longest << shift,
        }
    )


def _channel_keys(channels: Channels) -> Ints:
    """Return the keys of both directions of channels, ``(2 channels,)``; GETs go the other way."""
    ends = [channels.column("routes", f"{x}_proc", -1) for x in ("src", "dst")]
    both = [keys_of(ends[k], ends[1 - k], channels.layer()) for k in (0, 1)]
    return np.stack(both, axis=1).ravel()


def _united(key: Ints, bits: NDArray[np.uint64]) -> tuple[Ints, NDArray[np.uint64]]:
    """Return one row for each key, ascending, with the bits of all."""
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: key.size])
    if not starts.size:
        return key, bits
    return key[starts], np.bitwise_or.reduceat(bits[order], starts)


def _amounts(key: Ints, run: Run) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return operations and bytes of pairs, of the rows of ``traffic`` that count."""
    names = ("src_proc", "dst_proc", "layer", "count", "size_bytes")
    counted = np.isin(run.column("traffic", "op"), INITIATORS)
    counted &= run.column("traffic", "nested") == 0
    src, dst, layer, count, size_bytes = (run.column("traffic", x)[counted] for x in names)
    own = keys_of(src, dst, layer)
    place = np.searchsorted(key, own)
    mine = np.append(key, -1)[place] == own
    limbs = np.stack([count, size_bytes & LOW, size_bytes >> LIMB], axis=1)
    total = sums_of(place[mine].astype(np.uint64), limbs[mine])
    found = np.zeros((2, key.size), np.uint64)
    found[:, total.key.astype(np.int64)] = total.sums[:, 0], column_sums(total)[0]
    return found[0], found[1]


def _gaps(bits: NDArray[np.uint64]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return of each row the first and the last bit, and between them zeros, and most in a row."""
    first, last, idle, longest = np.zeros((4, len(bits)), np.int64)
    for start in range(0, len(bits), _BLOCK):
        words = bits[start : start + _BLOCK].astype("<u8").view(np.uint8)
        row, slot = np.nonzero(np.unpackbits(words, axis=1, bitorder="little"))
        edge = np.flatnonzero(np.diff(row, prepend=-1))
        part = slice(start, start + len(words))
        first[part], last[part] = slot[edge], slot[np.append(edge[1:], row.size) - 1]
        gap = np.diff(slot, prepend=0) - 1
        gap[edge] = 0
        idle[part] = np.add.reduceat(gap, edge)
        longest[part] = np.maximum.reduceat(gap, edge)
    return first, last, idle, longest
