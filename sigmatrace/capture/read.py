"""Partitions of a run, and the reading of their events.

A chunk is one ``np.frombuffer`` over the mapped file; its checksum is verified here, when its
data is read. Numbers of channels, threads, calls and processes become those of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sigmatrace.capture import items, ring
from sigmatrace.capture.index import FROM_RING, FileIndex, LostChunk, mapped
from sigmatrace.capture.merge import ProcessBase
from sigmatrace.capture.tables import empty
from sigmatrace.partition import Partition
from sigmatrace.schema import EVENT_TABLES, RECORDS, Schema

TABLE_OF = {
    Schema.OP: "ops",
    Schema.COMPLETION: "completions",
    Schema.MARK: "marks",
    Schema.AGGREGATE: "aggregates",
    Schema.TARGET: "targets",
}
"""Event table by schema. Channels are not events; the index holds them."""

TARGET_BYTES = 12 << 20


@dataclass(frozen=True)
class Piece:
    """Chunks of one file.

    Attributes:
        path: The rank file.
        ring: Its ring file.
        base: The numbering of its process.
        chunks: Dtype ``index.CHUNK``, ordered by thread, then as they lie in the file.
    """

    path: str
    ring: str
    base: ProcessBase
    chunks: np.ndarray


@dataclass(frozen=True)
class PartitionSpec:
    """What one partition consists of: small, and all that ``read`` needs.

    Attributes:
        number: Position in the plan, from 0.
        pieces: In the order of processes.
        data_bytes: Bytes of records.
    """

    number: int
    pieces: tuple[Piece, ...]
    data_bytes: int


@dataclass
class ReadLoss:
    """What reading a partition found, beside its tables.

    Attributes:
        read: Records in the tables, by (proc, schema).
        chunks: Chunks that could not be read.
        unknown_channel: Records whose channel record is lost; they are in the tables.
        bad_channel: Records, by (proc, schema), whose channel does not exist; they are left out.
        unused_rows: Aggregate rows that were never used; they are no records.
    """

    read: Counter[tuple[int, int]] = field(default_factory=Counter)
    chunks: list[LostChunk] = field(default_factory=list)
    unknown_channel: int = 0
    bad_channel: Counter[tuple[int, int]] = field(default_factory=Counter)
    unused_rows: int = 0

    def __add__(self, other: ReadLoss) -> ReadLoss:
        """Return the sum of two partitions' losses."""
        return ReadLoss(
            self.read + other.read,
            self.chunks + other.chunks,
            self.unknown_channel + other.unknown_channel,
            self.bad_channel + other.bad_channel,
            self.unused_rows + other.unused_rows,
        )


def plan(
    indexes: Sequence[FileIndex],
    bases: Sequence[ProcessBase],
    target_bytes: int = TARGET_BYTES,
) -> list[PartitionSpec]:
    """Return the partitions of a run, each of about ``target_bytes`` of records.

    A big file becomes several partitions, small ones share one. A thread's chunks keep their
    order over partitions.
    """
    specs: list[PartitionSpec] = []
    pieces: list[Piece] = []
    used = 0

    def close() -> None:
        nonlocal used
        if pieces:
            specs.append(PartitionSpec(len(specs), tuple(pieces), used))
        pieces.clear()
        used = 0

    for base in bases:
        index = indexes[base.index]
        for chunks in _split(_events(index.chunks), target_bytes):
            size = int(_data_bytes(chunks).sum())
            if pieces and used + size > target_bytes:
                close()
            by_thread = chunks[np.argsort(chunks["thread"], kind="stable")]
            pieces.append(Piece(index.path, index.ring, base, by_thread))
            used += size
    close()
    return specs


def read(spec: PartitionSpec) -> tuple[Partition, ReadLoss]:
    """Read the events of a partition.

    Returns:
        The partition with all tables of ``schema.EVENT_TABLES`` (empty ones too), and what
        was lost. A file that has gone away, or shrunk, loses its chunks and nothing else.
    """
    loss = ReadLoss()
    tables = {schema: _Table(schema, spec) for schema in TABLE_OF}
    for piece in spec.pieces:
        for chunk, records in _records(piece, loss):
            schema = Schema(chunk["schema"])
            added = tables[schema].add(piece.base, int(chunk["thread"]), records, loss)
            loss.read[piece.base.proc, int(schema)] += added
    named = {name: tables[schema].finish() for schema, name in TABLE_OF.items()}
    return Partition(spec.number, named), loss


def _events(chunks: np.ndarray) -> np.ndarray:
    return chunks[np.isin(chunks["schema"], list(TABLE_OF))]


def _data_bytes(chunks: np.ndarray) -> np.ndarray:
    sizes = np.zeros(256, np.int64)
    for schema, dtype in RECORDS.items():
        sizes[schema] = dtype.itemsize
    return chunks["count"] * sizes[chunks["schema"]]


def _split(chunks: np.ndarray, target_bytes: int) -> Iterator[np.ndarray]:
    """Yield runs of consecutive chunks of about ``target_bytes``."""
    if len(chunks) == 0:
        return
    ends = np.cumsum(_data_bytes(chunks))
    parts = max(1, round(int(ends[-1]) / target_bytes))
    number = np.minimum((ends - 1) * parts // max(1, int(ends[-1])), parts - 1)
    yield from np.split(chunks, np.flatnonzero(np.diff(number)) + 1)


def _records(piece: Piece, loss: ReadLoss) -> Iterator[tuple[np.void, np.ndarray]]:
    """Yield each readable chunk of a piece with its records."""
    is_ring = piece.chunks["source"] == FROM_RING
    for path, chunks in (piece.path, piece.chunks[~is_ring]), (piece.ring, piece.chunks[is_ring]):
        if len(chunks) == 0:
            continue
        try:
            with mapped(path) as data:
                for chunk in chunks:
                    reason = _problem(data, chunk)
                    if reason:
                        loss.chunks.append(_lost(path, chunk, reason))
                    else:
                        dtype = RECORDS[Schema(chunk["schema"])]
                        yield chunk, np.frombuffer(data, dtype, chunk["count"], chunk["data"])
        except OSError as error:
            loss.chunks += [_lost(path, chunk, f"unreadable: {error.strerror}") for chunk in chunks]


def _lost(path: str, chunk: np.void, reason: str) -> LostChunk:
    size = 0 if chunk["source"] == FROM_RING else int(chunk["size_bytes"])
    return LostChunk(
        path, int(chunk["offset"]), size, int(chunk["schema"]), int(chunk["count"]), reason
    )


def _problem(data: items.FileData, chunk: np.void) -> str:
    """Return why a chunk cannot be read, "" if it can."""
    offset, size = int(chunk["offset"]), int(chunk["size_bytes"])
    if chunk["source"] == FROM_RING:
        keys = (int(chunk[key]) for key in ("schema", "thread", "seq", "count", "dropped", "data"))
        return "" if ring.is_unchanged(data, ring.Segment(offset, *keys)) else "ring changed"
    if offset + size > len(data):
        return "file shrunk"
    if not chunk["checked"] and not items.is_intact(data, offset, size):
        return items.DAMAGED
    return ""


class _Table:
    """Columns of one event table, filled chunk by chunk."""

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        self.name = TABLE_OF[schema]
        self.schema = schema
        self.used = 0
        chunks = [piece.chunks for piece in spec.pieces]
        rows = sum(int(part["count"][part["schema"] == schema].sum()) for part in chunks)
        self.columns = {
            name: np.empty(rows, dtype) for name, dtype in EVENT_TABLES[self.name].items()
        }

    def add(self, base: ProcessBase, tid: int, records: np.ndarray, loss: ReadLoss) -> int:
        """Append the records of a chunk; return how many rows they became."""
        if self.schema == Schema.AGGREGATE:
            used = records["count"] > 0
            loss.unused_rows += len(records) - int(used.sum())
            records = records[used]
        channels = None
        if "channel" in self.columns:
            records, channels = self._channels(base, records, loss)
        here = slice(self.used, self.used + len(records))
        for name, column in self.columns.items():
            if name == "proc":
                column[here] = base.proc
            elif name == "thread":
                column[here] = base.thread + np.searchsorted(base.tids, tid)
            elif name == "channel":
                column[here] = channels
            elif name == "call":
                column[here] = base.calls[records[name]]
            else:
                column[here] = records[name]
        self.used = here.stop
        return len(records)

    def finish(self) -> pa.Table:
        """Return the table."""
        if self.used == 0:
            return empty(self.name)
        return pa.table(
            {name: pa.array(column[: self.used]) for name, column in self.columns.items()}
        )

    def _channels(
        self, base: ProcessBase, records: np.ndarray, loss: ReadLoss
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the records with an acceptable channel, and their channels' numbers."""
        own = records["channel"]
        if base.channel_ids is None:
            position, known = own, own < base.channel_count
        else:
            position = np.searchsorted(base.channel_ids, own)
            position = np.minimum(position, base.channel_count - 1)
            known = base.channel_ids[position] == own
        if not known.all():
            unknown = len(own) - int(known.sum())
            if base.has_placeholder:
                loss.unknown_channel += unknown
                position = np.where(known, position, base.channel_count)
            else:
                loss.bad_channel[base.proc, int(self.schema)] += unknown
                records, position = records[known], position[known]
        return records, position.astype(np.uint32) + np.uint32(base.channel)
