"""The items of a rank file, and what is damaged between them (``docs/format.md`` section 1).

Every byte of a file lies in exactly one span: a whole item, damage, or a cut tail.

A chunk's data is not touched by ``walk`` when its **frame fits**: the fixed prefix is as the
format says, its lengths agree with each other and with the record size, and it ends where the
next item (or the file) does. No single wrong byte gives a frame that fits and misleads the walk.
Such a chunk is one piece: if its checksum turns out wrong when the data is read, exactly its
bytes are damaged. So the accounting is the same whether the data was read or not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from sigmatrace.capture.bodies import ItemError
from sigmatrace.capture.crc import crc32c
from sigmatrace.capture.view import FileView
from sigmatrace.trace_format import (
    CODEC_PACKED,
    CODEC_RAW,
    ITEM_BODY_MAX_BYTES,
    ITEM_MAGIC,
    ITEM_PREFIX_BYTES,
    PACKED_FACTOR,
    RECORDS,
    Item,
)

FileData = bytes | FileView
"""A whole file: in memory, or read piece by piece."""

WHOLE, DAMAGED, CUT = "whole", "damaged", "cut"

_PREFIX = struct.Struct(">6sBIBBI")
_BEGIN = (ITEM_MAGIC, 0xCE)
_CRC_AT, _KIND_AT, _LENGTH_AT = 7, 11, 13
_CRC_FROM = _KIND_AT
_CHUNK = struct.Struct(_PREFIX.format + "9sB8sI5sQ7sI11sQ10sQ9sQ7sB6sI")
_IS_CHUNK = int(Item.CHUNK)
_CHUNK_KIND = bytes((_IS_CHUNK,))
_CHUNK_KEYS = (
    0xCE,
    b"\x89\xa6schema\xcc",
    b"\xa6thread\xce",
    b"\xa3seq\xcf",
    b"\xa5count\xce",
    b"\xa9first_tsc\xcf",
    b"\xa8last_tsc\xcf",
    b"\xa7dropped\xcf",
    b"\xa5codec\xcc",
    b"\xa4data\xc6",
)
CHUNK_HEAD_BYTES = _CHUNK.size
"""Bytes of a chunk item before its data."""
_CODEC_AT = CHUNK_HEAD_BYTES - 4 - len(_CHUNK_KEYS[-1]) - 1
_RECORD_BYTES = {int(schema): dtype.itemsize for schema, dtype in RECORDS.items()}
_RUN_MAX = 1024
_LOOK_BYTES = 8 << 10
_SEARCH_FACTOR = 64
_SEARCH_SLACK_BYTES = 1 << 20


class Chunk(NamedTuple):
    """The prefix of a chunk: everything but its data."""

    schema: int
    thread: int
    seq: int
    records: int
    first_tsc: int
    last_tsc: int
    dropped: int
    codec: int
    data_bytes: int


class Span(NamedTuple):
    """Some consecutive bytes of a rank file.

    Attributes:
        what: ``WHOLE``, ``DAMAGED`` or ``CUT``.
        offset: Of the first byte.
        size: Bytes.
        kind: Kind of the item; -1 if it is not whole.
        chunk: The prefix of a whole chunk of the format's layout.
        checked: The checksum has been verified. Only chunks can be whole and unchecked.
    """

    what: str
    offset: int
    size: int
    kind: int = -1
    chunk: Chunk | None = None
    checked: bool = False


Run: TypeAlias = list[tuple[int, Chunk]]
"""Consecutive chunks whose frames fit: offset of the item, and prefix. None is checked."""


class Small(NamedTuple):
    """Consecutive intact items, none of them a chunk.

    Attributes:
        items: Offset, kind and body of each.
    """

    items: list[tuple[int, int, bytes]]


def walk(data: FileData, *, verify: bool = False) -> Iterator[Span]:
    """Yield the spans of a rank file in order; together they cover every byte once.

    Args:
        data: The whole file.
        verify: Also verify chunks whose frame fits, which reads all data.
    """
    for found in stretches(data, verify=verify):
        if isinstance(found, Span):
            yield found
        elif isinstance(found, Small):
            for at, kind, raw in found.items:
                yield Span(WHOLE, at, ITEM_PREFIX_BYTES + len(raw), kind, checked=True)
        else:
            for at, chunk in found:
                yield Span(WHOLE, at, CHUNK_HEAD_BYTES + chunk.data_bytes, _IS_CHUNK, chunk)


def stretches(data: FileData, *, verify: bool = False) -> Iterator[Span | Run | Small]:
    """Yield the same as ``walk``, items that need the same care together."""
    search = _Search(data)
    at = 0
    while at < len(data):
        kind_at = at + _KIND_AT
        if data[kind_at : kind_at + 1] != _CHUNK_KIND:
            small, end = _small(data, at)
            if small:
                yield Small(small)
                at = end
                continue
        elif not verify:
            run, end = _run(data, at)
            if run:
                yield run
                at = end
                continue
        span = _item_at(data, at, verify)
        if span is not None:
            yield span
            at += span.size
            continue
        found = search.after(at)
        end = found.offset if found else len(data)
        is_cut = found is None and _reaches_beyond(data, at)
        yield Span(CUT if is_cut else DAMAGED, at, end - at)
        at = end
        if found is not None:
            yield found
            at += found.size


def body(data: FileData, span: Span) -> bytes:
    """Return the bytes of the body of a whole item."""
    return data[span.offset + ITEM_PREFIX_BYTES : span.offset + span.size]


def readable(data: FileData, span: Span) -> Chunk:
    """Return the prefix of a whole chunk that this reader can read.

    Raises:
        ItemError: It cannot.
    """
    chunk = span.chunk
    if chunk is None:
        raise ItemError("layout of a chunk")
    if chunk.codec not in (CODEC_RAW, CODEC_PACKED):
        raise ItemError(f"codec {chunk.codec}")
    record_bytes = _RECORD_BYTES.get(chunk.schema)
    if record_bytes is None:
        raise ItemError(f"schema {chunk.schema}")
    if not holds(data, span.offset + CHUNK_HEAD_BYTES, chunk, record_bytes):
        raise ItemError(f"record size of schema {chunk.schema}")
    return chunk


def is_intact(item: bytes | memoryview) -> bool:
    """Return whether the item that these bytes are has a right checksum."""
    return bool(_PREFIX.unpack_from(item)[2] == crc32c(item[_CRC_FROM:]))


def with_data(item: bytes | memoryview, codec: int, data: bytes) -> bytes:
    """Return a chunk item with other data, of another codec; ``item`` need not be whole."""
    head = bytearray(item[:CHUNK_HEAD_BYTES])
    head[_CODEC_AT] = codec
    struct.pack_into(">I", head, CHUNK_HEAD_BYTES - 4, len(data))
    struct.pack_into(">I", head, _LENGTH_AT, CHUNK_HEAD_BYTES - ITEM_PREFIX_BYTES + len(data))
    checked = bytes(head[_CRC_FROM:]) + data
    struct.pack_into(">I", head, _CRC_AT, crc32c(checked))
    return bytes(head[:_CRC_FROM]) + checked


def holds(data: FileData, first: int, chunk: Chunk, record_bytes: int) -> bool:
    """Return whether the data of a chunk, from ``first`` on, can hold as many records as it says.

    Of packed data this is what its first number says, within what the format allows.
    """
    size = chunk.records * record_bytes
    if chunk.codec == CODEC_RAW:
        return size == chunk.data_bytes
    most = min(ITEM_BODY_MAX_BYTES, PACKED_FACTOR * chunk.data_bytes)
    told = int.from_bytes(data[first : first + min(4, chunk.data_bytes)], "little")
    return chunk.codec == CODEC_PACKED and 0 < size <= most and told == size


def _small(data: FileData, at: int) -> tuple[list[tuple[int, int, bytes]], int]:
    """Return what follows at ``at`` as ``Small.items``, as far as one look goes, and its end."""
    look = data[at : at + _LOOK_BYTES]
    found = []
    begin = 0
    while begin + ITEM_PREFIX_BYTES <= len(look):
        magic, u32, checksum, kind, u32_too, length = _PREFIX.unpack_from(look, begin)
        first = begin + ITEM_PREFIX_BYTES
        end = first + length
        is_small = magic == ITEM_MAGIC and u32 == u32_too == 0xCE and kind < 0x80
        if not is_small or kind == _IS_CHUNK or end > len(look):
            break
        if checksum != crc32c(look[begin + _CRC_FROM : end]):
            break
        found.append((at + begin, kind, look[first:end]))
        begin = end
    return found, at + begin


def _frame(head: bytes) -> tuple[int, int] | None:
    """Return (kind, bytes of the whole item) if an item's bytes begin with a well-formed prefix."""
    if len(head) < ITEM_PREFIX_BYTES:
        return None
    magic, u32, _, kind, u32_too, length = _PREFIX.unpack_from(head)
    well_formed = magic == ITEM_MAGIC and u32 == u32_too == 0xCE and kind < 0x80
    if not well_formed or length > ITEM_BODY_MAX_BYTES:
        return None
    return kind, ITEM_PREFIX_BYTES + length


def _item_at(data: FileData, at: int, verify: bool) -> Span | None:
    """Return the item at ``at``; a chunk whose frame fits may come back as damaged."""
    head = data[at : at + CHUNK_HEAD_BYTES]
    frame = _frame(head)
    if frame is None or at + frame[1] > len(data):
        return None
    kind, size = frame
    chunk = _chunk(head) if kind == _IS_CHUNK else None
    if is_intact(data[at : at + size]):
        return Span(WHOLE, at, size, kind, chunk, checked=True)
    fits = verify and bool(_run(data, at, most=1)[0])
    return Span(DAMAGED, at, size) if fits else None


def _chunk(head: bytes) -> Chunk | None:
    """Return the prefix of a chunk if an item's bytes begin as the format says of one."""
    if len(head) < CHUNK_HEAD_BYTES or head[_KIND_AT] != _IS_CHUNK:
        return None
    fields = _CHUNK.unpack_from(head)
    if fields[4::2] != _CHUNK_KEYS or fields[:2] != _BEGIN:
        return None
    chunk = Chunk._make(fields[7::2])
    length = CHUNK_HEAD_BYTES - ITEM_PREFIX_BYTES + chunk.data_bytes
    return chunk if fields[5] == length <= ITEM_BODY_MAX_BYTES else None


def _run(data: FileData, at: int, most: int = _RUN_MAX) -> tuple[Run, int]:
    """Return the chunks from ``at`` on whose frames fit, and where they end."""
    run: Run = []
    head = data[at : at + CHUNK_HEAD_BYTES]
    while len(run) < most:
        chunk = _chunk(head)
        record_bytes = _RECORD_BYTES.get(chunk.schema) if chunk else None
        if chunk is None or record_bytes is None:
            break
        first = at + CHUNK_HEAD_BYTES
        end = first + chunk.data_bytes
        if end > len(data) or not holds(data, first, chunk, record_bytes):
            break
        head = data[end : end + CHUNK_HEAD_BYTES]
        if not ITEM_MAGIC.startswith(head[: len(ITEM_MAGIC)]):
            break
        run.append((at, chunk))
        at = end
    return run, at


def _reaches_beyond(data: FileData, at: int) -> bool:
    """Return whether an item begins at ``at`` whose end lies beyond the file's."""
    if at + ITEM_PREFIX_BYTES > len(data):
        return ITEM_MAGIC.startswith(data[at : at + len(ITEM_MAGIC)])
    frame = _frame(data[at : at + ITEM_PREFIX_BYTES])
    return frame is not None and at + frame[1] > len(data)


class _Search:
    """Looks for the next intact item after a damaged one.

    Bytes checksummed in vain are bounded by a multiple of the file's size, so that a hostile
    file full of false beginnings takes linear time; beyond that the rest is damaged.
    """

    def __init__(self, data: FileData) -> None:
        self._data = data
        self._budget = _SEARCH_FACTOR * len(data) + _SEARCH_SLACK_BYTES

    def after(self, offset: int) -> Span | None:
        """Return the first intact item that begins after ``offset``."""
        data = self._data
        at = offset
        while self._budget > 0:
            at = data.find(ITEM_MAGIC, at + 1)
            if at < 0:
                return None
            head = data[at : at + CHUNK_HEAD_BYTES]
            frame = _frame(head)
            if frame is None or at + frame[1] > len(data):
                continue
            kind, size = frame
            if is_intact(data[at : at + size]):
                chunk = _chunk(head) if kind == _IS_CHUNK else None
                return Span(WHOLE, at, size, kind, chunk, checked=True)
            self._budget -= size
        return None
