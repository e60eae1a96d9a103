"""The exporter ``perfetto``: one trace file that Perfetto's viewer and trace_processor open.

Partitions are encoded in parallel, each to a piece whose packets need no further work; ``finish``
puts descriptors before them, copies them one after the other and fills in what only the whole run
tells: the trace's zero, and the tracks of slices that reach over a partition's border.

What is shown: each process with its threads; operations as slices (mode ``full``) or instants,
with size, peer and, when the pipeline could not match a message, the reason; arrows from send to
receive; completions and the program's regions on tracks below the thread's; traffic and the
program's counters below the process. A message whose receive stands before its send (clocks
disagree) gets no arrow from Perfetto; ``perfetto_flows`` counts them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np

from sigmatrace.export import perfetto_flows as flows
from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.export.perfetto_marks import (
    MARK,
    Counters,
    fact_ns,
    mark_counters,
    mark_texts,
    marks_of,
    regions,
    traffic_counters,
)
from sigmatrace.export.perfetto_segments import PieceWriter, Rows
from sigmatrace.export.perfetto_tracks import (
    SEGMENT,
    Settled,
    Track,
    Tracks,
    describe,
    settle,
)
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import Columns, Fate, Op, OpFlag
from sigmatrace.text import counted

OUTPUT = "trace.pftrace"
_COPY_BYTES = 256 << 10


class PerfettoExporter(Exporter):
    """Writes ``trace.pftrace``.

    Its counts, as trace_processor sees them: the table ``slice`` has ``slices`` + ``instants``
    rows, ``counter`` has ``counters`` (``traffic_counters`` + ``mark_counters``); ``flow`` has one
    row for each of ``flows``, the messages of which both ends were exported and the send stands
    before the receive; ``flows_backwards`` are those whose receive stands before the send, which
    have no arrow. (A flow that repeats, after 2^32 messages of a channel, counts once.)

    Besides: ``displaced``, slices on lanes because they overlap others of their thread; ``early``,
    events before the run's zero; ``op_records`` and ``completion_records``, how many of the slices
    and instants are operations and completions; ``mark_records``: ``regions_closed`` (two each),
    ``regions_open`` and ``regions_stray_ends`` (begins without an end, ends without a begin),
    ``mark_instants``, ``mark_counters`` and ``mark_unknown`` (of a kind that is not known; not
    shown); ``target_left_out`` and ``aggregate_left_out``, records that have no times.
    """

    name: ClassVar[str] = "perfetto"
    requires: ClassVar[Columns] = {
        "ops": {
            "thread": "u4",
            "proc": "i4",
            "t_ns": "i8",
            "call_ns": "i8",
            "size_bytes": "u8",
            "op": "u1",
            "call": "u1",
            "depth": "u1",
            "flags": "u1",
            "src_proc": "i4",
            "dst_proc": "i4",
            "fate": "u1",
            "flow": "u8",
        },
        "completions": {
            "thread": "u4",
            "t_ns": "i8",
            "size_bytes": "u8",
            "status": "i4",
            "op": "u1",
            "flags": "u1",
        },
        "marks": {
            "proc": "i4",
            "thread": "u4",
            "t_ns": "i8",
            "value": "f8",
            "name": "u4",
            "kind": "u1",
        },
        "targets": {},
        "aggregates": {},
        "processes": {"proc": "i4", "label": "str", "host": "str", "pid": "i8"},
        "threads": {"thread": "u4", "proc": "i4", "tid": "u4", "name": "str"},
        "calls": {"call": "u1", "text": "str"},
        "names": {"proc": "i4", "name": "u4", "text": "str"},
        "timeline": {
            "bin": "u4",
            "proc": "i4",
            "layer": "u1",
            "op": "u1",
            "size_bytes": "u8",
        },
    }

    def write(self, part: Partition, run: Run, staging: Path) -> Piece:
        """Encode a partition's operations and completions; keep its marks for ``finish``."""
        name = f"perfetto-{part.number:06d}"
        with (staging / f"{name}.pftrace").open("wb") as file:
            writer = _writer(part.number, file, run)
            writer.write(operations(part, run))
            op_records = writer.counts["slices"] + writer.counts["instants"]
            writer.write(completions(part))
        flows.save(staging / f"{name}.flows", writer.ends)
        written = writer.counts["slices"] + writer.counts["instants"]
        records = {"op_records": op_records, "completion_records": written - op_records}
        records["target_left_out"] = part.tables["targets"].num_rows
        records["aggregate_left_out"] = part.tables["aggregates"].num_rows
        segments, borders = writer.summary()
        with (staging / f"{name}.npz").open("wb") as file:
            np.savez(file, segments=segments, borders=borders, marks=marks_of(part))
        files = tuple(f"{name}.{suffix}" for suffix in ("pftrace", "npz", "flows"))
        return Piece(part.number, files, {**writer.counts, **records})

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Join the pieces."""
        tracks = Tracks.of(run)
        found = [_summary(staging / piece.files[1]) for piece in pieces]
        marks = np.concatenate([np.empty(0, MARK), *(m for _, _, m in found)])
        key, texts = mark_texts(run, marks)
        rows, counts = regions(marks, key, texts, len(tracks.threads))
        paths = [staging / piece.files[0] for piece in pieces]
        paths.append(staging / "perfetto-regions.pftrace")
        with paths[-1].open("wb") as file:
            writer = _writer(max((p.number for p in pieces), default=0) + 1, file, run)
            writer.write(rows)
        summaries = [(segments, borders) for segments, borders, _ in found]
        summaries.append(writer.summary())
        traffic = traffic_counters(run, tracks, tracks.counters_from)
        own = mark_counters(marks, key, texts, tracks, traffic.next_uuid)
        base_ns = _zero(run, summaries, [traffic, own])
        with (staging / OUTPUT).open("wb") as out:
            out.write(packets.wall_clock(base_ns))
            out.write(describe(run, tracks, _used(summaries)))
            out.writelines(counters.encode(base_ns) for counters in (traffic, own))
            chosen = settle(summaries, tracks, base_ns)
            for path, settled in zip(paths, chosen, strict=True):
                _append(out, path, settled, tracks)
        total = Counter(counts)
        for more in (writer.counts, *(piece.counts for piece in pieces)):
            total.update(more)
        total.update(flows.count([staging / piece.files[2] for piece in pieces]))
        total["traffic_counters"], total["mark_counters"] = traffic.uuid.size, own.uuid.size
        total["counters"] = traffic.uuid.size + own.uuid.size
        return Exported((OUTPUT,), dict(total), _hint(total, base_ns))


def _hint(counts: Mapping[str, int], base_ns: int) -> str:
    hint = f"open {OUTPUT} in Perfetto's viewer; its zero is Unix time {base_ns} ns"
    if counts["aggregate_left_out"]:
        rows = counted(
            counts["aggregate_left_out"],
            "row of mode aggregate has no times and is",
            "rows of mode aggregate have no times and are",
        )
        hint += f"; {rows} not in it: export=json, csv, matrix or parquet shows what they hold"
    return hint


def operations(part: Partition, run: Run) -> Rows:
    """Return a partition's operations as rows of their threads' tracks."""
    proc, source = part.column("ops", "proc"), part.column("ops", "src_proc")
    op, call = part.column("ops", "op"), part.column("ops", "call")
    fate = part.column("ops", "fate")
    columns = (run.tables["calls"].column(k).to_pylist() for k in ("call", "text"))
    calls = dict(zip(*columns, strict=True))

    def name_text(key: int) -> str:
        return calls.get(key & 0xFF) or _op_text(key >> 8)

    return Rows(
        kind=Track.CALLS,
        thread=part.column("ops", "thread"),
        begin_ns=part.column("ops", "t_ns"),
        length_ns=part.column("ops", "call_ns"),
        depth=part.column("ops", "depth"),
        name=op.astype(np.uint32) << 8 | call,
        size_bytes=part.column("ops", "size_bytes"),
        flags=part.column("ops", "flags"),
        op=op,
        peer=np.where(source == proc, part.column("ops", "dst_proc"), source),
        note=np.where(fate >= Fate.PEER_UNKNOWN, fate, 0).astype(np.uint32),
        flow=part.column("ops", "flow"),
        name_text=name_text,
        note_text=lambda key: Fate(key).name.lower().replace("_", " "),
        note_name="unmatched",
    )


def completions(part: Partition) -> Rows:
    """Return a partition's completions as instants below their threads' tracks."""
    op, size = part.column("completions", "op"), part.column("completions", "size_bytes")
    flags = part.column("completions", "flags")
    statuses, status = np.unique(part.column("completions", "status"), return_inverse=True)
    none = np.zeros(op.size, np.uint8)
    return Rows(
        kind=Track.COMPLETIONS,
        thread=part.column("completions", "thread"),
        begin_ns=part.column("completions", "t_ns"),
        length_ns=none.astype(np.int64),
        depth=none,
        name=op.astype(np.uint32),
        size_bytes=size,
        flags=np.where(size == 0, flags | OpFlag.SIZE_UNKNOWN, flags).astype(np.uint8),
        op=op,
        peer=np.full(op.size, -1, np.int32),
        note=np.where(statuses[status] == 0, 0, status + 1).astype(np.uint32),
        flow=none.astype(np.uint64),
        name_text=lambda key: f"{_op_text(key)} completed",
        note_text=lambda key: str(statuses[key - 1]),
        note_name="status",
    )


def _op_text(op: int) -> str:
    return Op(op).name.lower() if op in list(Op) else f"operation {op}"


def _writer(number: int, file: BinaryIO, run: Run) -> PieceWriter:
    peers = run.tables["processes"].column("label").to_pylist()
    return PieceWriter(number, file, Tracks.of(run), peers, fact_ns(run, "base_ns"))


def _summary(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return file["segments"], file["borders"], file["marks"]


def _used(summaries: Sequence[tuple[np.ndarray, np.ndarray]]) -> set[tuple[int, int]]:
    segments = np.concatenate([np.empty(0, SEGMENT), *(s for s, _ in summaries)])
    return set(zip(segments["kind"].tolist(), segments["thread"].tolist(), strict=True))


def _zero(
    run: Run,
    summaries: Sequence[tuple[np.ndarray, np.ndarray]],
    counters: Sequence[Counters],
) -> int:
    """Return the trace's zero: the run's, or the first event's where that is earlier."""
    firsts = [fact_ns(run, "base_ns")]
    firsts += [int(segments["first_ns"].min()) for segments, _ in summaries if segments.size]
    firsts += [int(own.t_ns.min()) for own in counters if own.t_ns.size]
    return min(firsts)


def _append(out: BinaryIO, path: Path, settled: Settled, tracks: Tracks) -> None:
    """Copy a piece and fill in what was left open."""
    for uuid, thread in settled.spares:
        out.write(tracks.describe_lane(uuid, thread, "lane 2"))
    start = out.tell()
    with path.open("rb") as piece:
        shutil.copyfileobj(piece, out, _COPY_BYTES)
    for at, value in settled.patches:
        out.seek(start + at)
        out.write(packets.padded(value))
    out.seek(0, 2)
