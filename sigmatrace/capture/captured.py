"""Reads back what a run recorded, for the closing report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from sigmatrace.capture import header as headers
from sigmatrace.capture import items
from sigmatrace.capture.bodies import Decoder, ItemError
from sigmatrace.capture.index import FROM_RING, ChunkRow, FileIndex, dropped, index_file
from sigmatrace.capture.objects import WITHOUT
from sigmatrace.capture.packed import records_of
from sigmatrace.capture.rank_files import find_rank_files
from sigmatrace.capture.report import Captured
from sigmatrace.capture.tables import together
from sigmatrace.capture.view import opened
from sigmatrace.errors import ChunkFormatError, RunNotFoundError
from sigmatrace.trace_format import OP_CLASS, RECORDS, DoorbellFlag, Item, OpClass, Schema

_COUNTED = (Schema.AGGREGATE,)
_FEW = 10_000


def first_run_id(folder: Path) -> str | None:
    """Return the run id of a folder's first rank file; None when no file tells one."""
    for path in sorted(folder.glob("*.msgpack")):
        try:
            with opened(path) as data:
                span = next(items.walk(data), None)
                if span and span.what == items.WHOLE and span.kind == Item.HEADER:
                    body = items.body(data, span)
                    return headers.from_body(body, path, Decoder()).run_id
        except (OSError, ItemError, ChunkFormatError):
            continue
    return None


def read(folder: Path, run_id: str, since_ns: int) -> list[Captured]:
    """Return what the processes of a run recorded, ranks first, then by start.

    Args:
        folder: The run's folder.
        run_id: Id of the run; files of other runs are left out.
        since_ns: Wall clock in ns; files of processes that began before are left out.
    """
    try:
        paths = find_rank_files(folder)
    except RunNotFoundError:
        return []
    found = []
    for path in paths:
        named = headers.from_name(path)
        if named is None or named.start_ns < since_ns:
            continue
        index = index_file(path)
        if not index.problem and index.header.run_id in (run_id, None):
            found.append(_captured(index))
    return sorted(found, key=lambda one: (one.rank < 0, one.rank, one.host, one.start_ns))


def _captured(index: FileIndex) -> Captured:
    header, end = index.header, index.end
    operations = _operations(index)
    moves_data = _moves_data(index, operations)
    libraries = _objects(index, "libraries").select(["name", "version", "how"]).to_pylist()
    drops = sum(end.dropped.values()) if end else dropped(index.chunks)
    ring = Path(index.ring)
    size = index.size_bytes + (ring.stat().st_size if end is None and ring.exists() else 0)
    return Captured(
        host=header.host,
        pid=header.pid,
        ppid=header.ppid,
        rank=header.rank,
        start_ns=header.start_ns,
        program=header.command.split(" ")[0].rpartition("/")[2],
        libraries=tuple(dict.fromkeys((x["name"], x["version"], x["how"]) for x in libraries)),
        operations=operations,
        marks=_records(index, Schema.MARK),
        doorbells=_records(index, Schema.DOORBELL),
        unread=0 if moves_data else _unread(index),
        kernels=_records(index, Schema.KERNEL),
        unwatched=Counter(filter(None, _objects(index, "uars")["passed_through"].to_pylist())),
        moves_data=moves_data,
        size_bytes=size,
        dropped=drops,
        lost=dict(end.lost) if end else {},
        end=end.reason if end else "",
    )


def _objects(index: FileIndex, table: str) -> pa.Table:
    return together(table, [index.objects.get(table, [])], WITHOUT)


def _operations(index: FileIndex) -> int:
    """Count operations: single ones, and those that mode ``aggregate`` has counted."""
    counted = sum(int(rows["count"].sum()) for rows in _rows(index, *_COUNTED))
    return _records(index, Schema.OP) + counted


def _records(index: FileIndex, schema: Schema) -> int:
    return int(index.chunks["count"][index.chunks["schema"] == schema].sum())


def _unread(index: FileIndex) -> int:
    """Count doorbells behind which no WQE was read."""
    doorbells = _rows(index, Schema.DOORBELL)
    return sum(int(((rows["flags"] & DoorbellFlag.NOT_READ) != 0).sum()) for rows in doorbells)


def _moves_data(index: FileIndex, operations: int) -> bool:
    """Tell whether any operation moves data; a start-up alone flushes, probes and cancels."""
    if operations > _FEW:
        return True
    return any(
        bool((OP_CLASS[rows["op"]] != OpClass.OTHER).any())
        for rows in _rows(index, Schema.OP, *_COUNTED)
    )


def _rows(index: FileIndex, *schemas: Schema) -> Iterator[np.ndarray]:
    chunks = index.chunks[np.isin(index.chunks["schema"], schemas)]
    for source in np.unique(chunks["source"]):
        with opened(index.ring if source == FROM_RING else index.path) as data:
            for chunk in map(ChunkRow._make, chunks[chunks["source"] == source].tolist()):
                begin = chunk.data if source == FROM_RING else chunk.offset
                raw = np.frombuffer(data[begin : begin + chunk.size_bytes], np.uint8)
                records = records_of(raw, chunk.schema, chunk.records, chunk.codec)
                yield records.view(RECORDS[Schema(chunk.schema)])
