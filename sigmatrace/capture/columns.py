"""The columns of an event table, filled chunk by chunk."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Set
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sigmatrace.capture.kernels.columns import split
from sigmatrace.capture.merge import ProcessBase
from sigmatrace.schema import EVENT_TABLES
from sigmatrace.trace_format import RECORDS, Schema

_BEGIN = ("t_tsc", "size_bytes", "channel", "ordinal", "op", "call", "depth", "flags")
_SPLIT = {Schema.OP: (0, 32, "aux"), Schema.COMPLETION: (32, 0, "status")}
"""Records that a kernel takes apart: where its last word's four bytes and rest begin; the rest."""
_ALIGNMENT_BYTES = 64
_NOT_RECORDED = ("proc", "thread")


class Added(NamedTuple):
    """What became of the records of a chunk.

    Attributes:
        rows: Rows that were added.
        unknown_channel: Of these, rows whose channel record is lost.
        bad_channel: Records left out because their channel does not exist.
        unused: Aggregate rows that were never used.
        operations: Operations that the aggregate rows stand for.
        size_bytes: Bytes of these operations.
    """

    rows: int
    unknown_channel: int = 0
    bad_channel: int = 0
    unused: int = 0
    operations: int = 0
    size_bytes: int = 0


class EventTable:
    """One event table of a partition.

    All columns lie in one block of memory: fresh memory costs more than the copy itself, and only
    large blocks come in large pages.

    Args:
        schema: Of the records.
        name: Key of ``schema.EVENT_TABLES``.
        rows: Room for so many.
        unread: Columns to leave out, as (table, column). ``proc`` never is: a table without
            columns would have no rows.
    """

    def __init__(
        self, schema: Schema, name: str, rows: int, unread: Set[tuple[str, str]] = frozenset()
    ) -> None:
        self._schema = schema
        self._name = name
        self._used = self._named = 0
        self._recorder = -1, 0
        self._thread = 0
        self._columns = _columns(
            {
                key: np.dtype(kind)
                for key, kind in EVENT_TABLES[name].items()
                if key == "proc" or (name, key) not in unread
            },
            rows,
        )
        self._split = self._columns_to_split(*_SPLIT[schema]) if schema in _SPLIT else None

    def add(self, base: ProcessBase, tid: int, data: np.ndarray) -> Added:
        """Append the records of a chunk.

        Args:
            base: Numbering of its process.
            tid: Kernel's thread id of its thread.
            data: The records, u1, at any alignment.
        """
        added = self._add_fast(base, data)
        if added is None:
            added = self._add_careful(base, data.view(RECORDS[self._schema]))
        if self._recorder != (base.proc, tid):
            self._name_rows()
            self._recorder = base.proc, tid
            self._thread = base.thread + int(np.searchsorted(base.tids, tid))
        self._used += added.rows
        return added

    def table(self) -> pa.Table:
        """Return the rows so far; nothing may be added afterwards."""
        self._name_rows()
        return pa.table({key: pa.array(x[: self._used]) for key, x in self._columns.items()})

    def _columns_to_split(
        self, bytes_at: int, rest_at: int, rest: str
    ) -> tuple[int, int, tuple[np.ndarray, ...]]:
        """Return what the kernel needs of the columns; one that is left out has no rows."""
        dtypes = EVENT_TABLES[self._name]
        *begin, last = (self._columns.get(x, np.empty(0, dtypes[x])) for x in (*_BEGIN, rest))
        return bytes_at, rest_at, (*begin, last.view(np.uint32))

    def _name_rows(self) -> None:
        """Say which process and thread recorded the rows since this was said last."""
        here = slice(self._named, self._used)
        self._columns["proc"][here] = self._recorder[0]
        if "thread" in self._columns:
            self._columns["thread"][here] = self._thread
        self._named = self._used

    def _add_fast(self, base: ProcessBase, data: np.ndarray) -> Added | None:
        """Append records in one pass; None if that cannot be, or some have an unknown channel."""
        if self._split is None or base.channel_ids is not None:
            return None
        bytes_at, rest_at, columns = self._split
        words = data.view(np.uint64)
        highest = split(words, base.calls, base.channel, bytes_at, rest_at, self._used, columns)
        return Added(len(words) // 4) if highest < base.channel_count else None

    def _add_careful(self, base: ProcessBase, records: np.ndarray) -> Added:
        """Append records column by column, looking at every channel."""
        unused = unknown = bad = 0
        if self._schema == Schema.AGGREGATE:
            used = records["count"] > 0
            unused = len(records) - int(used.sum())
            records = records[used]
        numbers: dict[str, np.ndarray] = {}
        if "channel" in EVENT_TABLES[self._name]:
            numbers["channel"], known = _channel_numbers(base, records["channel"])
            unknown = len(records) - int(known.sum())
            if unknown and not base.has_placeholder:
                records, numbers["channel"] = records[known], numbers["channel"][known]
                unknown, bad = 0, unknown
        if "call" in self._columns:
            numbers["call"] = base.calls[records["call"]]
        here = slice(self._used, self._used + len(records))
        for name, column in self._columns.items():
            if name not in _NOT_RECORDED:
                column[here] = numbers[name] if name in numbers else records[name]
        if self._schema != Schema.AGGREGATE:
            return Added(len(records), unknown, bad)
        # Python's integers: a sum of sums may be beyond 64 bits.
        operations, size_bytes = (sum(records[key].tolist()) for key in ("count", "size_bytes"))
        return Added(len(records), unknown, bad, unused, operations, size_bytes)


def _channel_numbers(base: ProcessBase, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the run's numbers of a process's channel ids, and which ids are known.

    Unknown ids get the number of the placeholder.
    """
    if base.channel_ids is None:
        position, known = own, own < base.channel_count
    else:
        position = np.searchsorted(base.channel_ids, own)
        position = np.minimum(position, base.channel_count - 1)
        known = base.channel_ids[position] == own
    position = np.where(known, position, base.channel_count)
    return position.astype(np.uint32) + np.uint32(base.channel), known


def _columns(dtypes: Mapping[str, np.dtype], rows: int) -> dict[str, np.ndarray]:
    """Return columns for so many rows, which hold anything, in one block."""
    sizes = [-(-rows * x.itemsize // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for x in dtypes.values()]
    block = np.empty(sum(sizes), np.uint8)
    starts = itertools.accumulate(sizes, initial=0)
    return {
        key: block[start : start + rows * dtype.itemsize].view(dtype)
        for (key, dtype), start in zip(dtypes.items(), starts, strict=False)
    }
