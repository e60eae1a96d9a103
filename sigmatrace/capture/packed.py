"""Codec 1 of chunks: columns as differences in planes of bytes (``docs/format.md`` section 1.6).

A column can be predicted from the record before, or from the latest one that has the same key in
another column (the same channel: the next ordinal). Which is best, ``choose`` tries on the data.
"""

from __future__ import annotations

import functools
import struct
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
_SAMPLE_RECORDS = 2048
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


def pack(records: np.ndarray, columns: tuple[Column, ...]) -> bytes:
    """Return the packed data of a chunk.

    Args:
        records: Their bytes, u1, at least one record.
        columns: Every byte of a record is in exactly one.
    """
    work = _Work(records, sum(column.width for column in columns))
    heads, planes = zip(*map(work.split, columns), strict=True)
    stored = _stored(np.concatenate(planes))
    begin = HEAD.pack(records.size, len(columns)), *heads, _SIZE.pack(len(stored)), stored
    return b"".join(begin).ljust(-(-records.size // PACKED_FACTOR), b"\0")


def unpack(data: np.ndarray, out: np.ndarray, record_bytes: int) -> None:
    """Fill ``out`` with the records of a packed chunk.

    Args:
        data: The chunk's packed data, u1.
        out: Bytes of at least one record, u1, contiguous.
        record_bytes: Of one record.

    Raises:
        PackedError: The data is not what the format says; ``out`` then holds anything.
    """
    reader = _Reader(data)
    size, count = reader.take(HEAD)
    if size != out.size:
        raise PackedError("another size of records")
    columns: list[Column] = []
    told: list[tuple[int, int]] = []
    for _ in range(count):
        *fields, planes, base = reader.take(_COLUMN)
        columns.append(Column(*fields))
        told.append((planes, base))
    _check(columns, [planes for planes, _ in told], record_bytes)
    work = _Work(out, record_bytes)
    planes_of_all = reader.planes(sum(planes for planes, _ in told), work.count)
    first = 0
    for column, (planes, base) in zip(columns, told, strict=True):
        work.restore(column, base, planes_of_all[first : first + planes])
        first += planes


def choose(records: np.ndarray, dtype: np.dtype) -> tuple[Column, ...]:
    """Return the columns, and how each is predicted, that pack these records well.

    Every way is tried on the first records. Columns that another one would predict better choose
    first, those that gain most by it before the others: keys must not go round in a circle.

    Args:
        records: Their bytes, u1, at least one record.
        dtype: Of a record; its fields lie at multiples of their size.
    """
    sample = records[: _SAMPLE_RECORDS * dtype.itemsize]
    work = _Work(sample, dtype.itemsize)

    def size(way: Column) -> int:
        return len(_stored(work.split(way)[1]))

    chosen, gains = {}, []
    keys = _keys(work, dtype)
    for column in _columns(dtype):
        alone = min(column, column._replace(how=PREVIOUS), key=size)
        chosen[column.at] = alone
        for key in keys:
            way = column._replace(how=EQUAL, key=key)
            gains.append((size(alone) - size(way), way))
    for gain, way in sorted(gains, reverse=True):
        if gain > 0 and chosen[way.at].how != EQUAL and way.at not in _chain(way.key, chosen):
            chosen[way.at] = way
    return tuple(sorted(chosen.values(), key=lambda way: len(_chain(way.at, chosen))))


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


def _keys(work: _Work, dtype: np.dtype) -> list[int]:
    """Return the offsets of the columns of four bytes that have several values, again and again."""
    narrow = [column for column in _columns(dtype) if column.width == 4]
    most = work.count // _KEY_REPEATS
    return [x.at for x in narrow if 1 < len(np.unique(work.values(x))) <= most]


def _check(columns: list[Column], planes: list[int], record_bytes: int) -> None:
    """Refuse columns that are not exactly the record, or have keys that are not known yet."""
    taken = np.zeros(max(record_bytes, 256 + 8), np.uint8)
    known: set[int] = set()
    for (at, width, how, key), count in zip(columns, planes, strict=True):
        has_key = how in (NONE, PREVIOUS) or (how == EQUAL and key in known)
        if at % 4 or width not in (4, 8) or count > width or not has_key:
            raise PackedError("a column that cannot be")
        taken[at : at + width] += 1
        known.add(at)
    if not (taken[:record_bytes] == 1).all() or taken[record_bytes:].any():
        raise PackedError("columns that do not make up the record")


class _Work:
    """The records of a chunk by column, and which record predicts which.

    Args:
        records: Their bytes, u1.
        record_bytes: Of one record.
    """

    def __init__(self, records: np.ndarray, record_bytes: int) -> None:
        self.count = records.size // record_bytes
        self._records = records
        self._record_bytes = record_bytes
        self._values: dict[int, np.ndarray] = {}
        self._links: dict[tuple[int, int], np.ndarray] = {}

    def values(self, column: Column) -> np.ndarray:
        """Return a column, u8."""
        if column.at not in self._values:
            self._values[column.at] = self._in_place(column).astype(np.uint64)
        return self._values[column.at]

    def split(self, column: Column) -> tuple[bytes, np.ndarray]:
        """Return how a column begins in packed data, and its planes, u1 of (planes x records,)."""
        rests, base = self._rests(column)
        planes = -(-int(rests.max()).bit_length() // 8)
        by_byte = rests.view(np.uint8).reshape(self.count, 8).T
        return _COLUMN.pack(*column, planes, base), by_byte[:planes].ravel()

    def restore(self, column: Column, base: int, planes: np.ndarray) -> None:
        """Fill a column of the records from its planes; those before it are filled already."""
        from sigmatrace.capture.kernels.pack import restore

        rests = np.zeros(self.count, np.uint64)
        for k, plane in enumerate(planes):
            rests.view(np.uint8)[k::8] = plane
        if column.how == NONE:
            rests += np.uint64(base)
        else:
            restore(self._find_links(column), base, _top(column), rests)
        self._values[column.at] = rests
        self._in_place(column)[:] = rests

    def _in_place(self, column: Column) -> np.ndarray:
        dtype, steps = np.dtype(f"<u{column.width}"), (self._record_bytes,)
        return np.ndarray((self.count,), dtype, self._records.data, column.at, steps)

    def _rests(self, column: Column) -> tuple[np.ndarray, int]:
        """Return what is left of a column where its prediction is known, and its base."""
        from sigmatrace.capture.kernels.pack import differences

        values = self.values(column)
        if column.how == NONE:
            base = values.min()
            return values - base, int(base)
        rests = np.empty(self.count, np.uint64)
        differences(values, self._find_links(column), values[0], _top(column), rests)
        return rests, int(values[0])

    def _find_links(self, column: Column) -> np.ndarray:
        """Return the number of the record that predicts each one, i4, -1 for none."""
        name = column.how, column.key
        if name not in self._links:
            self._links[name] = self._make_links(column)
        return self._links[name]

    def _make_links(self, column: Column) -> np.ndarray:
        from sigmatrace.capture.kernels.pack import link_equal

        if column.how == PREVIOUS:
            return np.arange(-1, self.count - 1, dtype=np.int32)
        links, latest = np.empty(self.count, np.int32), np.empty(KEYS, np.int32)
        link_equal(self.values(Column(column.key, 4)), latest, links)
        return links


def _top(column: Column) -> int:
    return 8 * column.width - 1


class _Reader:
    """Takes packed data apart, and never looks beyond its end."""

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers."""
        return form.unpack(self._bytes(form.size).data)

    def planes(self, planes: int, count: int) -> np.ndarray:
        """Return all planes, u1 of shape (planes, count); nothing else may follow."""
        (size,) = self.take(_SIZE)
        stored = self._bytes(size)
        if self._data[self._at :].any():
            raise PackedError("something behind the planes")
        whole = planes * count
        return (stored if size == whole else _from_block(stored, whole)).reshape(planes, count)

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
