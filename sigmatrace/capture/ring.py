"""The tail of a killed process: segments that were never written out (format.md section 4)."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from sigmatrace.capture.items import FileData
from sigmatrace.trace_format import RECORDS, Schema

_MAGIC = b"STRCRING"
_VERSION = 1
_HEADER = struct.Struct("<8sIIIIQ")
_AREA = struct.Struct("<QQIIQQQQQQ")
_IN_USE = 1
_PAGE_BYTES = 4096


class Segment(NamedTuple):
    """One segment that holds records.

    Attributes:
        offset: Of the area's control block.
        schema: Schema of its records.
        thread: Kernel's thread id.
        seq: Number of the chunk that it would have become.
        records: Records in it; in mode ``aggregate`` rows, used or not.
        dropped: Records of this (schema, thread) dropped so far.
        first: Offset of the first record in the file.
    """

    offset: int
    schema: int
    thread: int
    seq: int
    records: int
    dropped: int
    first: int


def is_ring(data: FileData) -> bool:
    """Return whether this is a ring file that this reader knows."""
    if len(data) < _HEADER.size:
        return False
    magic, version, *_ = _HEADER.unpack(data[0 : _HEADER.size])
    return bool(magic == _MAGIC and version == _VERSION)


def segments(data: FileData) -> Iterator[Segment]:
    """Yield the segments in use that hold records of known schemas, as far as the file goes.

    Numbers are taken from the file only as far as its own size bears them out.
    """
    if not is_ring(data):
        return
    _, _, header_bytes, control_bytes, _, _ = _HEADER.unpack(data[0 : _HEADER.size])
    if control_bytes < _AREA.size or header_bytes < _HEADER.size:
        return
    at = header_bytes
    while at + control_bytes <= len(data):
        segment, area_bytes = _area(data, at, control_bytes)
        if area_bytes == 0:  # it was being made: the next one begins at one of the next pages
            at += _PAGE_BYTES
            continue
        if area_bytes < control_bytes:
            return
        if segment is not None:
            yield segment
        at += area_bytes


def tail(data: FileData, written: Collection[tuple[int, int, int]]) -> list[Segment]:
    """Return the segments whose (schema, thread, seq) are not among those ``written``."""
    seen = set(written)
    result = []
    for segment in segments(data):
        key = segment.schema, segment.thread, segment.seq
        if key not in seen:
            seen.add(key)
            result.append(segment)
    return result


def is_unchanged(data: FileData, segment: Segment) -> bool:
    """Return whether the area still holds this segment (a live process may have moved on)."""
    if segment.offset + _AREA.size > len(data):
        return False
    now, _ = _area(data, segment.offset, _AREA.size)
    return now is not None and now.records >= segment.records and now[:4] == segment[:4]


def times(data: FileData, segment: Segment) -> tuple[int, int]:
    """Return the smallest and largest ``t_tsc`` of a segment; (0, 0) for schemas without time."""
    dtype = RECORDS[Schema(segment.schema)]
    if "t_tsc" not in (dtype.names or ()):
        return 0, 0
    end = segment.first + segment.records * dtype.itemsize
    t_tsc = np.frombuffer(data[segment.first : end], dtype)["t_tsc"]
    return int(t_tsc.min()), int(t_tsc.max())


def _area(data: FileData, at: int, control_bytes: int) -> tuple[Segment | None, int]:
    """Return the segment of the area at ``at``, if it holds any records, and the area's bytes."""
    state, area_bytes, schema, thread, seq, count, dropped, record_bytes, capacity, first = (
        _AREA.unpack(data[at : at + _AREA.size])
    )
    dtype = RECORDS.get(schema)
    if state != _IN_USE or dtype is None or record_bytes != dtype.itemsize:
        return None, area_bytes
    end = min(at + area_bytes, len(data))
    room = max(0, end - at - first) // record_bytes if first >= control_bytes else 0
    count = min(count, capacity, room)
    if count == 0:
        return None, area_bytes
    return Segment(at, schema, thread, seq, count, dropped, at + first), area_bytes
