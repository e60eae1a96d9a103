"""Hand-made runs and partitions for the tests of the Perfetto exporter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sigmatrace.export.base import Exported
from sigmatrace.export.perfetto import PerfettoExporter
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import EVENT_TABLES, INDEX_TABLES, STAGE_TABLES, Fate
from sigmatrace.sink import Sink
from sigmatrace.stages.clock import Clock
from sigmatrace.stages.match import Match
from sigmatrace.stages.topology import Topology
from sigmatrace.trace_format import Op
from tests.factories import make_table

BASE = 1_700_000_000_000_000_000
BIN = 1000
SEND, RECV, OUTER = 1, 2, 3
OF_OBJECTS = ("endpoints", "channels", "ports", "gids", "gpus", "gpu_queues")
OF_OBJECTS += ("kernels_not_recorded",)
OBJECTS = {name: INDEX_TABLES[name] for name in OF_OBJECTS}
OBJECTS["routes"] = STAGE_TABLES["routes"]
UNKNOWN = {"src_proc": -1, "dst_proc": -1, "rank": -1}


def table(columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return a table with these columns; what a row does not say is 0, "" or unknown."""
    unknown = {name: value for name, value in UNKNOWN.items() if name in columns}
    return make_table(columns, [{**unknown, **row} for row in rows])


def run(
    processes: Sequence[dict[str, Any]] | None = None,
    threads: Sequence[dict[str, Any]] | None = None,
    names: Sequence[dict[str, Any]] = (),
    timeline: Sequence[dict[str, Any]] = (),
    **objects: Sequence[dict[str, Any]],
) -> Run:
    """Return a run; by default of two processes, with one and with two threads.

    ``objects``: rows of ``endpoints``, ``channels``, ``routes``, ``ports`` and ``gids``.
    """
    processes = processes or [
        {"proc": 0, "label": "rank 0", "rank": 0, "host": "a", "pid": 100},
        {"proc": 1, "label": "rank 1", "rank": 1, "host": "b", "pid": 200},
    ]
    threads = threads or [
        {"thread": 0, "proc": 0, "tid": 100, "name": "main"},
        {"thread": 1, "proc": 1, "tid": 200, "name": "main"},
        {"thread": 2, "proc": 1, "tid": 201},
    ]
    calls = [
        {"call": SEND, "text": "fi_send"},
        {"call": RECV, "text": "fi_recv"},
        {"call": OUTER, "text": "ucp_tag_send_nbx"},
    ]
    tables = {
        "processes": table(INDEX_TABLES["processes"], processes),
        "threads": table(INDEX_TABLES["threads"], threads),
        "calls": table(INDEX_TABLES["calls"], calls),
        "names": table(INDEX_TABLES["names"], names),
        "timeline": table(STAGE_TABLES["timeline"], timeline),
        "chunk_times": table(STAGE_TABLES["chunk_times"], ()),
        **{name: table(columns, objects.get(name, ())) for name, columns in OBJECTS.items()},
    }
    return Run(tables, {"base_ns": BASE, "timeline_ns": BASE, "bin_ns": BIN})


def event_columns(name: str) -> dict[str, str]:
    """Return the columns of an event table, those of the built-in stages among them."""
    added = [stage.produces.get(name, {}) for stage in (Clock, Topology, Match)]
    return {**EVENT_TABLES[name], **added[0], **added[1], **added[2]}


def partition(
    number: int,
    ops: Sequence[dict[str, Any]] = (),
    completions: Sequence[dict[str, Any]] = (),
    marks: Sequence[dict[str, Any]] = (),
    **more: Sequence[dict[str, Any]],
) -> Partition:
    """Return a partition; ``t`` of a row is its time after ``BASE`` in ns.

    ``more``: rows of other event tables.
    """
    rows = {**dict.fromkeys(EVENT_TABLES, ()), "ops": ops, "completions": completions}
    return Partition(
        number,
        {
            name: table(
                event_columns(name),
                [
                    {"t_ns": BASE + row["t"], **{k: v for k, v in row.items() if k != "t"}}
                    for row in given
                ],
            )
            for name, given in {**rows, "marks": marks, **more}.items()
        },
    )


def send(t: int, length: int = 0, **more: Any) -> dict[str, Any]:
    """Return an operation of process 0: by default a send to process 1."""
    own = {"op": Op.SEND, "call": SEND, "src_proc": 0, "dst_proc": 1, "size_bytes": 8}
    return {"t": t, "call_ns": length, "fate": Fate.MATCHABLE, **own, **more}


def receive(t: int, flow: int = 0, **more: Any) -> dict[str, Any]:
    """Return an arrival in process 1, from process 0."""
    own = {"proc": 1, "thread": 1, "op": Op.RECV, "call": RECV, "src_proc": 0, "dst_proc": 1}
    return {"t": t, "flow": flow, "size_bytes": 8, **own, **more}


def export(folder: Path, parts: Sequence[Partition], of: Run | None = None) -> Exported:
    """Export partitions; the trace is ``folder / "trace.pftrace"``."""
    of = of or run()
    exporter = PerfettoExporter().prepared(of)
    pieces = []
    with Sink(folder, "events") as sink:
        for place, part in enumerate(parts):
            piece = exporter.write(part, of, folder)
            sink.put(place, piece.streams, None)
            pieces.append(piece.without_streams())
        sink.finish(len(pieces))
    return exporter.finish(pieces, of, folder)
