"""From a folder of rank files to all that is known of them.

One Dask graph over the files makes the index; one over partitions of events (``passes``) does the
stages and exporters. What is known at the end is resolved and finished by the caller's process.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO, cast

import pyarrow as pa

from sigmatrace import ledger
from sigmatrace.blame import blamed, writing
from sigmatrace.capture.account import Account, account, damage_rows
from sigmatrace.capture.index import FileIndex, index_file
from sigmatrace.capture.merge import ProcessBase, merge
from sigmatrace.capture.rank_files import find_rank_files
from sigmatrace.capture.read import PartitionSpec, ReadLoss, left_alone, plan
from sigmatrace.capture.tables import without_rows
from sigmatrace.capture.window import Cut
from sigmatrace.cluster import Cluster, Computation, Graph, Shared
from sigmatrace.errors import RunNotFoundError
from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.output import clear
from sigmatrace.partition import Run
from sigmatrace.passes import Outcome, Work, graph_of
from sigmatrace.plan import Plan
from sigmatrace.progress import Progress, tell
from sigmatrace.sink import Sink, write_whole
from sigmatrace.stages.base import Stage
from sigmatrace.stages.clock import Clock
from sigmatrace.stages.clock_calibration import calibrated
from sigmatrace.stages.clock_columns import Clocks, ticks_at
from sigmatrace.summary import said as said_of
from sigmatrace.text import count_text, counted
from sigmatrace.window import Window

BUCKETS = 64
AGAIN = ".again"
"""File of the staging folder that holds the stage for which all is done again."""


@dataclass(frozen=True)
class Indexed:
    """A run whose objects are read and whose events are not.

    Attributes:
        run: The index tables.
        files: Index by file, without the objects that ``run`` has.
        bases: Numbering by process.
        partitions: What the partitions of events consist of.
        left_alone: What none of them reads.
        partition_bytes: Of records, of a partition.
        window: The time that is read; None: all.
        cuts: By process the window in ticks; none without one.
    """

    run: Run
    files: Sequence[FileIndex]
    bases: Sequence[ProcessBase]
    partitions: Sequence[PartitionSpec]
    left_alone: ReadLoss
    partition_bytes: int
    window: Window | None = None
    cuts: Sequence[Cut] = ()

    def whole(self) -> Indexed:
        """Return the run with the partitions of all its time."""
        every = plan(self.files, self.bases, self.partition_bytes)
        return replace(self, partitions=every)

    def cut(self, clocks: Clocks) -> Indexed:
        """Return the run with the partitions of its window by these clocks."""
        if self.window is None:
            return self
        begin_ns, end_ns = self.window.at(int(cast(int, clocks.facts["base_ns"])))
        low, high = (ticks_at(clocks, t_ns).tolist() for t_ns in (begin_ns, end_ns))
        cuts = [replace(cut, low=low[p], high=high[p]) for p, cut in enumerate(self.cuts)]
        parts = plan(self.files, self.bases, self.partition_bytes, cuts)
        return replace(
            self,
            run=self.run.with_results({}, {"window_ns": (begin_ns, end_ns)}),
            partitions=parts,
            left_alone=left_alone(self.files, self.bases, parts),
            cuts=cuts,
        )


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


def index(
    folder: Path,
    cluster: Cluster,
    *,
    partition_bytes: int,
    run_id: str | None = None,
    window: Window | None = None,
    progress: TextIO | None = None,
) -> Indexed:
    """Read everything of a run but its events.

    Args:
        folder: Of the trace files.
        cluster: Where the work is done.
        partition_bytes: Of records, of a partition.
        run_id: Which run, where files of several lie in the folder.
        window: The time to be read; its partitions have the chunks that it needs alone.
        progress: Where to say how far the work is.

    Raises:
        RunNotFoundError: There is no trace file.
        ChunkFormatError: A file is of a version that this reader refuses.
        MixedRunsError: The files belong to several runs.
    """
    paths = find_rank_files(folder)
    name = f"index-{uuid.uuid4().hex}"
    graph: Graph = {(name, at): (index_file, path) for at, path in enumerate(paths)}
    counted = list(graph)
    graph[name, "all"] = (list, counted)
    with Progress("index", len(paths), progress) as shown:
        files = cluster.compute(Computation(graph, (name, "all"), counted), shown)
    if not any(file.whole_bytes for file in files):
        raise _nothing(folder, files)
    run, bases = merge(files, run_id)
    run = run.with_results({}, {"folder": folder.resolve().name})
    cuts = [Cut.of(files[base.index], 0, 0) for base in bases] if window is not None else []
    for file in files:
        file.forget_objects()
    indexed = Indexed(run, files, bases, (), ReadLoss(), partition_bytes, window, cuts)
    return indexed.whole() if window is None else indexed.cut(calibrated(run))


def _nothing(folder: Path, files: Sequence[FileIndex]) -> RunNotFoundError:
    """Return the error of files of which none holds anything."""
    why = [f"{path}: {what}" for file in files for path, what in file.unreadable.items()]
    if why:
        more = f", and {counted(len(why) - 1, 'more file')}" if len(why) > 1 else ""
        return RunNotFoundError(
            f"no trace data can be read in {folder}: {why[0]}{more}", "make the files readable"
        )
    return RunNotFoundError(
        f"no trace data in {folder}: its files ({len(files)}) are empty or damaged throughout",
        "nothing was recorded there; see what sigmatrace-capture said",
    )


def correlate(
    indexed: Indexed,
    chosen: Plan,
    staging: Path,
    cluster: Cluster,
    *,
    progress: TextIO | None = None,
) -> Correlated:
    """Run the stages over all partitions and let the exporters write into ``staging``.

    Where a stage says in the end that another one should have done its work, all is done again.
    What is staged says so, for a run that is killed then.
    """
    again = staging / AGAIN
    while True:
        if again.exists():
            chosen = chosen.with_stage(pickle.loads(again.read_bytes()))
        done = _correlate(indexed, chosen, staging, cluster, progress)
        if isinstance(done, Correlated):
            return done
        tell(progress, f"{done[0].name}: {done[1]}; all is done again\n")
        clear(staging)
        write_whole(again, pickle.dumps(done[0]))


def _correlate(
    indexed: Indexed, chosen: Plan, staging: Path, cluster: Cluster, progress: TextIO | None
) -> Correlated | tuple[Stage, str]:
    """Return what is known in the end, or the stage that should have done another one's work."""
    resolved: dict[str, Any] = {}
    run, indexed = _before(indexed, chosen, staging, cluster, progress, resolved)
    prepared = tuple(_prepared(one, run) for one in chosen.exporters)
    work = replace(_work(chosen, run, resolved, staging), exporters=prepared)
    outcome = _compute(work, indexed, cluster, "events", progress)
    late = damage_rows(indexed.files, indexed.bases, outcome.loss)
    run = run.with_results({"damage": pa.concat_tables([run.tables["damage"], late])})
    summaries = dict(zip((stage.name for stage in work.summed), outcome.summaries, strict=True))
    outcome = replace(outcome, summaries=())  # one by one they make room for the tables
    for stage in chosen.stages:
        if stage.name in summaries:
            run = _resolve(stage, summaries.pop(stage.name), run, resolved)
    for stage in chosen.stages:
        if other := _instead(stage, resolved.get(stage.name)):
            return other
    run, accounts = _joined(chosen, outcome, run)
    for stage in chosen.stages:
        if stage.summary == "tables":
            run = _resolve(stage, _survey(stage, run), run, resolved)
    lines = [*_resumed(work.sink, len(indexed.partitions))]
    for stage in chosen.stages:
        if stage.name in resolved:
            with blamed(stage, "account and lines"):
                accounts[stage.name] = stage.account(resolved[stage.name])
                lines += stage.lines(resolved[stage.name], run)
    told = account(indexed.files, indexed.bases, outcome.loss + indexed.left_alone)
    told = replace(told, window=_window(indexed))
    book = ledger.build(told, accounts, {})
    said = said_of(run, book, lines)
    exported = {
        exporter.name: _finish(_informed(exporter, book, said), pieces, run, staging)
        for exporter, pieces in zip(work.exporters, outcome.pieces, strict=True)
    }
    return Correlated(run, told, accounts, exported, lines)


def _before(
    indexed: Indexed,
    chosen: Plan,
    staging: Path,
    cluster: Cluster,
    progress: TextIO | None,
    resolved: dict[str, Any],
) -> tuple[Run, Indexed]:
    """Resolve the stages that do so before the main pass; return the run, and what is to be read.

    A window is one of corrected times, so that clocks are corrected by the whole run.
    """
    run = indexed.run
    for stage in chosen.stages:
        if stage.summary == "before":
            where = indexed.whole() if isinstance(stage, Clock) else indexed
            work = _work(chosen, run, resolved, staging, until=stage)
            outcome = _compute(work, where, cluster, f"{stage.name} (own pass)", progress)
            run = _resolve(stage, outcome.summaries[0], run, resolved)
            if isinstance(stage, Clock) and indexed.window is not None:
                indexed = indexed.cut(resolved[stage.name])
                run = run.with_results({}, {"window_ns": indexed.run.window_ns})
        elif stage.summary == "index":
            run = _resolve(stage, _survey(stage, run), run, resolved)
    return run, indexed


def _joined(
    chosen: Plan, outcome: Outcome, run: Run
) -> tuple[Run, dict[str, Mapping[str, object]]]:
    """Return the run with what exchanges joined, and what they say for the ledger."""
    accounts = {}
    for exchange, table in zip(chosen.exchanges, outcome.joined, strict=True):
        ((name, columns),) = exchange.produces.items()
        joined = without_rows(columns) if table is None else table
        run = run.with_results({name: joined})
        with blamed(exchange, "account"):
            accounts[exchange.name] = exchange.account(joined)
    return run, accounts


def _instead(stage: Stage, resolved: Any) -> tuple[Stage, str] | None:
    with blamed(stage, "instead"):
        return stage.instead(resolved) if resolved is not None else None


def _window(indexed: Indexed) -> dict[str, int]:
    """Return what the account says of a window."""
    window = indexed.run.window_ns
    if window is None:
        return {}
    return {
        "begin_ns": window[0],
        "end_ns": window[1],
        "chunks_read": sum(len(p.chunks) for spec in indexed.partitions for p in spec.pieces),
        "chunks_not_read": indexed.left_alone.chunks_not_read,
    }


def _resumed(sink: Sink, partitions: int) -> Iterator[str]:
    if sink.resumed:
        whole = counted(partitions, "partition")
        yield f"resumed    {count_text(sink.resumed)} of {whole} of a run that was killed"


def _survey(stage: Stage, run: Run) -> Any:
    with blamed(stage, "survey"):
        return stage.survey(run)


def _resolve(stage: Stage, summary: Any, run: Run, resolved: dict[str, Any]) -> Run:
    if stage.name in resolved:
        with blamed(stage, "conclude"):
            resolved[stage.name] = stage.conclude(resolved[stage.name], summary)
        return run
    with blamed(stage, "resolve"):
        known = stage.resolve(summary, run)
        resolved[stage.name] = known
        return run.with_results(stage.results(known), stage.facts(known))


def _prepared(exporter: Exporter, run: Run) -> Exporter:
    with blamed(exporter, "prepared"):
        return exporter.prepared(run)


def _informed(exporter: Exporter, book: Mapping[str, Any], said: Sequence[str]) -> Exporter:
    with blamed(exporter, "informed"):
        return exporter.informed(book, said)


def _finish(exporter: Exporter, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
    with blamed(exporter, "finish"), writing(exporter):
        return exporter.finish(sorted(pieces, key=lambda piece: piece.number), run, staging)


def _work(
    chosen: Plan, run: Run, resolved: Mapping[str, Any], staging: Path, until: Stage | None = None
) -> Work:
    """Return the work of the main pass, or of the pass that stage ``until`` needs for itself."""
    stages = chosen.stages
    if until is not None:
        stages = stages[: stages.index(until)]
    return Work(
        stages=tuple((stage, resolved.get(stage.name)) for stage in stages),
        exchanges=chosen.exchanges if until is None else (),
        exporters=chosen.exporters if until is None else (),
        summed=(until,) if until else tuple(s for s in stages if s.is_summed),
        unread=chosen.unread,
        run=run,
        staging=staging,
        sink=Sink(staging, until.name if until else "events"),
        buckets=BUCKETS,
    )


def _compute(
    work: Work, indexed: Indexed, cluster: Cluster, what: str, progress: TextIO | None
) -> Outcome:
    shared = Shared(work, work.staging)
    graph, key, counted = graph_of(shared, indexed.partitions)
    steps = (*(s for s, _ in work.stages), *work.summed, *work.exchanges, *work.exporters)
    modules = sorted({type(one).__module__ for one in steps})
    with work.sink, Progress(what, len(counted), progress) as shown:
        outcome: Outcome = cluster.compute(Computation(graph, key, counted, modules), shown)
        work.sink.finish(len(counted))
    return outcome
