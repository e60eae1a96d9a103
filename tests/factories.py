"""Builders of small runs and partitions by hand: only what a test is about is spelled out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import EVENT_TABLES, INDEX_TABLES
from sigmatrace.stages.base import Stage
from sigmatrace.trace_format import UNKNOWN_PEER, Dir, Kind, Layer, Op

ARROW = {
    "u1": pa.uint8(),
    "u4": pa.uint32(),
    "u8": pa.uint64(),
    "i4": pa.int32(),
    "i8": pa.int64(),
    "f8": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
}
START_NS = 1_800_000_000_000_000_000


def make_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return a table with these columns; what a row leaves out is 0 or ""."""
    zero = {name: {"str": "", "bool": False}.get(dtype, 0) for name, dtype in columns.items()}
    filled = [{**zero, **row} for row in rows]
    for row in filled:
        assert set(row) == set(columns), set(row) ^ set(columns)
    schema = pa.schema([(name, ARROW[dtype]) for name, dtype in columns.items()])
    return pa.Table.from_pylist(filled, schema=schema)


def make_run(
    facts: Mapping[str, object] | None = None, **tables: Sequence[Mapping[str, Any]]
) -> Run:
    """Return a run with the index tables; ``processes=[{}, {}]`` fills in plausible values."""
    processes = [
        {
            "proc": number,
            "label": f"rank {number}",
            "rank": number,
            "host": "node",
            "boot_id": "boot",
            "pid": 100 + number,
            "start_ns": START_NS,
            "tsc_hz": 2_000_000_000,
            "mode": "simple",
            **row,
        }
        for number, row in enumerate(tables.pop("processes", []))
    ]
    channels = [
        {"channel": number, "id": number, "layer": Layer.UCP, "kind": Kind.TAG, **row}
        for number, row in enumerate(tables.pop("channels", []))
    ]
    given = {"processes": processes, "channels": channels, **tables}
    return Run(
        {name: make_table(columns, given.get(name, [])) for name, columns in INDEX_TABLES.items()},
        facts or {},
    )


def make_partition(number: int = 0, **tables: Any) -> Partition:
    """Return a partition; a table is a list of rows or a dict of columns.

    Columns that stages add may be given, too; columns of the reader left out are 0.
    """
    made = {}
    for name, columns in EVENT_TABLES.items():
        given = tables.get(name, [])
        if isinstance(given, Mapping):
            size = len(next(iter(given.values())))
            given = {**{c: np.zeros(size, d) for c, d in columns.items()}, **given}
            arrays = {c: np.asarray(v, columns.get(c)) for c, v in given.items()}
            made[name] = pa.table({c: pa.array(v) for c, v in arrays.items()})
        else:
            made[name] = make_table(columns, given)
    return Partition(number, made)


def out_channel(proc: int, peer: int, **more: Any) -> dict[str, Any]:
    """Return an out-channel of object 1 (the worker) over endpoint ``peer``."""
    return {"proc": proc, "object": 1, "dir": Dir.OUT, "peer": peer, **more}


def in_channel(proc: int, peer: int = UNKNOWN_PEER, **more: Any) -> dict[str, Any]:
    """Return an in-channel of object 1 (the worker)."""
    return {"proc": proc, "object": 1, "dir": Dir.IN, "peer": peer, **more}


def ucp_endpoints(count: int, links: Iterable[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Return a worker (object 1) per process, and endpoints (proc, object, remote proc)."""
    workers = [
        {"proc": p, "object": 1, "layer": Layer.UCP, "type": "ucp_worker", "local": f"ucp:{p:016x}"}
        for p in range(count)
    ]
    return workers + [
        {
            "proc": p,
            "object": thing,
            "layer": Layer.UCP,
            "type": "ucp_ep",
            "owner": 1,
            "peer": f"ucp:{remote:016x}",
        }
        for p, thing, remote in links
    ]


def queue_pair(
    proc: int, thing: int, here: str = "", there: str = "", **more: Any
) -> dict[str, Any]:
    """Return a queue pair (a row of ``endpoints``); an end is ``PLACE:QPN``, "" if not known."""
    ends = {}
    for text, name, prefix in ((here, "local", ""), (there, "peer", "peer_")):
        place, _, qpn = text.rpartition(":")
        ends[name] = f"ib:{text}" if text else ""
        ends |= {f"{prefix}place": place, f"{prefix}qpn": int(qpn or "0", 16)}
    known = {"layer": Layer.VERBS, "type": "ib_qp", "sq_psn": -1}
    return {"proc": proc, "object": thing, **known, **ends, **more}


def message_rows(
    channel: int, op: Op, count: int, proc: int = 0, first: int = 0, **more: Any
) -> list[dict[str, Any]]:
    """Return ``count`` operations of a channel, ordinals ascending, posted in that order."""
    return [
        {
            "proc": proc,
            "channel": channel,
            "op": op,
            "ordinal": (first + k) % 2**32,
            "aux": (first + k) % 2**32 if op == Op.RECV else 0,
            "size_bytes": 8,
            "t_tsc": 1000 * (first + k),
            **more,
        }
        for k in range(count)
    ]


def two_by_two(stage: Stage, summaries: Iterable[Any]) -> Any:
    """Merge summaries as a tree of merges may: no more than two at a time."""
    return functools.reduce(lambda left, right: stage.combine_all([left, right]), summaries)
