"""The index of one rank file: everything but the data of its events."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from sigmatrace.capture import end as ends
from sigmatrace.capture import header as headers
from sigmatrace.capture import items, ring
from sigmatrace.capture.bodies import Decoder, ItemError
from sigmatrace.capture.end import End
from sigmatrace.capture.false_ends import false_ends
from sigmatrace.capture.header import Header
from sigmatrace.capture.names.fields import AllObjects, integer, text
from sigmatrace.capture.objects import KNOWN_TYPES, object_rows, thread_names
from sigmatrace.capture.packed import PackedError, records_of
from sigmatrace.capture.rank_files import RING_SUFFIX, SUFFIX
from sigmatrace.capture.tables import Rows
from sigmatrace.capture.view import opened
from sigmatrace.trace_format import (
    CODEC_RAW,
    ITEM_MAGIC,
    ITEM_PREFIX_BYTES,
    RECORDS,
    Item,
    Schema,
)

FROM_FILE, FROM_RING = 0, 1


class ChunkRow(NamedTuple):
    """A readable chunk: one row of the dtype ``CHUNK``.

    Attributes:
        offset: Of its item, or of its ring area.
        size_bytes: Of its item; of a ring area, bytes of records.
        data: Offset of the first record.
        records: How many.
        first_tsc, last_tsc: As in its prefix.
        dropped: As in its prefix.
        source: ``FROM_FILE`` or ``FROM_RING``.
        checked: The checksum has been verified (a ring has none).
        codec: As in its prefix; a ring's records are raw.
    """

    offset: int
    size_bytes: int
    data: int
    records: int
    seq: int
    first_tsc: int
    last_tsc: int
    dropped: int
    thread: int
    schema: int
    source: int
    checked: bool
    codec: int = CODEC_RAW


CHUNK = np.dtype(
    list(
        zip(
            [name if name != "records" else "count" for name in ChunkRow._fields],
            ["i8", "i8", "i8", "i8", "u8", "u8", "u8", "u8", "u4", "u1", "u1", "u1", "u1"],
            strict=True,
        )
    )
)
"""``ChunkRow`` as an array; ``records`` is named ``count`` there, as in the format."""

_SCHEMA_AT = ChunkRow._fields.index("schema")


class LostChunk(NamedTuple):
    """A chunk whose records cannot be had.

    Attributes:
        path: Its file.
        offset: Of its item (or ring area).
        size_bytes: Of its item; 0 for a ring area.
        schema: As its prefix says, like ``records``.
        records: How many.
        reason: "damaged", or "ring changed".
    """

    path: str
    offset: int
    size_bytes: int
    schema: int
    records: int
    reason: str


_CHANNEL = int(Schema.CHANNEL)
_NO_CHANNELS = np.empty(0, RECORDS[Schema.CHANNEL])


@dataclass
class FileIndex:
    """What is in a rank file (and its ring file), without the data of events.

    Attributes:
        path: The rank file.
        size_bytes: Its size when it was read.
        problem: "" or why nothing of it can be used: "foreign", "unreadable", "empty".
        header: Facts of the process.
        chunks: Readable chunks, dtype ``CHUNK``, by offset; those of the ring come last.
        channels: Channel records, one per id, ordered by id.
        channel_rows: Channel records read.
        objects: Rows of ``objects.OBJECT_TABLES`` without the column ``proc``, by table.
        threads: Names of threads by kernel thread id.
        clocks: Clock pairs as (tsc, wall_ns, width_tsc, source).
        end: Totals, None if the file has no end item.
        damage: (offset, bytes, what) of everything that is not a whole known item.
        whole_bytes: Bytes in whole items.
        lost: Chunks of channels that turned out damaged.
        unknown: What was skipped because this reader does not know it, counted by what.
        unreadable: Why a file could not be read, by its path: this one, or its ring file.
    """

    path: str
    size_bytes: int
    problem: str = ""
    header: Header = field(default_factory=lambda: Header("", -1, 0))
    chunks: np.ndarray = field(default_factory=lambda: np.empty(0, CHUNK))
    channels: np.ndarray = field(default_factory=lambda: _NO_CHANNELS)
    channel_rows: int = 0
    objects: dict[str, Rows] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    clocks: list[tuple[int, int, int, str]] = field(default_factory=list)
    end: End | None = None
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    whole_bytes: int = 0
    lost: list[LostChunk] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def ring(self) -> str:
        """Path of the ring file beside the rank file."""
        return self.path.removesuffix(SUFFIX) + RING_SUFFIX

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written into the file."""
        return not self.size_bytes and self.problem != "unreadable"

    def forget_objects(self) -> None:
        """Let go of channels and objects, once the run's tables have them."""
        self.channels, self.objects, self.clocks = _NO_CHANNELS, {}, []

    def miss(self, path: str, what: str, error: OSError) -> None:
        """Note that this file, or its ring file, could not be read."""
        why = error.strerror or str(error)
        self.unreadable[path] = why
        self.damage.append((0, 0, f"{what}: {why}"))

    def lose(self, offset: int, size: int, schema: int, count: int) -> None:
        """Count a whole chunk as damaged after all."""
        self.whole_bytes -= size
        self.damage.append((offset, size, items.DAMAGED))
        self.lost.append(LostChunk(self.path, offset, size, schema, count, "damaged"))


def index_file(path: str | Path) -> FileIndex:
    """Read a rank file without its event data.

    Raises:
        ChunkFormatError: The file has a major version that this reader does not know.
    """
    path = Path(path)
    try:
        with opened(path) as data:
            builder = _Builder(path, len(data), data[0 : len(ITEM_MAGIC)])
            builder.read_items(data)
    except OSError as error:
        index = FileIndex(str(path), 0, "unreadable")
        index.miss(index.path, "unreadable", error)
        return index
    ring_path = builder.index.ring
    try:
        with opened(ring_path) as data:
            builder.read_ring(data)
    except OSError as error:
        if os.path.lexists(ring_path):  # most processes leave none
            builder.index.miss(ring_path, "ring file unreadable", error)
    return builder.finish()


class _Builder:
    """Sorts the items of one file, and the segments of its ring."""

    def __init__(self, path: Path, size_bytes: int, begin: bytes) -> None:
        self.path = path
        self.begins_well = ITEM_MAGIC.startswith(begin)
        self.index = FileIndex(str(path), size_bytes)
        self.decoder = Decoder()
        self.header: Header | None = None
        self.objects = AllObjects()
        self.chunks: list[tuple[int, ...]] = []  # as ``ChunkRow``
        self.channels: list[np.ndarray] = []

    def read_items(self, data: items.FileData) -> None:
        """Walk the rank file once."""
        for found in items.stretches(data):
            if isinstance(found, items.Small):
                for offset, kind, raw in found.items:
                    self._small(offset, kind, raw)
            elif isinstance(found, list):
                self._run(data, found)
            elif found.what == items.WHOLE:
                self._whole(data, found)
            else:
                self.index.damage.append((found.offset, found.size, found.what))

    def read_ring(self, data: items.FileData) -> None:
        """Add the segments of the ring file that are not in the rank file."""
        written = {(x.schema, x.thread, x.seq) for x in map(ChunkRow._make, self.chunks)}
        for segment in ring.tail(data, written):
            first, last = ring.times(data, segment)
            size = segment.records * RECORDS[Schema(segment.schema)].itemsize
            where = segment.offset, size, segment.first, segment.records
            what = segment.seq, first, last, segment.dropped, segment.thread, segment.schema
            self.chunks.append(ChunkRow(*where, *what, FROM_RING, True))
            if segment.schema == Schema.CHANNEL:
                raw = data[segment.first : segment.first + size]
                self._take_channels(raw, segment.records, CODEC_RAW)

    def finish(self) -> FileIndex:
        """Return the index of all that was read."""
        index = self.index
        header = self.header or headers.from_name(self.path)
        if not index.size_bytes:
            index.damage.append((0, 0, "empty"))
        if header is None or not (self.begins_well or index.whole_bytes):
            problem = "foreign" if index.size_bytes else "empty"
            damage = [(0, index.size_bytes, problem)]
            return FileIndex(index.path, index.size_bytes, problem, damage=damage)
        index.header = header
        index.chunks = np.array(self.chunks, CHUNK)
        with suppress(OSError):  # who reads the chunks says so
            _lose_false_ends(index)
        if not header.schemas.issuperset({row[_SCHEMA_AT] for row in self.chunks}):
            _leave_out_unknown_layouts(index)
        if self.channels and Schema.CHANNEL in header.schemas:
            rows = np.concatenate(self.channels) if len(self.channels) > 1 else self.channels[0]
            index.channel_rows = len(rows)
            index.channels = _first_of_each(rows)
        index.objects = object_rows(self.objects, index.channels, header.host)
        index.threads = thread_names(self.objects)
        return index

    def _run(self, data: items.FileData, run: items.Run) -> None:
        for at, chunk in run:
            size = items.CHUNK_HEAD_BYTES + chunk.data_bytes
            if chunk.schema == _CHANNEL:
                self._chunk(data, items.Span(items.WHOLE, at, size, Item.CHUNK, chunk))
            else:
                self.index.whole_bytes += size
                self._keep(at, size, chunk, checked=False)

    def _whole(self, data: items.FileData, span: items.Span) -> None:
        if span.kind == Item.CHUNK:
            self._chunk(data, span)
        else:
            self._small(span.offset, span.kind, items.body(data, span))

    def _small(self, offset: int, kind: int, raw: bytes) -> None:
        size = ITEM_PREFIX_BYTES + len(raw)
        self.index.whole_bytes += size
        take = self._TAKE.get(kind)
        try:
            if take is None:
                raise ItemError(f"item kind {kind}")
            take(self, raw)
        except ItemError as error:
            self._skip(offset, size, error)

    def _skip(self, offset: int, size: int, error: ItemError) -> None:
        self.index.unknown[str(error)] += 1
        self.index.damage.append((offset, size, "unknown"))

    def _header(self, raw: bytes) -> None:
        header = headers.from_body(raw, self.path, self.decoder)
        if self.header is not None:
            raise ItemError("a second header")
        self.header = header

    def _chunk(self, data: items.FileData, span: items.Span) -> None:
        self.index.whole_bytes += span.size
        try:
            chunk = items.readable(data, span)
            if chunk.schema == _CHANNEL:
                item = data[span.offset : span.offset + span.size]
                if not (span.checked or items.is_intact(item)):
                    self.index.lose(span.offset, span.size, chunk.schema, chunk.records)
                    return
                self._take_channels(item, chunk.records, chunk.codec)
        except ItemError as error:
            self._skip(span.offset, span.size, error)
            return
        self._keep(span.offset, span.size, chunk, checked=span.checked)

    def _keep(self, at: int, size: int, chunk: items.Chunk, *, checked: bool) -> None:
        schema, thread, seq, records, first_tsc, last_tsc, drops, codec, _ = chunk
        where = at, size, at + items.CHUNK_HEAD_BYTES, records
        what = seq, first_tsc, last_tsc, drops, thread, schema
        self.chunks.append((*where, *what, FROM_FILE, checked, codec))

    def _take_channels(self, raw: bytes, records: int, codec: int) -> None:
        try:
            channels = records_of(np.frombuffer(raw, np.uint8), Schema.CHANNEL, records, codec)
        except PackedError as error:
            raise ItemError(f"packed data of channels: {error}") from error
        self.channels.append(channels.view(RECORDS[Schema.CHANNEL]))

    def _object(self, raw: bytes) -> None:
        fields = self.decoder.decode(raw)
        number, kind = integer(fields, "id"), text(fields, "type")
        if number == 0:
            raise ItemError("an object without id")
        if kind not in KNOWN_TYPES:
            raise ItemError(f"object type {kind[:40]!r}")
        known = self.objects.setdefault(number, fields)
        if known is not fields:
            known.update({key: value for key, value in fields.items() if key != "t_tsc"})

    def _clock(self, raw: bytes) -> None:
        fields = self.decoder.decode(raw)
        tsc, wall_ns = integer(fields, "tsc", 64), integer(fields, "wall_ns", 63)
        if tsc == 0 or wall_ns == 0:
            raise ItemError("a clock pair without readings")
        pair = tsc, wall_ns, integer(fields, "width_tsc", 64), text(fields, "source")
        self.index.clocks.append(pair)

    def _end(self, raw: bytes) -> None:
        self.index.end = ends.from_body(raw, self.decoder)

    _TAKE: ClassVar[Mapping[int, Callable[[_Builder, bytes], None]]] = {
        Item.HEADER: _header,
        Item.OBJECT: _object,
        Item.CLOCK: _clock,
        Item.END: _end,
    }


def _first_of_each(channels: np.ndarray) -> np.ndarray:
    """Return the channels by ascending id, of each the first."""
    ids = channels["id"]
    is_ascending = bool((ids[1:] > ids[:-1]).all())
    return channels if is_ascending else channels[np.unique(ids, return_index=True)[1]]


def _lose_false_ends(index: FileIndex) -> None:
    """Lose chunks that are damaged where they say when the process began or ended to record."""
    places = false_ends(index.path, index.chunks, [pair[0] for pair in index.clocks])
    for chunk in index.chunks[places]:
        index.lose(*(int(chunk[name]) for name in ("offset", "size_bytes", "schema", "count")))
    index.chunks = np.delete(index.chunks, places)


def _leave_out_unknown_layouts(index: FileIndex) -> None:
    """Keep the chunks whose records are, as the header describes them, laid out as here."""
    known = np.isin(index.chunks["schema"], list(index.header.schemas))
    for chunk in index.chunks[~known]:
        index.unknown[f"layout of schema {chunk['schema']}"] += 1
        if chunk["source"] == FROM_FILE:
            index.damage.append((int(chunk["offset"]), int(chunk["size_bytes"]), "unknown"))
    index.chunks = index.chunks[known]


def dropped(chunks: np.ndarray) -> int:
    """Return the drops that chunks tell of: the last count of each schema and thread."""
    key = chunks["schema"].astype(np.uint64) << np.uint64(32) | chunks["thread"]
    return sum(int(chunks["dropped"][key == one].max()) for one in np.unique(key))
