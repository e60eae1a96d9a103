"""Rewrites one rank file with packed chunks, or with raw ones again.

Every item that is no such chunk, and every damaged byte, is copied as it is. So the way back gives
the same bytes, and a reader finds the same in both.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sigmatrace.capture import header as headers
from sigmatrace.capture import items, ring
from sigmatrace.capture.bodies import Decoder, ItemError
from sigmatrace.capture.packed import Column, PackedError, choose, pack, records_of, unpack
from sigmatrace.capture.view import FileView, opened
from sigmatrace.trace_format import CODEC_PACKED, CODEC_RAW, RECORDS, Item, Schema

Bytes = bytes | memoryview
Turn = Callable[[Bytes, items.Chunk], Bytes]
"""Makes another chunk item of one."""

_LAYOUTS = {int(schema): dtype for schema, dtype in RECORDS.items()}
_CHOICE_CHUNKS = 128
_WORSE = 1.25
"""Bytes of a record, to those of the chunk for which its way was chosen, that ask for a new one."""
_COPY_BYTES = 1 << 20
_PAGE_BYTES = 4096
_PAD_BYTES = -items.CHUNK_HEAD_BYTES % 8
"""Before a chunk item in memory, so that its records lie as their numbers need."""


@dataclass
class Rewritten:
    """What became of a rank file.

    Attributes:
        path: The original.
        before: Its bytes.
        after: Bytes of the new file.
        records: Records of events in chunks that are whole.
        record_bytes: Bytes of the chunks that hold them, in the new file.
        chunks: Chunks that were packed, or unpacked.
        damaged: Bytes that are in no whole item; they were copied.
        unsuited: Packed chunks, whole, that cannot be unpacked; they were copied.
        is_open: The file has no end item.
        is_foreign: There is no whole item in it.
        is_copy: The new file is a copy of the old one.
    """

    path: Path
    before: int
    after: int = 0
    records: int = 0
    record_bytes: int = 0
    chunks: int = 0
    damaged: int = 0
    unsuited: int = 0
    is_open: bool = True
    is_foreign: bool = True
    is_copy: bool = False


@dataclass
class _Choice:
    """How the chunks of a schema are packed.

    It is chosen anew where it becomes worse, and from time to time.
    """

    columns: Sequence[Column]
    record_bytes: float
    """Of the chunk for which it was chosen."""
    left: int = _CHOICE_CHUNKS
    """Chunks until then."""


class _Room:
    """Memory that is used again: new memory costs more than what is done with it."""

    def __init__(self) -> None:
        self._whole = np.empty(0, np.uint8)

    def of(self, size: int) -> np.ndarray:
        """Return so many bytes, u1, which hold anything; those of the last call are gone."""
        if self._whole.size < size:
            self._whole = np.empty(size, np.uint8)
        return self._whole[:size]


@dataclass
class Packer:
    """Packs the chunks of one file, with what it learned from those before."""

    _choices: dict[int, _Choice] = field(default_factory=dict)
    _again: _Room = field(default_factory=_Room)

    def __call__(self, item: Bytes, chunk: items.Chunk) -> Bytes:
        """Return the packed chunk item; the same one if it is packed already, or as small raw."""
        dtype = RECORDS[Schema(chunk.schema)]
        if chunk.codec != CODEC_RAW or chunk.records == 0:
            return item
        raw = np.frombuffer(item, np.uint8)
        records = raw[items.CHUNK_HEAD_BYTES :]
        data = self._packed(records, chunk, dtype)
        if len(data) >= records.size:
            return item
        again = self._again.of(records.size)
        unpack(np.frombuffer(data, np.uint8), again, dtype.itemsize)
        if not np.array_equal(again.view(np.uint32), records.view(np.uint32)):
            raise AssertionError(f"a chunk of schema {chunk.schema} does not come back")
        return items.with_data(item, CODEC_PACKED, data)

    def _packed(self, records: np.ndarray, chunk: items.Chunk, dtype: np.dtype) -> bytes:
        """Return the packed data of a chunk."""
        choice = self._choices.pop(chunk.schema, None)
        columns = choice.columns if choice else choose(records, dtype)
        data = pack(records, columns)
        each = len(data) / chunk.records
        choice = choice or _Choice(columns, each)
        choice.left -= 1
        if choice.left and each <= choice.record_bytes * _WORSE:
            self._choices[chunk.schema] = choice
        return data


def unpack_item(item: Bytes, chunk: items.Chunk) -> Bytes:
    """Return the raw chunk item of a packed one, the same one if it is raw.

    Raises:
        PackedError: The packed data is not what the format says.
    """
    if chunk.codec != CODEC_PACKED:
        return item
    raw = np.frombuffer(item, np.uint8)
    records = records_of(raw, chunk.schema, chunk.records, chunk.codec)
    return items.with_data(item, CODEC_RAW, records.tobytes())


def rewrite(path: Path, target: Path, *, back: bool = False) -> Rewritten:
    """Write a rank file anew, packed or unpacked.

    Where damage is such that the new file would not be read as the old one, it is a copy.

    Args:
        path: The rank file.
        target: The new file, which must not be there.
        back: Unpack instead.

    Raises:
        ChunkFormatError: The file is of a major version that is not known.
        OSError: A file cannot be read, or the new one not be written.
    """
    turn: Turn = unpack_item if back else Packer()
    with opened(path) as data, target.open("x+b") as out:
        new = _NewFile(data, out, Rewritten(path, len(data)))
        new.write(turn)
        if not new.is_read_alike():
            out.seek(0)
            out.truncate()
            new = _NewFile(data, out, Rewritten(path, len(data), is_copy=True))
            new.write(lambda item, chunk: item)
        shutil.copystat(path, target)
    return new.done


def copy_ring(path: Path, target: Path) -> bool:
    """Copy a ring file; return whether nothing was written into it in the meantime.

    Raises:
        OSError: A file cannot be read, or the new one not be written.
    """
    with opened(path) as data, target.open("xb") as out:
        before = list(ring.segments(data))
        for start in range(0, len(data), _PAGE_BYTES):
            page = data[start : start + _PAGE_BYTES]
            if any(page):  # most of a ring is a hole, and stays one
                out.seek(start)
                out.write(page)
        out.truncate(len(data))
        data.forget()
        return before == list(ring.segments(data))


class _NewFile:
    """Writes a rank file's items and damage to a new file, chunks turned."""

    def __init__(self, data: FileView, out: BinaryIO, done: Rewritten) -> None:
        self._data = data
        self._out = out
        self._spans: list[tuple[str, int]] = []
        self._item = _Room()
        self.done = done

    def write(self, turn: Turn) -> None:
        """Write everything."""
        for span in items.walk(self._data):
            start = self._out.tell()
            if span.what != items.WHOLE:
                self.done.damaged += span.size
                self._copy(span)
            elif span.kind == Item.CHUNK:
                self._chunk(span, turn)
            else:
                self._other(span)
            self._spans.append((span.what, self._out.tell() - start))
        self._out.flush()
        self.done.after = self._out.tell()

    def is_read_alike(self) -> bool:
        """Return whether a reader finds the same items and the same damage in both files."""
        found = items.walk(FileView(self._out.fileno()))
        return [(span.what, span.size) for span in found] == self._spans

    def _chunk(self, span: items.Span, turn: Turn) -> None:
        done, chunk = self.done, span.chunk
        item = self._read(span)
        if not (span.checked or items.is_intact(item)):
            done.damaged += span.size
            self._out.write(item)
            return
        done.is_foreign = False
        first = span.offset + items.CHUNK_HEAD_BYTES
        dtype = _LAYOUTS.get(chunk.schema) if chunk else None
        if not chunk or not dtype or not items.holds(self._data, first, chunk, dtype.itemsize):
            self._out.write(item)
            return
        try:
            new = turn(item, chunk)
        except PackedError:
            new = item
            done.unsuited += 1
        done.chunks += new is not item
        if chunk.schema != Schema.CHANNEL:
            done.records += chunk.records
            done.record_bytes += len(new)
        self._out.write(new)

    def _read(self, span: items.Span) -> Bytes:
        """Return an item, which is there until the next one is read."""
        room = self._item.of(_PAD_BYTES + span.size)[_PAD_BYTES:]
        if self._data.read_into(span.offset, room):
            return room.data
        return self._data[span.offset : span.offset + span.size]  # the file became shorter

    def _other(self, span: items.Span) -> None:
        done = self.done
        done.is_foreign = False
        done.is_open &= span.kind != Item.END
        if span.kind == Item.HEADER:
            with suppress(ItemError):
                body = items.body(self._data, span)
                headers.from_body(body, done.path, Decoder())
        self._copy(span)

    def _copy(self, span: items.Span) -> None:
        for start in range(span.offset, span.offset + span.size, _COPY_BYTES):
            end = min(start + _COPY_BYTES, span.offset + span.size)
            self._out.write(self._data[start:end])
