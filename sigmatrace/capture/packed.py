"""Codec 1 of chunks: columns as differences in planes of bytes (``docs/format.md`` section 1.6).

A column can be predicted from the record before, or from the latest one that has the same key in
another column (the same channel: the next ordinal). Which is best, ``choose`` tries on the data.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sigmatrace.capture.items import CHUNK_HEAD_BYTES
from sigmatrace.trace_format import CODEC_RAW, PACKED_FACTOR, RECORDS

NONE, PREVIOUS, EQUAL = 0, 1, 2
"""What predicts a column: its base, the record before, the latest one of the same key."""
KEYS = 4096
"""Keys told apart: by their low 12 bits."""
HEAD = struct.Struct("<IB")
"""Bytes of the records, and columns: how packed data begins."""
_COLUMN = struct.Struct("<BBBBBQ")
_SIZE = struct.Struct("<I")
_RECORD_BYTES = {int(schema): dtype.itemsize for schema, dtype in RECORDS.items()}
_SAMPLE_RECORDS = 1024
_KEY_REPEATS = 2


class Column(NamedTuple):
    """How one column is predicted.

    Attributes:
        at: Offset in the record, bytes, a multiple of 4.
        width: Bytes, 4 or 8.
        how: ``NONE``, ``PREVIOUS`` or ``EQUAL``.
        key: ``EQUAL``: offset of a column that stands before this one.
    """

    at: int
    width: int
    how: int = NONE
    key: int = 0


class PackedError(ValueError):
    """The data of a packed chunk is not what the format says."""


def records_of(raw: np.ndarray, schema: int, records: int, codec: int) -> np.ndarray:
    """Return the bytes of the records of a chunk, u1; those of a raw one are part of ``raw``.

    Args:
        raw: The chunk's whole item, u1; if its records are raw, anything that they end.
        schema: Of the records.
        records: How many.
        codec: ``CODEC_RAW`` or ``CODEC_PACKED``.

    Raises:
        PackedError: The packed data is not what the format says.
    """
    record_bytes = _RECORD_BYTES[schema]
    size = records * record_bytes
    if codec == CODEC_RAW:
        return raw[raw.size - size :]
    out = np.empty(size, np.uint8)
    unpack(raw[CHUNK_HEAD_BYTES:], out, record_bytes)
    return out


def pack(records: np.ndarray, columns: Sequence[Column]) -> bytes:
    """Return the packed data of a chunk.

    Args:
        records: Their bytes, u1, at least one record.
        columns: Every byte of a record is in exactly one.
    """
    told, planes = _split(records, sum(column.width for column in columns), columns)
    heads = [_COLUMN.pack(*column, *one) for column, one in zip(columns, told, strict=True)]
    stored = _stored(planes)
    begin = HEAD.pack(records.size, len(columns)), *heads, _SIZE.pack(len(stored)), stored
    return b"".join(begin).ljust(-(-records.size // PACKED_FACTOR), b"\0")


def unpack(data: np.ndarray, out: np.ndarray, record_bytes: int) -> None:
    """Fill ``out`` with the records of a packed chunk.

    Args:
        data: The chunk's packed data, u1.
        out: Bytes of at least one record, u1, contiguous, at a multiple of 4.
        record_bytes: Of one record.

    Raises:
        PackedError: The data is not what the format says; ``out`` then holds anything.
    """
    from sigmatrace.capture.kernels.pack import restore

    reader = _Reader(data)
    size, count = reader.take(HEAD)
    if size != out.size:
        raise PackedError("another size of records")
    told = np.array([reader.take(_COLUMN) for _ in range(count)], np.uint64).reshape(count, 6)
    columns, planes = told[:, :4].astype(np.int64), told[:, 4].astype(np.int64)
    _check(columns.tolist(), planes.tolist(), record_bytes)
    records = out.size // record_bytes
    stored = reader.planes(int(planes.sum()) * records)
    latest, rests = np.empty(KEYS, np.uint64), np.empty(records, np.uint64)
    words, step = out.view(np.uint32), record_bytes // 4
    restore(stored, step, columns, told[:, 5].copy(), planes, latest, rests, words)


def choose(records: np.ndarray, dtype: np.dtype) -> list[Column]:
    """Return the columns, and how each is predicted, that pack these records well.

    Every way is tried on the first records. Columns that another one would predict better choose
    first, those that gain most by it before the others: keys must not go round in a circle.

    Args:
        records: Their bytes, u1, at least one record.
        dtype: Of a record; its fields lie at multiples of their size.
    """
    sample = records[: _SAMPLE_RECORDS * dtype.itemsize]
    columns = _columns(dtype)
    keys = _keys(sample, dtype)
    ways = [
        way
        for column in columns
        for way in (
            column,
            column._replace(how=PREVIOUS),
            *(column._replace(how=EQUAL, key=key) for key in keys),
        )
    ]
    sizes = _sizes(sample, dtype.itemsize, ways)
    chosen, gains = {}, []
    for column in columns:
        alone = min(column, column._replace(how=PREVIOUS), key=sizes.__getitem__)
        chosen[column.at] = alone
        gains += [
            (sizes[alone] - sizes[way], way)
            for way in ways
            if way.at == column.at and way.how == EQUAL
        ]
    for gain, way in sorted(gains, reverse=True):
        if gain > 0 and chosen[way.at].how != EQUAL and way.at not in _chain(way.key, chosen):
            chosen[way.at] = way
    return sorted(chosen.values(), key=lambda way: len(_chain(way.at, chosen)))


def _sizes(sample: np.ndarray, record_bytes: int, ways: Sequence[Column]) -> dict[Column, int]:
    """Return how many bytes a column takes in each of these ways."""
    told, planes = _split(sample, record_bytes, ways)
    ends = np.cumsum([count for count, _ in told]) * (sample.size // record_bytes)
    return dict(zip(ways, map(len, map(_stored, np.split(planes, ends[:-1]))), strict=True))


def _chain(at: int, chosen: dict[int, Column]) -> list[int]:
    """Return a column, its key, the key of that, and so on."""
    chain = [at]
    while chosen[chain[-1]].how == EQUAL:
        chain.append(chosen[chain[-1]].key)
    return chain


def _columns(dtype: np.dtype) -> list[Column]:
    """Return the columns of a record: a field each; four fields of one byte together."""
    starts = [field[1] for field in (dtype.fields or {}).values() if field[1] % 4 == 0]
    ends = [*starts[1:], dtype.itemsize]
    return [Column(at, end - at) for at, end in zip(starts, ends, strict=True)]


def _keys(sample: np.ndarray, dtype: np.dtype) -> list[int]:
    """Return the offsets of the columns of four bytes that have several values, again and again."""
    words = sample.view("<u4").reshape(-1, dtype.itemsize // 4)
    most = len(words) // _KEY_REPEATS
    narrow = [column.at for column in _columns(dtype) if column.width == 4]
    return [at for at in narrow if 1 < len(np.unique(words[:, at // 4])) <= most]


def _check(columns: list[list[int]], planes: list[int], record_bytes: int) -> None:
    """Refuse columns that are not exactly the record, or have keys that are not known yet."""
    known: set[int] = set()
    for (at, width, how, key), count in zip(columns, planes, strict=True):
        has_key = how in (NONE, PREVIOUS) or (how == EQUAL and key in known)
        if at % 4 or width not in (4, 8) or count > width or not has_key:
            raise PackedError("a column that cannot be")
        known.add(at)
    end = 0
    for at, width, *_ in sorted(columns):
        if at != end:
            raise PackedError("columns that do not make up the record")
        end += width
    if end != record_bytes:
        raise PackedError("columns that do not make up the record")


def _split(
    records: np.ndarray, record_bytes: int, columns: Sequence[Column]
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Return how many planes each column has, and its base; and all planes, u1."""
    from sigmatrace.capture.kernels.pack import split

    words, count = records.view(np.uint32), records.size // record_bytes
    if not words.flags.aligned:
        words = words.copy()
    bases, planes = np.empty(len(columns), np.uint64), np.empty(len(columns), np.int64)
    latest, rests = np.empty(KEYS, np.uint64), np.empty(count, np.uint64)
    out = np.empty(count * sum(column.width for column in columns), np.uint8)
    told = np.array(columns, np.int64)
    used = split(words, record_bytes // 4, told, latest, rests, bases, planes, out)
    return list(zip(planes.tolist(), bases.tolist(), strict=True)), out[:used]


class _Reader:
    """Takes packed data apart, and never looks beyond its end."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers."""
        return form.unpack(self._bytes(form.size).data)

    def planes(self, whole: int) -> np.ndarray:
        """Return all planes, u1, of so many bytes; nothing else may follow."""
        (size,) = self.take(_SIZE)
        stored = self._bytes(size)
        if self._data[self._at :].any():
            raise PackedError("something behind the planes")
        return stored if size == whole else _from_block(stored, whole)

    def _bytes(self, size: int) -> np.ndarray:
        self._at += size
        if self._at > self._data.size:
            raise PackedError("data that is too short")
        return self._data[self._at - size : self._at]


def _stored(planes: np.ndarray) -> bytes:
    """Return planes as an LZ4 block if that is smaller, or as they are."""
    block: bytes = _lz4().compress(planes, asbytes=True)
    return block if len(block) < planes.size else planes.tobytes()


def _from_block(block: np.ndarray, size: int) -> np.ndarray:
    from sigmatrace.capture.kernels.pack import block_bytes

    if block.size > size or block_bytes(block) != size:
        raise PackedError("planes of another size")
    try:
        return np.frombuffer(_lz4().decompress(block, size), np.uint8)
    except OSError as error:
        raise PackedError("planes that are no LZ4 block") from error


@functools.cache
def _lz4() -> pa.Codec:
    return pa.Codec("lz4_raw")
