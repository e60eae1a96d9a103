"""The exporter ``perfetto``: one trace file that Perfetto's viewer and trace_processor open.

Partitions are encoded in parallel, each to a piece whose packets need no further work, at its final
place in the file. ``finish`` fills in what only the whole run tells: the trace's zero, and the
tracks of slices that reach over a partition's border; descriptors and counters follow the pieces.

What is shown: each process with its threads; operations as slices (mode ``full``) or instants,
with size, peer and, when the pipeline could not match a message, the reason; arrows from send to
receive; completions and the program's regions on tracks below the thread's; traffic and the
program's counters below the process. Below the process also its queue pairs: requests in flight
as slices, in lanes, with what was posted, what arrived and what peers read and wrote, how many are
outstanding, and bytes per second; these also per NIC and GPU. Below the process also its GPUs, with
kernels, and the doorbells that their kernels rang. A message whose receive stands before its send
(clocks disagree) gets no arrow from Perfetto; ``perfetto_flows`` counts them.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from sigmatrace.devices import OBJECT_COLUMNS
from sigmatrace.errors import ConfigError
from sigmatrace.export import perfetto_flows as flows
from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.base import Exported, Exporter, Piece, places
from sigmatrace.export.perfetto_activity import activity_counters
from sigmatrace.export.perfetto_budget import MB, Plan, plan
from sigmatrace.export.perfetto_calls import completions, operations
from sigmatrace.export.perfetto_choice import Choice
from sigmatrace.export.perfetto_chosen import TABLES, Chosen
from sigmatrace.export.perfetto_counters import (
    Counters,
    amounts_of,
    mark_counters,
    object_counters,
    traffic_counters,
)
from sigmatrace.export.perfetto_describe import describe
from sigmatrace.export.perfetto_gpu import (
    GPU_COLUMNS,
    absence_rows,
    doorbell_rows,
    kernel_rows,
)
from sigmatrace.export.perfetto_left_out import arrows_equation, left_out
from sigmatrace.export.perfetto_marks import MARK, mark_texts, marks_of, regions
from sigmatrace.export.perfetto_posts import by_peer_rows, post_rows, targets_not_known
from sigmatrace.export.perfetto_queues import Depths, save_queues
from sigmatrace.export.perfetto_segments import PieceWriter
from sigmatrace.export.perfetto_settle import SEGMENT, Settled, settle
from sigmatrace.export.perfetto_split import Split, SplitExporter, described_alone
from sigmatrace.export.perfetto_tracks import Tracks
from sigmatrace.export.perfetto_verbs import VERBS_COLUMNS, cqe_rows, request_rows
from sigmatrace.layout import TRACE
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.text import counted

_COUNTERS = ("mark", "traffic", "object", "activity")
SHOWN = ("op", "completion", "request", "cqe", "doorbell", "kernel")
"""Schemas of which each record is a slice or an instant, or is counted as left out."""
Streams = Mapping[str, Sequence[bytes | memoryview]]
_NEVER_SHOWN = ("wqe", "target", "aggregate")


class PerfettoExporter(Exporter):
    """Writes ``trace.pftrace``.

    Its counts, as trace_processor sees them: the table ``slice`` has ``slices`` + ``instants``
    rows, ``counter`` has ``counters`` (``traffic_counters`` + ``mark_counters`` +
    ``object_counters``: of queue pairs and NICs); ``flow`` has one row for each of ``flows``, the
    messages of which both ends were exported and the send stands before the receive;
    ``flows_backwards`` are those whose receive stands before the send, which have no arrow. (A
    flow that repeats, after 2^32 messages of a channel, counts once.) ``one_sided_arrivals`` are
    among the flows, and among the instants: operations at the queue pairs that they reach unseen;
    of ``one_sided_targets_unknown`` operations these are not known.

    Besides: ``displaced``, slices on lanes because they overlap others of their thread; ``early``,
    events before the run's zero; ``op_records``, ``completion_records``, ``request_records`` and
    ``cqe_records``, ``doorbell_records`` and ``kernel_records``, how many of the slices and
    instants are these; ``qp_operations``, operations that tracks of queue pairs show besides (mode
    simple); ``doorbells_twice``, those that announce data and control, and so stand on two tracks;
    ``kernels_absent``, notes why a GPU has no kernels; ``request_left_out`` (posted receives; queue
    pairs that the index does not have), ``cqe_left_out``, ``doorbell_left_out`` and
    ``kernel_left_out`` (objects that it does not have); ``wqe_left_out`` (raw slots are not shown);
    In a choice: ``not_chosen``, ``beyond_budget``, ``flow_ends_left_out`` and
    ``one_sided_targets_known`` (``perfetto_left_out``); ``regions_left_out``; ``mark_left_out``, of
    processes that a file does not have; ``depths_thinned``, values of counters. In a window of a
    run: ``activity_counters`` (of the index) and ``regions_from_before``, stray ends whose region
    is shown from the window's begin on.
    ``mark_records``: ``regions_closed`` (two each), ``regions_open`` and ``regions_stray_ends``
    (begins without an end, ends without a begin), ``mark_instants``, ``mark_counters`` and
    ``mark_unknown`` (of a kind that is not known; not shown); ``target_left_out`` and
    ``aggregate_left_out``, records that have no times.
    """

    name: ClassVar[str] = "perfetto"
    requires: ClassVar[Columns] = {
        "ops": {
            "thread": "u4",
            "proc": "i4",
            "t_tsc": "u8",
            "t_ns": "i8",
            "call_ns": "i8",
            "size_bytes": "u8",
            "channel": "u4",
            "op": "u1",
            "call": "u1",
            "depth": "u1",
            "flags": "u1",
            "ordinal": "u4",
            "aux": "u4",
            "layer": "u1",
            "src_proc": "i4",
            "dst_proc": "i4",
            "fate": "u1",
            "lossy": "u1",
            "flow": "u8",
        },
        "completions": {
            "proc": "i4",
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
        **VERBS_COLUMNS,
        **GPU_COLUMNS,
        "targets": {},
        "aggregates": {},
        "processes": {
            "proc": "i4",
            "label": "str",
            "rank": "i4",
            "command": "str",
            "host": "str",
            "pid": "i8",
            "mode": "str",
        },
        "threads": {"thread": "u4", "proc": "i4", "tid": "u4", "name": "str"},
        "calls": {"call": "u1", "text": "str"},
        "names": {"proc": "i4", "name": "u4", "text": "str"},
        **OBJECT_COLUMNS,
        "chunk_times": STAGE_TABLES["chunk_times"],
        "timeline": {
            "bin": "u4",
            "proc": "i4",
            "layer": "u1",
            "op": "u1",
            "size_bytes": "u8",
        },
    }

    def __init__(
        self,
        window: str | None = None,
        ranks: str | None = None,
        qps: str | None = None,
        ops: str | None = None,
        budget_mb: int = 1000,
        split: str | None = None,
    ) -> None:
        if budget_mb < 1:
            raise ConfigError("export.perfetto.budget_mb must be at least 1", f"it is {budget_mb}")
        self._choice = Choice.parse("export.perfetto", window, ranks, qps, ops)
        self._budget_bytes = budget_mb * MB
        self._split = None if split is None else Split.parse("export.perfetto.split", split)
        self._output, self._is_first = TRACE, True
        self._plan = Plan(Chosen(), Chosen())
        self._tracks: Tracks

    def prepared(self, run: Run) -> Exporter:
        """Choose what is shown as slices and instants: what was asked for, within the budget."""
        tracks, base_ns = Tracks.of(run), run.fact_ns("base_ns")
        chosen = Chosen.of(self._choice, tracks, base_ns)
        parts = {TRACE: chosen}
        if self._split is not None:
            found = self._split.parts(chosen, run, base_ns)
            parts = {f"trace-{name}.pftrace": one for name, one in found}
        made = {}
        for name, one in parts.items():
            made[name] = copy(self)
            made[name]._output, made[name]._is_first = name, len(made) == 1
            made[name]._tracks = tracks
            made[name]._plan = plan(one, self._budget_bytes, run, tracks, len(parts) > 1)
        return made[TRACE] if self._split is None else SplitExporter(made)

    @property
    def _ends(self) -> str:
        """Name of the file of ends of arrows."""
        return f"{flows.ENDS}-{self._output}"

    def write(self, part: Partition, run: Run, staging: Path) -> Piece:
        """Encode a partition's events; keep what ``finish`` needs of marks and queue pairs."""
        tracks, chosen = self._tracks, self._plan.chosen
        shown = {name: chosen.only(part, name, tracks) for name in TABLES}
        reaching = chosen.reaching(part, tracks)
        name = f"perfetto-{self._output}-{part.number:06d}"
        base_ns = run.fact_ns("base_ns")
        writer = PieceWriter(part.number, tracks, base_ns)
        records = {
            "op_records": writer.write(operations(shown["ops"], run, tracks)),
            "completion_records": writer.write(completions(shown["completions"], tracks)),
            "request_records": 0,
            "cqe_records": 0,
            "doorbell_records": 0,
            "doorbells_twice": 0,
            "kernel_records": 0,
            "qp_operations": 0,
            "one_sided_arrivals": 0,
            "one_sided_targets_unknown": 0,
        }
        if tracks.qps.keys.size:
            records["qp_operations"] = writer.write(post_rows(shown["ops"], run, tracks))
            records["one_sided_arrivals"] = writer.write(by_peer_rows(reaching, run, tracks))
            records["one_sided_targets_unknown"] = targets_not_known(part, tracks)
            records["request_records"] = writer.write(request_rows(shown["requests"], tracks))
            records["cqe_records"] = writer.write(cqe_rows(shown["cqes"], tracks))
        if tracks.gpus.keys.size:
            doorbells, records["doorbells_twice"] = doorbell_rows(shown["doorbells"], tracks)
            records["doorbell_records"] = writer.write(doorbells) - records["doorbells_twice"]
            records["kernel_records"] = writer.write(kernel_rows(shown["kernels"], run, tracks))
        heads, ends = flows.collect(writer.written)
        queues = f"perfetto-{part.number:06d}.queues"
        if self._is_first:
            save_queues(staging / queues, part, tracks)
        for schema in (*SHOWN, *_NEVER_SHOWN):
            rows = part.tables[f"{schema}s"].num_rows
            records[f"{schema}_left_out"] = rows - records.get(f"{schema}_records", 0)
        asked = self._plan.asked if self._plan.is_cut else None
        records.update(left_out(part, shown, reaching, tracks, asked))
        segments, borders = writer.summary()
        marks, amounts = marks_of(part), amounts_of(part, tracks)
        kept = {"segments": segments, "borders": borders, "marks": marks, "amounts": amounts}
        with (staging / f"{name}.kept").open("wb") as file:
            pickle.dump({**kept, "heads": heads}, file, pickle.HIGHEST_PROTOCOL)
        counts = {**writer.counts, **records}
        streams: Streams = {self._output: writer.body, self._ends: ends}
        return Piece(part.number, (f"{name}.kept", queues), counts, streams)

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Fill in what was open, and write what is known only now."""
        tracks = self._tracks
        found = [_kept(staging / piece.files[0]) for piece in pieces]
        all_marks = np.concatenate([np.empty(0, MARK), *(kept["marks"] for kept in found)])
        chosen, amounts = self._plan.chosen, [kept["amounts"] for kept in found]
        run, marks, amounts = described_alone(chosen.described, run, all_marks, amounts, tracks)
        key, texts = mark_texts(run, marks)
        every, counts = regions(marks, key, texts, tracks)
        rows = chosen.regions(every, tracks)
        counts["regions_left_out"] = every.track.size - rows.track.size
        counts["mark_left_out"] = all_marks.size - marks.size
        last = max((p.number for p in pieces), default=0) + 1
        writer = PieceWriter(last, tracks, run.fact_ns("base_ns"))
        writer.write(rows)
        absent = writer.write(absence_rows(run, tracks, run.fact_ns("base_ns")))
        summaries = [(kept["segments"], kept["borders"]) for kept in found]
        summaries.append(writer.summary())
        activity = activity_counters(run, tracks, tracks.free)
        traffic = traffic_counters(run, tracks, activity.next_uuid)
        own = mark_counters(marks, key, texts, tracks, traffic.next_uuid)
        counters = [activity, traffic, own, *object_counters(run, tracks, amounts, own.next_uuid)]
        queues = [staging / piece.files[1] for piece in pieces]
        window = chosen.begin_ns, chosen.end_ns
        depths = Depths(queues, tracks, window, run.fact_ns("bin_ns"), chosen.described)
        base_ns = _zero(run, summaries, counters)
        with (staging / self._output).open("r+b") as out:
            starts = [*places(pieces, self._output), out.seek(0, 2)]
            out.writelines(writer.body)
            for start, settled in zip(starts, settle(summaries, base_ns), strict=True):
                _fill_in(out, start, settled, tracks)
            out.seek(0, 2)
            out.write(packets.wall_clock(base_ns))
            out.write(describe(run, tracks, _used(summaries, counters, depths), chosen.described))
            out.writelines(some.encode(base_ns) for some in counters)
            depths.write(out, last, counters[-1].next_uuid, base_ns)
        total = Counter({**counts, "kernels_absent": absent})
        for more in (writer.counts, *(piece.counts for piece in pieces)):
            total.update(more)
        ends = [kept["heads"] for kept in found], places(pieces, self._ends)
        total.update(flows.count(*ends, staging / self._ends))
        total.update(_counted(counters, depths))
        hint = _hint(self._output, total, base_ns, self._plan)
        return Exported((self._output,), dict(total), hint, balance(total))


def _counted(counters: Sequence[Counters], depths: Depths) -> Mapping[str, int]:
    activity, traffic, own, *objects = (some.uuid.size for some in counters)
    counts = {
        "activity_counters": activity,
        "traffic_counters": traffic,
        "mark_counters": own,
        "object_counters": sum(objects) + depths.values,
    }
    return {**counts, "counters": sum(counts.values()), "depths_thinned": depths.thinned}


def _hint(output: str, counts: Mapping[str, int], base_ns: int, made: Plan) -> str:
    hint = f"open {output} in Perfetto's viewer; its zero is Unix time {base_ns} ns"
    if counts["aggregate_left_out"]:
        rows = counted(
            counts["aggregate_left_out"],
            "row of mode aggregate has no times and is",
            "rows of mode aggregate have no times and are",
        )
        hint += f"; {rows} not in it: export=json, csv, matrix or parquet shows what they hold"
    if counts["flows_backwards"]:
        shown = counted(counts["flows_backwards"], "message")
        hint += f"; {shown} without an arrow: received before sent (clocks)"
    return "\n".join([hint, *made.notes(counts)])


def balance(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the equations of the counts, in the ledger's form; see ``PerfettoExporter``."""
    regions = sum(counts[key] for key in ("regions_closed", "regions_open", "mark_instants"))
    events = sum(counts[f"{schema}_records"] for schema in SHOWN)
    others = ("qp_operations", "one_sided_arrivals", "doorbells_twice", "kernels_absent")
    events += sum(counts[name] for name in others)
    ends = counts["regions_closed"] + counts["regions_stray_ends"]
    shown = regions + counts["regions_from_before"] - counts["regions_left_out"]
    return [
        {
            "name": "slices + instants = operations + completions + requests + cqes + doorbells"
            " + kernels + regions + instants of the program + operations on tracks of queue pairs"
            " + one-sided arrivals + doorbells on a second track + notes - regions left out",
            "left": counts["slices"] + counts["instants"],
            "right": events + shown,
        },
        {
            "name": "marks = 2 closed regions + open + stray ends + instants + counters + unknown",
            "left": counts["mark_records"],
            "right": regions + ends + counts["mark_counters"] + counts["mark_unknown"],
        },
        {
            "name": "counters = those of the program + of the traffic + of objects + of the index",
            "left": counts["counters"],
            "right": sum(counts[f"{what}_counters"] for what in _COUNTERS),
        },
        arrows_equation(counts),
    ]


def _kept(path: Path) -> Mapping[str, np.ndarray]:
    with path.open("rb") as file:
        kept: Mapping[str, np.ndarray] = pickle.load(file)
        return kept


def _used(
    summaries: Sequence[tuple[np.ndarray, np.ndarray]],
    counters: Sequence[Counters],
    depths: Depths,
) -> set[int]:
    """Return the numbers of the tracks that show something."""
    segments = np.concatenate([np.empty(0, SEGMENT), *(s for s, _ in summaries)])
    below = (parent for some in counters for parent in some.parents)
    return {*segments["track"].tolist(), *below, *depths.parents}


def _zero(
    run: Run,
    summaries: Sequence[tuple[np.ndarray, np.ndarray]],
    counters: Sequence[Counters],
) -> int:
    """Return the trace's zero: the run's, or the first event's where that is earlier."""
    firsts = [run.fact_ns("base_ns")]
    firsts += [int(segments["first_ns"].min()) for segments, _ in summaries if segments.size]
    firsts += [int(own.t_ns.min()) for own in counters if own.t_ns.size]
    return min(firsts)


def _fill_in(out: BinaryIO, start: int, settled: Settled, tracks: Tracks) -> None:
    """Fill in what was left open in a piece; describe the tracks that this takes at the end."""
    for at, value in settled.patches:
        out.seek(start + at)
        out.write(packets.padded(value))
    out.seek(0, 2)
    for uuid, track in settled.spares:
        out.write(tracks.describe_lane(uuid, track, 2))
