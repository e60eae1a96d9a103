"""One pass over the partitions of a run, as a Dask graph.

A task per partition reads it, applies the stages, sums up, and lets the exporters write; a tree of
small merges follows, and the exchanges.
"""

from __future__ import annotations

import functools
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from sigmatrace.blame import blamed, writing
from sigmatrace.capture.read import PartitionSpec, ReadLoss, read
from sigmatrace.capture.tables import without_rows
from sigmatrace.cluster import Graph, Key, Shared
from sigmatrace.export.base import Exporter, Piece
from sigmatrace.partition import Partition, Run, Tables
from sigmatrace.schema import EVENT_TABLES
from sigmatrace.sink import Sink
from sigmatrace.stages.base import Exchange, Stage, check_made

FAN_IN = 8


@dataclass(frozen=True)
class Work:
    """What every task of a pass needs.

    Attributes:
        stages: In their order, each with what it has resolved so far.
        exchanges, exporters: Those that take part.
        summed: Stages of which summaries are wanted.
        unread: Columns that nobody reads (``Plan.unread``).
        run: What is known of the run.
        staging: Where exporters write.
        sink: Takes what partitions make.
        buckets: Into how many parts exchanges split.
    """

    stages: tuple[tuple[Stage, Any], ...]
    exchanges: tuple[Exchange, ...]
    exporters: tuple[Exporter, ...]
    summed: tuple[Stage, ...]
    unread: frozenset[tuple[str, str]]
    run: Run
    staging: Path
    sink: Sink
    buckets: int

    @functools.cached_property
    def empty(self) -> Tables:
        """Tables of events without rows, by name, with all columns that the stages declare."""
        kinds = {name: dict(columns) for name, columns in EVENT_TABLES.items()}
        for stage, _ in self.stages:
            kinds.update((name, dict(columns)) for name, columns in stage.adds.items())
            for name in stage.produces.keys() & kinds.keys():
                kinds[name].update(stage.produces[name])
        return {name: without_rows(columns) for name, columns in kinds.items()}


@dataclass(frozen=True)
class Outcome:
    """What a partition, or several, came to.

    Attributes:
        loss: What reading found.
        summaries: By stage of ``Work.summed``; None: nothing was shown to it.
        pieces: By exporter.
        joined: What exchanges made.
        splits: What exchanges are to join.
    """

    loss: ReadLoss
    summaries: tuple[Any, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    joined: tuple[pa.Table | None, ...] = ()
    splits: tuple[Mapping[int, pa.Table], ...] = field(default=(), repr=False)


def graph_of(shared: Shared, partitions: Sequence[PartitionSpec]) -> tuple[Graph, Key, list[Key]]:
    """Return the graph of a pass, the key of its result, and the keys of its partitions.

    Without partitions an empty one stands in, so that there is an outcome.
    """
    unique, work = uuid.uuid4().hex, shared.value
    specs = partitions or [PartitionSpec(0, (), 0)]
    graph: Graph = {}
    parts: list[Key] = []
    for spec in specs:
        key: Key = (f"part-{unique}", spec.number)
        graph[key] = (_do_part, shared, spec)
        parts.append(key)
    joins = _joins(graph, unique, work, shared, parts) if work.exchanges else []
    small = parts
    if work.exchanges:
        small = [(f"small-{unique}", number) for number in range(len(parts))]
        graph.update({key: (_without_splits, part) for key, part in zip(small, parts, strict=True)})
    merged = _tree(graph, f"merge-{unique}", small, lambda keys: (_merge, shared, keys))
    last = (f"last-{unique}", 0)
    graph[last] = (_finished, shared, merged, joins)
    return graph, last, small


def _tree(graph: Graph, name: str, keys: list[Key], task: Callable[[list[Key]], Any]) -> Key:
    """Add a tree of merges over ``keys``, in their order; return the key of its root."""
    level = 0
    while len(keys) > 1 or level == 0:
        groups = [keys[at : at + FAN_IN] for at in range(0, len(keys), FAN_IN)]
        keys = [(f"{name}-{level}", number) for number in range(len(groups))]
        graph.update({key: task(group) for key, group in zip(keys, groups, strict=True)})
        level += 1
    return keys[0]


def _joins(graph: Graph, unique: str, work: Work, shared: Shared, parts: list[Key]) -> list[Key]:
    """Add the exchanges: pieces of each bucket from all partitions to one task, then a tree."""
    roots = []
    for which in range(len(work.exchanges)):
        buckets: list[Key] = []
        for bucket in range(work.buckets):
            pieces: list[Key] = []
            for number, part in enumerate(parts):
                key: Key = (f"split-{unique}", which, bucket, number)
                graph[key] = (_pick, part, which, bucket)
                pieces.append(key)
            buckets.append((f"join-{unique}", which, bucket))
            graph[buckets[-1]] = (_join, shared, which, pieces)
        name = f"joined-{unique}-{which}"
        roots.append(_tree(graph, name, buckets, partial(_combining, shared, which)))
    return roots


def _combining(shared: Shared, which: int, keys: list[Key]) -> tuple[Any, ...]:
    return _combine, shared, which, keys


def _do_part(shared: Shared, spec: PartitionSpec) -> Outcome:
    """Do a partition, unless an earlier run did."""
    sink: Sink = shared.value.sink
    done: Outcome | None = sink.record(spec.number)
    if done is not None:
        return done
    outcome = _made(shared.value, spec)
    pieces = [piece for (piece,) in outcome.pieces]
    streams = {name: parts for piece in pieces for name, parts in piece.streams.items()}
    outcome = replace(outcome, pieces=tuple((piece.without_streams(),) for piece in pieces))
    sink.put(spec.number, streams, outcome, [name for piece in pieces for name in piece.files])
    return outcome


def _made(work: Work, spec: PartitionSpec) -> Outcome:
    """Read a partition, apply the stages, sum up, and encode what exporters make of it."""
    part, loss = read(spec, work.unread)
    filled = {name: table for name, table in part.tables.items() if table.num_rows}
    part = replace(part, tables={**work.empty, **filled}, run=work.run)
    summaries = {}
    for stage, resolved in work.stages:
        if stage.is_concerned(part):
            part = _applied(stage, part, resolved)
            if stage in work.summed:
                summaries[stage.name] = _summarize(stage, part)
    for stage in work.summed:
        if stage.name not in summaries and stage.is_concerned(part):
            summaries[stage.name] = _summarize(stage, part)
    return Outcome(
        loss,
        tuple(summaries.get(stage.name) for stage in work.summed),
        tuple((_write(exporter, part, work),) for exporter in work.exporters),
        splits=tuple(_split(exchange, part, work.buckets) for exchange in work.exchanges),
    )


def _applied(stage: Stage, part: Partition, resolved: Any) -> Partition:
    with blamed(stage, f"apply of partition {part.number}"):
        made = stage.apply(part, resolved)
        check_made(stage, part, made)
        return made


def _summarize(stage: Stage, part: Partition) -> Any:
    with blamed(stage, f"summarize of partition {part.number}"):
        return stage.summarize(part)


def _split(exchange: Exchange, part: Partition, buckets: int) -> Mapping[int, pa.Table]:
    with blamed(exchange, f"split of partition {part.number}"):
        found = exchange.split(part, buckets)
        return {number: _on_its_own(table) for number, table in found.items()}


def _on_its_own(table: pa.Table) -> pa.Table:
    """Return a table with memory of its own: a slice is kept, and pickled, with all of its parent.

    Each bucket would be as large as the partition.
    """
    columns = [pa.concat_arrays(column.chunks) if column.num_chunks else column for column in table]
    return pa.table(columns, schema=table.schema)


def _write(exporter: Exporter, part: Partition, work: Work) -> Piece:
    with blamed(exporter, f"write of partition {part.number}"), writing(exporter):
        return exporter.write(part, work.run, work.staging)


def _without_splits(outcome: Outcome) -> Outcome:
    return Outcome(outcome.loss, outcome.summaries, outcome.pieces)


def _merge(shared: Shared, outcomes: list[Outcome]) -> Outcome:
    work: Work = shared.value
    return Outcome(
        functools.reduce(operator.add, (one.loss for one in outcomes)),
        tuple(
            _combined(stage, [one.summaries[at] for one in outcomes])
            for at, stage in enumerate(work.summed)
        ),
        tuple(
            tuple(piece for one in outcomes for piece in one.pieces[at])
            for at in range(len(work.exporters))
        ),
    )


def _combined(stage: Stage, summaries: list[Any]) -> Any:
    there = [summary for summary in summaries if summary is not None]
    with blamed(stage, "combine"):
        return stage.combine_all(there) if there else None


def _finished(shared: Shared, outcome: Outcome, joined: list[pa.Table | None]) -> Outcome:
    """Return the outcome of all with what exchanges made; each stage has a summary."""
    work: Work = shared.value
    nothing = Partition(0, work.empty, work.unread, work.run)
    summaries = tuple(
        _summarize(stage, nothing) if summary is None else summary
        for stage, summary in zip(work.summed, outcome.summaries, strict=True)
    )
    return Outcome(outcome.loss, summaries, outcome.pieces, tuple(joined))


def _pick(outcome: Outcome, which: int, bucket: int) -> pa.Table | None:
    return outcome.splits[which].get(bucket)


def _join(shared: Shared, which: int, pieces: list[pa.Table | None]) -> pa.Table | None:
    there = [piece for piece in pieces if piece is not None]
    exchange: Exchange = shared.value.exchanges[which]
    with blamed(exchange, "join"):
        return exchange.join(there) if there else None


def _combine(shared: Shared, which: int, tables: list[pa.Table | None]) -> pa.Table | None:
    there = [table for table in tables if table is not None]
    exchange: Exchange = shared.value.exchanges[which]
    with blamed(exchange, "combine"):
        result = there[0] if there else None
        for table in there[1:]:
            result = exchange.combine(result, table)
        return result
