"""From the indexes of all files to the whole run: one numbering, one set of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sigmatrace.capture.header import Header
from sigmatrace.capture.index import FROM_FILE, FileIndex, dropped
from sigmatrace.capture.names.places import settle_places
from sigmatrace.capture.objects import OBJECT_TABLES, WITHOUT
from sigmatrace.capture.sums import SCHEMAS, numbered, records
from sigmatrace.capture.tables import empty, rows, table, together
from sigmatrace.errors import MixedRunsError, RunNotFoundError
from sigmatrace.partition import Run
from sigmatrace.schema import EVENT_NAMES, INDEX_TABLES
from sigmatrace.text import counted
from sigmatrace.trace_format import RECORDS, UNKNOWN_PEER, Schema

UNKNOWN_ID = 2**32 - 1
_CALLS_MAX = 256
_TID_BITS = np.uint64(32)


@dataclass(frozen=True)
class ProcessBase:
    """How the numbers of one file become numbers of the run.

    Attributes:
        index: Position of the file in the list of indexes.
        proc: Number of the process in the run.
        channel: Number in the run of the process's first channel.
        channel_ids: Ids of its channels, ascending; None if they are 0 to ``channel_count`` - 1.
        channel_count: Known channels.
        has_placeholder: A channel of unknown kind follows the known ones. Not all channel
            records of the process were found, and events of the others are kept there.
        tids: Kernel thread ids, ascending; ``thread`` is the number in the run of the first.
        thread: See ``tids``.
        calls: Number in the run by number in the file, u1 of shape (256,); 0 is unknown.
    """

    index: int
    proc: int
    channel: int
    channel_ids: np.ndarray | None
    channel_count: int
    has_placeholder: bool
    tids: np.ndarray
    thread: int
    calls: np.ndarray


def merge(indexes: Sequence[FileIndex], run_id: str | None = None) -> tuple[Run, list[ProcessBase]]:
    """Return the run that these files make, and the numbering of each process, by ``proc``.

    Args:
        indexes: One per file, foreign ones among them.
        run_id: Take the files of this run alone.

    Raises:
        MixedRunsError: The files belong to several runs, and ``run_id`` is not given.
        RunNotFoundError: No file is left.
    """
    chosen = _of_one_run(indexes, run_id)
    order = sorted(chosen, key=lambda at: _order(indexes[at].header))
    ordered = [indexes[at] for at in order]
    call_texts, call_maps = _merge_calls([index.header for index in ordered])
    procs, chunks = numbered([index.chunks for index in ordered])
    tids, threads = _thread_ids(procs, chunks, len(ordered))
    bases: list[ProcessBase] = []
    channel = 0
    for proc, (at, index, calls) in enumerate(zip(order, ordered, call_maps, strict=True)):
        own = tids[threads[proc] : threads[proc + 1]]
        base = _base(at, proc, index, calls, channel, own, threads[proc])
        channel += base.channel_count + base.has_placeholder
        bases.append(base)
    foreign = [index for index in indexes if index.problem]
    tables = {
        "processes": _processes(ordered, _absent(ordered, procs, chunks)),
        "threads": _threads(ordered, bases),
        "clocks": _clocks(ordered),
        "channels": _channels(ordered, bases),
        "chunks": _chunks(procs, chunks),
        "calls": rows("calls", list(enumerate(call_texts))),
        "damage": _damage(ordered, foreign),
        **{name: _objects(ordered, name) for name in OBJECT_TABLES},
    }
    settle_places(tables)
    return Run(tables, {"run_id": ordered[0].header.run_id or ""}), bases


def _of_one_run(indexes: Sequence[FileIndex], run_id: str | None) -> list[int]:
    usable = [at for at, index in enumerate(indexes) if not index.problem]
    ids = sorted({x for at in usable if (x := indexes[at].header.run_id) is not None})
    if run_id is None and len(ids) > 1:
        shown = ", ".join(repr(x) for x in ids[:5])
        raise MixedRunsError(
            f"files of {len(ids)} runs lie in one folder: {shown}",
            f"choose one with run_id={ids[0] or repr('')}, or give each run its own folder",
        )
    if run_id is not None:
        usable = [at for at in usable if indexes[at].header.run_id == run_id]
    if not usable:
        what = "no trace file" if run_id is None else f"no trace file of run_id={run_id}"
        hint = f"there are: {', '.join(repr(x) for x in ids)}" if ids else ""
        raise RunNotFoundError(f"{what} among {counted(len(indexes), 'file')}", hint)
    return usable


def _order(header: Header) -> tuple[bool, int, str, int, int]:
    return header.rank < 0, header.rank, header.host, header.pid, header.start_ns


def _thread_ids(
    procs: np.ndarray, chunks: np.ndarray, count: int
) -> tuple[np.ndarray, Sequence[int]]:
    """Return the kernel's ids of all threads with events, and where those of each process begin.

    The ids of a process ascend. After the last beginning comes the end.
    """
    is_event = chunks["schema"] != Schema.CHANNEL
    keys = np.sort(procs[is_event].astype(np.uint64) << _TID_BITS | chunks["thread"][is_event])
    keys = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
    begins = np.searchsorted(keys, np.arange(count + 1, dtype=np.uint64) << _TID_BITS)
    return keys.astype(np.uint32), begins.tolist()


def _base(
    at: int,
    proc: int,
    index: FileIndex,
    calls: np.ndarray,
    channel: int,
    tids: np.ndarray,
    thread: int,
) -> ProcessBase:
    ids = index.channels["id"]
    count = len(ids)
    is_dense = count == 0 or int(ids[-1]) == count - 1
    all_there = index.end is not None and index.end.written.get(Schema.CHANNEL, 0) == count
    return ProcessBase(
        index=at,
        proc=proc,
        channel=channel,
        channel_ids=None if is_dense else ids.copy(),
        channel_count=count,
        has_placeholder=not (is_dense and all_there),
        tids=tids,
        thread=thread,
        calls=calls,
    )


def _merge_calls(headers: Sequence[Header]) -> tuple[list[str], list[np.ndarray]]:
    """Return the run's call names by number, and the run's number by each file's number.

    Number 0 is the unknown call. Names beyond 255 become unknown.
    """
    numbers: dict[str, int] = {"": 0}
    known: dict[tuple[tuple[int, str], ...], np.ndarray] = {}  # most files name the same ones
    maps = []
    for header in headers:
        calls = tuple(header.calls.items())
        mapping = known.get(calls)
        if mapping is None:
            mapping = known[calls] = np.zeros(_CALLS_MAX, np.uint8)
            for own, name in sorted(calls):
                if len(numbers) < _CALLS_MAX:
                    numbers.setdefault(name, len(numbers))
                mapping[own] = numbers.get(name, 0)
        maps.append(mapping)
    return list(numbers), maps


def _hosts(headers: Sequence[Header]) -> list[str]:
    """Return names of hosts; machines that share one (containers) are numbered, by their boots."""
    boots: dict[str, dict[str, int]] = {}
    for header in headers:
        if header.boot_id:
            own = boots.setdefault(header.host, {})
            own.setdefault(header.boot_id, len(own) + 1)
    several = {host for host, own in boots.items() if len(own) > 1}
    return [
        f"{x.host}#{boots[x.host][x.boot_id]}" if x.boot_id and x.host in several else x.host
        for x in headers
    ]


def _labels(headers: Sequence[Header]) -> list[str]:
    """Return short names; what two processes share is told apart by pid, host, then start."""
    labels = [f"rank {x.rank}" if x.rank >= 0 else f"pid {x.pid}" for x in headers]
    pids = [f" pid {x.pid}" if x.rank >= 0 else "" for x in headers]
    hosts = [f" @{x.host}" for x in headers]
    starts = [f" {x.start_ns}" for x in headers]
    for more in pids, hosts, starts:
        counts = Counter(labels)
        labels = [
            label + extra if counts[label] > 1 else label
            for label, extra in zip(labels, more, strict=True)
        ]
    return labels


_MOST = 2**64 - 1


def _absent(ordered: Sequence[FileIndex], procs: np.ndarray, chunks: np.ndarray) -> list[int]:
    """Return by process the records that were dropped, or written and are not in its file.

    Without an end item these are the drops that chunks tell of: how many were written is not known.
    """
    is_own = chunks["source"] == FROM_FILE
    found = records(procs[is_own], chunks[is_own], len(ordered))
    result = []
    for proc, index in enumerate(ordered):
        if index.end is None:
            result.append(dropped(index.chunks))
            continue
        told = [(schema, count) for schema, count in index.end.written.items() if count]
        there = (int(found[proc, schema]) if 0 <= schema < SCHEMAS else 0 for schema, _ in told)
        missing = sum(max(0, count - one) for (_, count), one in zip(told, there, strict=True))
        result.append(missing + sum(index.end.dropped.values()))
    return result


def _processes(ordered: Sequence[FileIndex], absent: Sequence[int]) -> pa.Table:
    headers = [index.header for index in ordered]
    values = []
    each = zip(ordered, _labels(headers), _hosts(headers), absent, strict=True)
    for proc, (index, label, host, missing) in enumerate(each):
        header = index.header
        who = proc, label, header.rank, header.world, host, header.boot_id
        when = header.pid, header.ppid, header.start_ns, header.run_id or ""
        how = header.mode, header.layers, header.command, header.tsc_hz, index.path
        end = index.end.reason if index.end else ""
        lost = sum(index.end.lost.values()) if index.end else 0
        values.append((*who, *when, *how, end, *(min(n, _MOST) for n in (missing, lost))))
    return rows("processes", values)


def _threads(ordered: Sequence[FileIndex], bases: Sequence[ProcessBase]) -> pa.Table:
    return rows(
        "threads",
        [
            (base.thread + at, base.proc, tid, index.threads.get(tid, ""))
            for index, base in zip(ordered, bases, strict=True)
            for at, tid in enumerate(base.tids.tolist())
        ],
    )


def _clocks(ordered: Sequence[FileIndex]) -> pa.Table:
    return rows(
        "clocks", [(proc, *pair) for proc, index in enumerate(ordered) for pair in index.clocks]
    )


def _channels(ordered: Sequence[FileIndex], bases: Sequence[ProcessBase]) -> pa.Table:
    placeholder = np.zeros(1, RECORDS[Schema.CHANNEL])
    placeholder["id"] = UNKNOWN_ID
    placeholder["peer"] = UNKNOWN_PEER
    parts = [
        np.concatenate([index.channels, placeholder]) if base.has_placeholder else index.channels
        for index, base in zip(ordered, bases, strict=True)
    ]
    procs, rows = numbered(parts)
    names = rows.dtype.names or ()
    own = {
        name: np.ascontiguousarray(rows[name]) for name in INDEX_TABLES["channels"] if name in names
    }
    numbers = np.arange(len(rows), dtype=np.uint32)
    return table("channels", {"channel": numbers, "proc": procs, **own})


def _chunks(procs: np.ndarray, found: np.ndarray) -> pa.Table:
    timed = [int(schema) for schema in EVENT_NAMES if "t_tsc" in (RECORDS[schema].names or ())]
    known = np.isin(found["schema"], timed)
    names = ("schema", "count", "first_tsc", "last_tsc")
    return table("chunks", {"proc": procs[known], **{name: found[name][known] for name in names}})


def _objects(ordered: Sequence[FileIndex], name: str) -> pa.Table:
    parts = [index.objects.get(name, []) for index in ordered]
    if not any(parts):
        return empty(name)
    procs = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
    whole = together(name, parts, WITHOUT).append_column("proc", pa.array(procs))
    return whole.select(list(INDEX_TABLES[name]))


def _damage(ordered: Sequence[FileIndex], foreign: Sequence[FileIndex]) -> pa.Table:
    numbered = [*enumerate(ordered), *((-1, index) for index in foreign)]
    return rows(
        "damage",
        [(proc, index.path, *damage) for proc, index in numbered for damage in index.damage],
    )
