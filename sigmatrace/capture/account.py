"""What became of every byte and every record: the reader's part of the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sigmatrace.capture.end import COMPLETE
from sigmatrace.capture.index import FROM_RING, FileIndex, LostChunk, dropped
from sigmatrace.capture.items import CUT, DAMAGED, WHOLE
from sigmatrace.capture.merge import ProcessBase
from sigmatrace.capture.read import ReadLoss
from sigmatrace.capture.sums import gaps, numbered, records
from sigmatrace.capture.tables import rows
from sigmatrace.trace_format import Schema


@dataclass
class SchemaAccount:
    """Records of one schema, over the run.

    Over the files with an end item,
    ``written + recovered + surplus = read + damaged + bad_channel + unused + outside + not_read
    + missing``. Over all files, ``found`` is the same without ``missing``, with and without an end
    item.

    Attributes:
        found: In the chunks of all files, as their prefixes say, before any data was looked at.
        written: To rank files, as the end items say.
        recovered: In ring files of files with an end item: what could not be written.
        recovered_open: In ring files of files without one.
        read: From files with an end item (ring files included).
        read_open: From files without one (cut, killed, replaced, or still running).
        damaged: In chunks of files with an end item that were found but cannot be read.
        damaged_open: The same for files without an end item.
        bad_channel: Left out because their channel does not exist.
        bad_channel_open: The same for files without an end item.
        unused: Rows of aggregates that were never used; they stand for nothing.
        unused_open: The same for files without an end item.
        outside: Left out because they are not in the window that was asked for.
        outside_open: The same for files without an end item.
        not_read: In chunks that the window does not need.
        not_read_open: The same for files without an end item.
        missing: Written or recovered, but not found.
        surplus: Found beyond what was written and recovered.
        dropped: Dropped at capture.
        gap_chunks: Chunks that are missing in the numbering of their threads.
    """

    found: int = 0
    written: int = 0
    recovered: int = 0
    recovered_open: int = 0
    read: int = 0
    read_open: int = 0
    damaged: int = 0
    damaged_open: int = 0
    bad_channel: int = 0
    bad_channel_open: int = 0
    unused: int = 0
    unused_open: int = 0
    outside: int = 0
    outside_open: int = 0
    not_read: int = 0
    not_read_open: int = 0
    missing: int = 0
    surplus: int = 0
    dropped: int = 0
    gap_chunks: int = 0


@dataclass
class FileAccount:
    """Bytes of one file: ``size_bytes = whole + damaged + cut + foreign``.

    Attributes:
        proc: Number of its process, -1 for files that were left out.
    """

    path: str
    proc: int
    size_bytes: int
    whole: int = 0
    damaged: int = 0
    cut: int = 0
    foreign: int = 0


@dataclass
class Account:
    """The reader's part of the ledger.

    Attributes:
        files: Bytes of each file.
        schemas: Records by name of the schema ("op", "channel", ...).
        lost_chunks: Chunks that were found but cannot be read.
        lost_at_capture: What the processes could not record, by reason.
        unknown: What was skipped because this reader does not know it, counted by what.
        unknown_channel: Records that are in the tables without their channel being known.
        aggregated_operations: Operations that the aggregate records read stand for.
        aggregated_bytes: Bytes of these operations.
        unreadable_files: Why a file, or a ring file, could not be read, by its path.
        empty_files: Files of 0 bytes: nothing was written into them.
        open_files: Other files without an end item: the process was killed, replaced by exec, or
            still runs, or the file was cut. How much is missing cannot be known.
        stopped_files: Files whose recording stopped before its time, and why.
        window: ``begin_ns``, ``end_ns``, ``chunks_read`` and ``chunks_not_read``; empty where
            everything was asked for.
    """

    files: list[FileAccount]
    schemas: dict[str, SchemaAccount]
    lost_chunks: list[LostChunk]
    lost_at_capture: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    unknown_channel: int = 0
    aggregated_operations: int = 0
    aggregated_bytes: int = 0
    unreadable_files: dict[str, str] = field(default_factory=dict)
    empty_files: list[str] = field(default_factory=list)
    open_files: list[str] = field(default_factory=list)
    stopped_files: dict[str, str] = field(default_factory=dict)
    window: dict[str, int] = field(default_factory=dict)

    def is_lossless(self) -> bool:
        """Return whether nothing at all was lost, damaged, unknown or left out."""
        totals = self.schemas.values()
        lost = sum(
            x.missing + x.surplus + x.dropped + x.bad_channel + x.bad_channel_open + x.gap_chunks
            for x in totals
        )
        bad_bytes = sum(file.size_bytes - file.whole for file in self.files)
        other = sum(self.lost_at_capture.values()) + sum(self.unknown.values())
        files = self.unreadable_files or self.empty_files or self.open_files or self.stopped_files
        return not (lost or bad_bytes or other or files or self.lost_chunks or self.unknown_channel)

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, with byte totals over all files."""
        plain = dict(vars(self))
        plain["files"] = [dict(vars(file)) for file in self.files]
        plain["schemas"] = {name: dict(vars(one)) for name, one in self.schemas.items()}
        plain["lost_chunks"] = [chunk._asdict() for chunk in self.lost_chunks]
        kinds = ("size_bytes", WHOLE, DAMAGED, CUT, "foreign")
        plain["bytes"] = {kind: sum(getattr(file, kind) for file in self.files) for kind in kinds}
        return plain


def account(indexes: Sequence[FileIndex], bases: Sequence[ProcessBase], loss: ReadLoss) -> Account:
    """Return the account of a run after all partitions have been read.

    Args:
        indexes: As given to ``merge``. Files of other runs do not count.
        bases: As ``merge`` returned them.
        loss: The sum over all partitions.
    """
    lost: dict[str, list[LostChunk]] = {}
    for chunk in loss.chunks:
        lost.setdefault(chunk.path, []).append(chunk)
    schemas = {int(schema): SchemaAccount() for schema in Schema}
    files, unknown, at_capture = [], Counter[str](), Counter[str]()
    all_lost = []
    of_run = [indexes[base.index] for base in bases]
    procs, chunks = numbered([index.chunks for index in of_run])
    is_recovered = chunks["source"] == FROM_RING
    found = records(procs, chunks, len(bases))
    recovered = records(procs[is_recovered], chunks[is_recovered], len(bases))
    for base, index in zip(bases, of_run, strict=True):
        here = lost.get(index.path, []) + lost.get(index.ring, [])
        files.append(_file(index, base.proc, here))
        all_lost += index.lost + here
        for schema in _schemas(index).intersection(schemas):
            there = int(found[base.proc, schema]), int(recovered[base.proc, schema])
            _add(schemas[schema], schema, index, base, loss, here, *there)
        unknown.update(index.unknown)
        at_capture.update(index.end.lost if index.end else {})
    for schema, count in gaps(procs, chunks).items():
        schemas[schema].gap_chunks += count
    left_out = [index for index in indexes if index.problem]
    files += [_file(index, -1, []) for index in left_out]
    return Account(
        files=files,
        schemas={Schema(key).name.lower(): total for key, total in schemas.items()},
        lost_chunks=all_lost,
        lost_at_capture=dict(at_capture),
        unknown=dict(unknown),
        unknown_channel=loss.unknown_channel,
        aggregated_operations=loss.operations,
        aggregated_bytes=loss.operation_bytes,
        unreadable_files={k: v for one in (*of_run, *left_out) for k, v in one.unreadable.items()},
        empty_files=[one.path for one in (*of_run, *left_out) if one.is_empty],
        open_files=[one.path for one in of_run if one.end is None and not one.is_empty],
        stopped_files={
            index.path: index.end.reason
            for index in of_run
            if index.end and index.end.reason not in COMPLETE
        },
    )


def damage_rows(
    indexes: Sequence[FileIndex], bases: Sequence[ProcessBase], loss: ReadLoss
) -> pa.Table:
    """Return the rows of table ``damage`` for chunks found lost while reading."""
    procs = {indexes[base.index].path: base.proc for base in bases}
    procs |= {indexes[base.index].ring: base.proc for base in bases}
    return rows(
        "damage", [(procs[x.path], x.path, x.offset, x.size_bytes, x.reason) for x in loss.chunks]
    )


def _file(index: FileIndex, proc: int, lost: Iterable[LostChunk]) -> FileAccount:
    by_what = dict.fromkeys((DAMAGED, CUT, "foreign"), 0)
    for _, size, what in index.damage:
        by_what[what] = by_what.get(what, 0) + size
    late = sum(chunk.size_bytes for chunk in lost)
    return FileAccount(
        path=index.path,
        proc=proc,
        size_bytes=index.size_bytes,
        whole=index.whole_bytes - late,
        damaged=by_what[DAMAGED] + late,
        cut=by_what[CUT],
        foreign=by_what["foreign"],
    )


def _schemas(index: FileIndex) -> set[int]:
    """Return the schemas that a file has anything to say of."""
    told = (index.end.written, index.end.dropped) if index.end else ()
    found = {schema for counts in told for schema, count in counts.items() if count}
    return found | {x.schema for x in index.lost} | set(index.chunks["schema"].tolist())


def _add(
    total: SchemaAccount,
    schema: int,
    index: FileIndex,
    base: ProcessBase,
    loss: ReadLoss,
    lost: Iterable[LostChunk],
    found: int,
    recovered: int,
) -> None:
    """Add one process to the totals of a schema.

    Args:
        total: Of the schema.
        schema: Its number.
        index: Of the process's file.
        base: The numbering of the process.
        loss: The sum over all partitions.
        lost: Chunks of the file that could not be read.
        found: Records in chunks of the index: what it lost itself it has taken out of them.
        recovered: Those in ring files among them.
    """
    key = base.proc, schema
    early = sum(x.records for x in index.lost if x.schema == schema)
    counts = {
        "read": index.channel_rows if schema == Schema.CHANNEL else loss.read.get(key, 0),
        "damaged": early + sum(x.records for x in lost if x.schema == schema),
        "bad_channel": loss.bad_channel.get(key, 0),
        "unused": loss.unused.get(key, 0),
        "outside": loss.outside.get(key, 0),
        "not_read": loss.not_read.get(key, 0),
    }
    total.found += found + early
    suffix = "_open" if index.end is None else ""
    for name, count in {**counts, "recovered": recovered}.items():
        if count:
            setattr(total, name + suffix, getattr(total, name + suffix) + count)
    if index.end is None:
        mine = index.chunks[index.chunks["schema"] == schema]
        total.dropped += dropped(mine[~np.isin(mine["offset"], [x.offset for x in lost])])
        return
    written = index.end.written.get(schema, 0)
    balance = sum(counts.values()) - written - recovered
    total.written += written
    total.missing += max(0, -balance)
    total.surplus += max(0, balance)
    total.dropped += index.end.dropped.get(schema, 0)
