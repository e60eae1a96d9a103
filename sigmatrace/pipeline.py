"""Builds the Dask graphs: one over rank files for the index, one over partitions of events.

A task per partition reads it, applies all stages, sums up, and lets the exporters write; a tree
of small merges follows. What is known at the end is resolved and finished by the caller's process.
"""

from __future__ import annotations

import sys
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from sigmatrace.capture.account import Account, account, damage_rows
from sigmatrace.capture.index import FileIndex, find_rank_files, index_file
from sigmatrace.capture.merge import ProcessBase, merge
from sigmatrace.capture.read import PartitionSpec, ReadLoss, plan, read
from sigmatrace.capture.tables import without_rows
from sigmatrace.cluster import Cluster, Graph, Key, Shared
from sigmatrace.errors import OutputError, PipelineError, RunNotFoundError, SigmaTraceError
from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.partition import Partition, Run
from sigmatrace.plan import Plan
from sigmatrace.progress import Progress
from sigmatrace.stages.base import Exchange, Stage

FAN_IN = 8
BUCKETS = 64


@dataclass(frozen=True)
class Indexed:
    """A run whose objects are read and whose events are not.

    Attributes:
        run: The index tables.
        files: Index by file.
        bases: Numbering by process.
        partitions: What the partitions of events consist of.
    """

    run: Run
    files: Sequence[FileIndex]
    bases: Sequence[ProcessBase]
    partitions: Sequence[PartitionSpec]


@dataclass(frozen=True)
class Correlated:
    """A run of which everything is known.

    Attributes:
        run: All tables and facts.
        account: What became of every byte and record.
        stages: What stages and exchanges say for the ledger, by name.
        exported: What exporters made, by name.
        lines: What stages say for the closing summary.
    """

    run: Run
    account: Account
    stages: Mapping[str, Mapping[str, object]]
    exported: Mapping[str, Exported]
    lines: Sequence[str]


@dataclass(frozen=True)
class _Work:
    """What every task of a pass needs."""

    stages: tuple[tuple[Stage, Any], ...]
    exchanges: tuple[Exchange, ...]
    exporters: tuple[Exporter, ...]
    summed: tuple[Stage, ...]
    unread: frozenset[tuple[str, str]]
    run: Run
    staging: Path
    buckets: int


@dataclass(frozen=True)
class _Outcome:
    """What a partition, or several, came to."""

    loss: ReadLoss
    summaries: tuple[Any, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    joined: tuple[pa.Table | None, ...] = ()
    splits: tuple[Mapping[int, pa.Table], ...] = field(default=(), repr=False)


def index(
    folder: Path,
    cluster: Cluster,
    *,
    partition_bytes: int,
    run_id: str | None = None,
    progress: TextIO | None = None,
) -> Indexed:
    """Read everything of a run but its events.

    Raises:
        RunNotFoundError: There is no trace file.
        ChunkFormatError: A file is of a version that this reader refuses.
        MixedRunsError: The files belong to several runs.
    """
    paths = find_rank_files(folder)
    name = f"index-{uuid.uuid4().hex}"
    graph: Graph = {(name, at): (index_file, path) for at, path in enumerate(paths)}
    counted = list(graph)
    graph[name, "all"] = (_listed, counted)
    with Progress("index", len(paths), progress) as shown:
        files = cluster.compute(graph, (name, "all"), counted, shown)
    if not any(file.whole_bytes for file in files):
        raise RunNotFoundError(
            f"no trace data in {folder}: its files ({len(files)}) are empty or damaged throughout",
            "nothing was recorded there; see what sigmatrace-capture said",
        )
    run, bases = merge(files, run_id)
    return Indexed(run, files, bases, plan(files, bases, partition_bytes))


def correlate(
    indexed: Indexed,
    chosen: Plan,
    staging: Path,
    cluster: Cluster,
    *,
    progress: TextIO | None = None,
) -> Correlated:
    """Run the stages over all partitions and let the exporters write into ``staging``."""
    run = indexed.run
    resolved: dict[str, Any] = {}
    for stage in chosen.stages:
        if stage.summary == "before":
            work = _work(chosen, run, resolved, staging, until=stage)
            outcome = _compute(work, indexed, cluster, f"{stage.name} (own pass)", progress)
            summary = outcome.summaries[0] if outcome else None
        elif stage.summary == "index":
            with _blamed(stage, "survey"):
                summary = stage.survey(run)
        else:
            continue
        run = _resolve(stage, summary, run, resolved)
    work = _work(chosen, run, resolved, staging)
    outcome = _compute(work, indexed, cluster, "events", progress)
    late = damage_rows(indexed.files, indexed.bases, outcome.loss)
    run = run.with_results({"damage": pa.concat_tables([run.tables["damage"], late])})
    summaries = dict(zip((stage.name for stage in work.summed), outcome.summaries, strict=True))
    for stage in chosen.stages:
        if stage.name in summaries:
            run = _resolve(stage, summaries[stage.name], run, resolved)
    accounts = {}
    for exchange, table in zip(chosen.exchanges, outcome.joined, strict=True):
        ((name, columns),) = exchange.produces.items()
        joined = without_rows(columns) if table is None else table
        run = run.with_results({name: joined})
        with _blamed(exchange, "account"):
            accounts[exchange.name] = exchange.account(joined)
    lines: list[str] = []
    for stage in chosen.stages:
        if stage.name in resolved:
            with _blamed(stage, "account and lines"):
                accounts[stage.name] = stage.account(resolved[stage.name])
                lines += stage.lines(resolved[stage.name], run)
    exported = {
        exporter.name: _finish(exporter, pieces, run, staging)
        for exporter, pieces in zip(chosen.exporters, outcome.pieces, strict=True)
    }
    told = account(indexed.files, indexed.bases, outcome.loss)
    return Correlated(run, told, accounts, exported, lines)


def _resolve(stage: Stage, summary: Any, run: Run, resolved: dict[str, Any]) -> Run:
    if stage.name in resolved:
        with _blamed(stage, "conclude"):
            resolved[stage.name] = stage.conclude(resolved[stage.name], summary)
        return run
    with _blamed(stage, "resolve"):
        known = stage.resolve(summary, run)
        resolved[stage.name] = known
        return run.with_results(stage.results(known), stage.facts(known))


def _finish(exporter: Exporter, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
    with _blamed(exporter, "finish"), _writing(exporter):
        return exporter.finish(sorted(pieces, key=lambda piece: piece.number), run, staging)


def _work(
    chosen: Plan, run: Run, resolved: Mapping[str, Any], staging: Path, until: Stage | None = None
) -> _Work:
    """Return the work of the main pass, or of the pass that stage ``until`` needs for itself."""
    stages = chosen.stages
    if until is not None:
        stages = stages[: stages.index(until)]
    return _Work(
        stages=tuple((stage, resolved.get(stage.name)) for stage in stages),
        exchanges=chosen.exchanges if until is None else (),
        exporters=chosen.exporters if until is None else (),
        summed=(until,) if until else tuple(s for s in stages if s.is_summed),
        unread=chosen.unread,
        run=run,
        staging=staging,
        buckets=BUCKETS,
    )


def _compute(
    work: _Work, indexed: Indexed, cluster: Cluster, what: str, progress: TextIO | None
) -> _Outcome:
    shared = Shared(work, work.staging)
    graph, key, counted = _graph(shared, work, indexed.partitions)
    steps = (*(s for s, _ in work.stages), *work.summed, *work.exchanges, *work.exporters)
    modules = sorted({type(one).__module__ for one in steps})
    with Progress(what, len(counted), progress) as shown:
        outcome: _Outcome = cluster.compute(graph, key, counted, shown, modules)
    return outcome


def _graph(
    shared: Shared, work: _Work, partitions: Sequence[PartitionSpec]
) -> tuple[Graph, Key, list[Key]]:
    """Return the graph of a pass, the key of its result, and the keys of its partitions.

    Without partitions one empty partition stands in, so that summaries are of the right kind.
    """
    unique = uuid.uuid4().hex
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
    graph[last] = (_with_joined, merged, joins)
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


def _joins(graph: Graph, unique: str, work: _Work, shared: Shared, parts: list[Key]) -> list[Key]:
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


def _listed(results: list[Any]) -> list[Any]:
    return results


def _do_part(shared: Shared, spec: PartitionSpec) -> _Outcome:
    """Read a partition, apply the stages, sum up, and write what exporters make of it."""
    work: _Work = shared.value
    part, loss = read(spec)
    part = replace(part, unread=work.unread)
    summaries = {}
    for stage, resolved in work.stages:
        with _blamed(stage, f"apply of partition {spec.number}"):
            part = stage.apply(part, resolved)
        if stage in work.summed:
            summaries[stage.name] = _summarize(stage, part)
    for stage in work.summed:
        if stage.name not in summaries:
            summaries[stage.name] = _summarize(stage, part)
    return _Outcome(
        loss,
        tuple(summaries[stage.name] for stage in work.summed),
        tuple((_write(exporter, part, work),) for exporter in work.exporters),
        splits=tuple(_split(exchange, part, work.buckets) for exchange in work.exchanges),
    )


def _summarize(stage: Stage, part: Partition) -> Any:
    with _blamed(stage, f"summarize of partition {part.number}"):
        return stage.summarize(part)


def _split(exchange: Exchange, part: Partition, buckets: int) -> Mapping[int, pa.Table]:
    with _blamed(exchange, f"split of partition {part.number}"):
        return exchange.split(part, buckets)


def _write(exporter: Exporter, part: Partition, work: _Work) -> Piece:
    with _blamed(exporter, f"write of partition {part.number}"), _writing(exporter):
        return exporter.write(part, work.run, work.staging)


def _without_splits(outcome: _Outcome) -> _Outcome:
    return _Outcome(outcome.loss, outcome.summaries, outcome.pieces)


def _merge(shared: Shared, outcomes: list[_Outcome]) -> _Outcome:
    work: _Work = shared.value
    first, *others = outcomes
    loss, summaries, pieces = first.loss, list(first.summaries), list(first.pieces)
    for other in others:
        loss = loss + other.loss
        for at, stage in enumerate(work.summed):
            with _blamed(stage, "combine"):
                summaries[at] = stage.combine(summaries[at], other.summaries[at])
        pieces = [left + right for left, right in zip(pieces, other.pieces, strict=True)]
    return _Outcome(loss, tuple(summaries), tuple(pieces))


def _with_joined(outcome: _Outcome, joined: list[pa.Table | None]) -> _Outcome:
    return _Outcome(outcome.loss, outcome.summaries, outcome.pieces, tuple(joined))


def _pick(outcome: _Outcome, which: int, bucket: int) -> pa.Table | None:
    return outcome.splits[which].get(bucket)


def _join(shared: Shared, which: int, pieces: list[pa.Table | None]) -> pa.Table | None:
    there = [piece for piece in pieces if piece is not None]
    exchange: Exchange = shared.value.exchanges[which]
    with _blamed(exchange, "join"):
        return exchange.join(there) if there else None


def _combine(shared: Shared, which: int, tables: list[pa.Table | None]) -> pa.Table | None:
    there = [table for table in tables if table is not None]
    exchange: Exchange = shared.value.exchanges[which]
    with _blamed(exchange, "combine"):
        result = there[0] if there else None
        for table in there[1:]:
            result = exchange.combine(result, table)
        return result


@contextmanager
def _blamed(step: Stage | Exchange | Exporter, doing: str) -> Iterator[None]:
    """Name the step in which something unexpected happened."""
    try:
        yield
    except SigmaTraceError:
        raise
    except Exception as error:
        own = type(step).__module__.startswith("sigmatrace.")
        kind = SigmaTraceError if own else PipelineError
        frames = traceback.extract_tb(error.__traceback__)
        home = getattr(sys.modules.get(type(step).__module__), "__file__", None)
        at = next((one for one in reversed(frames) if one.filename == home), frames[-1])
        raise kind(
            f"{_kind(step)} {step.name} failed in {doing}: {type(error).__name__}: {error}",
            f"{at.filename}, line {at.lineno}; --debug shows the way there",
        ) from error


def _kind(step: Stage | Exchange | Exporter) -> str:
    """Return the word for a step, as in the configuration."""
    return "export" if isinstance(step, Exporter) else "stage"


@contextmanager
def _writing(exporter: Exporter) -> Iterator[None]:
    """Report what the operating system refuses as an output that cannot be written."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{exporter.name} cannot write: {error.strerror or error}", "give another out=DIR"
        ) from error
