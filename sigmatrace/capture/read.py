"""Partitions of a run, and the reading of their events.

A chunk is read as a whole, and its checksum is verified here. Numbers of channels, threads, calls
and processes become those of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from sigmatrace.capture import items, ring
from sigmatrace.capture.columns import Added, EventTable
from sigmatrace.capture.index import FROM_FILE, FROM_RING, ChunkRow, FileIndex, LostChunk
from sigmatrace.capture.merge import ProcessBase
from sigmatrace.capture.packed import PackedError, records_of
from sigmatrace.capture.tables import empty
from sigmatrace.capture.view import FileView, opened
from sigmatrace.capture.window import Cut
from sigmatrace.partition import Partition
from sigmatrace.schema import EVENT_NAMES
from sigmatrace.trace_format import RECORDS, Schema


@dataclass(frozen=True)
class Piece:
    """Chunks of one file.

    Attributes:
        path: The rank file.
        ring: Its ring file.
        base: The numbering of its process.
        chunks: Dtype ``index.CHUNK``, ordered by thread, then as they lie in the file.
        cut: Records outside are left out; None: all are read.
    """

    path: str
    ring: str
    base: ProcessBase
    chunks: np.ndarray
    cut: Cut | None = None


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
        unused: Aggregate rows, by (proc, schema), that were never used.
        outside: Records, by (proc, schema), that are not in the window; they are left out.
        not_read: Records, by (proc, schema), in chunks that the window does not need.
        chunks_not_read: How many these chunks are.
        operations: Operations that the aggregate rows in the tables stand for.
        operation_bytes: Bytes of these operations.
    """

    read: Counter[tuple[int, int]] = field(default_factory=Counter)
    chunks: list[LostChunk] = field(default_factory=list)
    unknown_channel: int = 0
    bad_channel: Counter[tuple[int, int]] = field(default_factory=Counter)
    unused: Counter[tuple[int, int]] = field(default_factory=Counter)
    outside: Counter[tuple[int, int]] = field(default_factory=Counter)
    not_read: Counter[tuple[int, int]] = field(default_factory=Counter)
    chunks_not_read: int = 0
    operations: int = 0
    operation_bytes: int = 0

    def add(self, proc: int, schema: Schema, added: Added) -> None:
        """Count what became of the records of a chunk."""
        self.read[proc, int(schema)] += added.rows
        self.unknown_channel += added.unknown_channel
        self.operations += added.operations
        self.operation_bytes += added.size_bytes
        if added.unused:
            self.unused[proc, int(schema)] += added.unused
        if added.bad_channel:
            self.bad_channel[proc, int(schema)] += added.bad_channel

    def __add__(self, other: ReadLoss) -> ReadLoss:
        """Return the sum of two partitions' losses."""
        return ReadLoss(
            self.read + other.read,
            self.chunks + other.chunks,
            self.unknown_channel + other.unknown_channel,
            self.bad_channel + other.bad_channel,
            self.unused + other.unused,
            self.outside + other.outside,
            self.not_read + other.not_read,
            self.chunks_not_read + other.chunks_not_read,
            self.operations + other.operations,
            self.operation_bytes + other.operation_bytes,
        )


def plan(
    indexes: Sequence[FileIndex],
    bases: Sequence[ProcessBase],
    target_bytes: int,
    cuts: Sequence[Cut] | None = None,
) -> list[PartitionSpec]:
    """Return the partitions of a run, each of about ``target_bytes`` of records.

    A big file becomes several partitions, small ones share one. A thread's chunks keep their
    order over partitions.

    Args:
        indexes: As given to ``merge``.
        bases: As ``merge`` returned them.
        target_bytes: Of records.
        cuts: By process the window to be read, None: everything.
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
        cut = cuts[base.proc] if cuts is not None else None
        events = _events(index.chunks)
        if cut is not None:
            events = events[cut.needs(events, index.header.mode)]
        for chunks in _split(events, target_bytes):
            size = int(_data_bytes(chunks).sum())
            if pieces and used + size > target_bytes:
                close()
            by_thread = chunks[np.argsort(chunks["thread"], kind="stable")]
            pieces.append(Piece(index.path, index.ring, base, by_thread, cut))
            used += size
    close()
    return specs


def left_alone(
    indexes: Sequence[FileIndex], bases: Sequence[ProcessBase], specs: Sequence[PartitionSpec]
) -> ReadLoss:
    """Return what no partition reads: records and chunks that a window does not need."""
    loss = ReadLoss()
    for base in bases:
        chunks = _events(indexes[base.index].chunks)
        loss.not_read.update(_counts(base.proc, chunks))
        loss.chunks_not_read += len(chunks)
    for piece in (piece for spec in specs for piece in spec.pieces):
        loss.not_read.subtract(_counts(piece.base.proc, piece.chunks))
        loss.chunks_not_read -= len(piece.chunks)
    return loss


def _counts(proc: int, chunks: np.ndarray) -> dict[tuple[int, int], int]:
    """Return the records of chunks by (proc, schema)."""
    return {
        (proc, schema): int(chunks["count"][chunks["schema"] == schema].sum())
        for schema in np.unique(chunks["schema"]).tolist()
    }


def read(
    spec: PartitionSpec, unread: Set[tuple[str, str]] = frozenset()
) -> tuple[Partition, ReadLoss]:
    """Read the events of a partition.

    Args:
        spec: Of what it consists.
        unread: Columns, as (table, column), that nobody reads: they are not made, but for ``proc``.

    Returns:
        The partition with all tables of ``schema.EVENT_TABLES`` (empty ones too), and what
        was lost. A file that has gone away, or shrunk, loses its chunks and nothing else.
    """
    loss = ReadLoss()
    tables = {
        schema: EventTable(schema, EVENT_NAMES[schema], rows, unread)
        for schema, rows in _rows(spec).items()
    }
    for piece in spec.pieces:
        for schema, tid, records in _records(piece, loss):
            added = tables[schema].add(piece.base, tid, records)
            loss.add(piece.base.proc, schema, added)
    named = {EVENT_NAMES[schema]: table.table() for schema, table in tables.items()}
    none = {name: empty(name) for name in EVENT_NAMES.values()}
    return Partition(spec.number, {**none, **named}, unread), loss


def _rows(spec: PartitionSpec) -> dict[Schema, int]:
    """Return how many records a partition has at most, of each schema that it has."""
    rows: Counter[int] = Counter()
    for piece in spec.pieces:
        chunks = piece.chunks
        for schema, count in zip(chunks["schema"].tolist(), chunks["count"].tolist(), strict=True):
            rows[schema] += count
    return {_SCHEMAS[schema]: count for schema, count in rows.items()}


_SCHEMAS = {int(schema): schema for schema in EVENT_NAMES}
_RECORD_BYTES = np.zeros(256, np.int64)
_RECORD_BYTES[list(RECORDS)] = [dtype.itemsize for dtype in RECORDS.values()]
_IS_EVENT = np.zeros(256, bool)
_IS_EVENT[list(EVENT_NAMES)] = True


def _events(chunks: np.ndarray) -> np.ndarray:
    events: np.ndarray = chunks[_IS_EVENT[chunks["schema"]]]
    return events


def _data_bytes(chunks: np.ndarray) -> np.ndarray:
    size: np.ndarray = chunks["count"] * _RECORD_BYTES[chunks["schema"]]
    return size


def _split(chunks: np.ndarray, target_bytes: int) -> Iterator[np.ndarray]:
    """Yield runs of consecutive chunks of about ``target_bytes``."""
    if len(chunks) == 0:
        return
    ends = np.cumsum(_data_bytes(chunks))
    parts = max(1, round(int(ends[-1]) / target_bytes))
    if parts == 1:
        yield chunks
        return
    number = np.minimum((ends - 1) * parts // max(1, int(ends[-1])), parts - 1)
    yield from np.split(chunks, np.flatnonzero(np.diff(number)) + 1)


def _records(piece: Piece, loss: ReadLoss) -> Iterator[tuple[Schema, int, np.ndarray]]:
    """Yield (schema, kernel's thread id, bytes of records) of each readable chunk of a piece.

    The bytes are valid until the next chunk is asked for: all are read into the same memory.
    """
    paths = {FROM_FILE: piece.path, FROM_RING: piece.ring}
    files: dict[int, FileView | str] = {}
    room = np.empty(int(piece.chunks["size_bytes"].max(initial=0)), np.uint8)
    with ExitStack() as stack:
        for chunk in map(ChunkRow._make, piece.chunks.tolist()):
            source = chunk.source
            if source not in files:
                files[source] = _open(paths[source], stack)
            data = files[source]
            raw = room[: chunk.size_bytes]
            reason = data if isinstance(data, str) else _fetch(data, chunk, raw)
            records = reason or _unpacked(raw, chunk)
            if isinstance(records, str):
                size = 0 if source == FROM_RING else chunk.size_bytes
                lost = paths[source], chunk.offset, size, chunk.schema, chunk.records, records
                loss.chunks.append(LostChunk(*lost))
                continue
            schema = _SCHEMAS[chunk.schema]
            if piece.cut and not piece.cut.holds(chunk.first_tsc, chunk.last_tsc):
                records, outside = _within(piece.cut, schema, records)
                loss.outside[piece.base.proc, int(schema)] += outside
            yield schema, chunk.thread, records


def _within(cut: Cut, schema: Schema, records: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the bytes of the records in a window, and how many records are not in it."""
    rows = records.view(RECORDS[schema])
    inside = cut.inside(schema, rows)
    kept = rows[inside]
    return kept.view(np.uint8), rows.size - kept.size


def _open(path: str, stack: ExitStack) -> FileView | str:
    """Open a file, or return why that is not possible."""
    try:
        return stack.enter_context(opened(path))
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _unpacked(raw: np.ndarray, chunk: ChunkRow) -> np.ndarray | str:
    """Return the bytes of a chunk's records, or why there are none."""
    try:
        return records_of(raw, chunk.schema, chunk.records, chunk.codec)
    except PackedError as error:
        return f"not unpacked: {error}"


def _fetch(data: FileView, chunk: ChunkRow, raw: np.ndarray) -> str:
    """Read a chunk's item, or a segment's records, into ``raw``; return why not, "" if done."""
    is_segment = chunk.source == FROM_RING
    try:
        if not data.read_into(chunk.data if is_segment else chunk.offset, raw):
            return "file shrunk"
    except OSError as error:
        return f"unreadable: {error.strerror}"
    if is_segment:
        # Looked at after its records: as long as it has its number, they were its own.
        key = chunk.schema, chunk.thread, chunk.seq, chunk.records, chunk.dropped, chunk.data
        segment = ring.Segment(chunk.offset, *key)
        data.forget()
        return "" if ring.is_unchanged(data, segment) else "ring changed"
    return "" if chunk.checked or items.is_intact(raw.data) else items.DAMAGED
