"""Puts stages into order by the columns they require and produce, before anything is computed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from sigmatrace.capture.rank_files import find_rank_files
from sigmatrace.errors import PipelineError
from sigmatrace.export.base import Exporter
from sigmatrace.schema import EVENT_TABLES, INDEX_TABLES, Columns
from sigmatrace.settings import Settings
from sigmatrace.stages.base import Exchange, Stage
from sigmatrace.text import byte_text, counted

READER = "the reader"
Step = Stage | Exchange
Column = tuple[str, str]


@dataclass(frozen=True)
class Plan:
    """What will run, in order.

    Attributes:
        stages: Stages in an order in which every column is there before it is read.
        exchanges: Exchanges, after all stages.
        exporters: Exporters, in the order of their names.
        settings: Which run they are to work on, if that is known.
    """

    stages: tuple[Stage, ...]
    exchanges: tuple[Exchange, ...]
    exporters: tuple[Exporter, ...]
    settings: Settings | None = None

    @property
    def passes(self) -> int:
        """How many times the event bytes are read."""
        return 1 + sum(stage.summary == "before" for stage in self.stages)

    def with_stage(self, stage: Stage) -> Plan:
        """Return the plan with another stage in the place of that of the same name.

        Raises:
            PipelineError: It does not fit together.
        """
        stages = [stage if one.name == stage.name else one for one in self.stages]
        other = make([*stages, *self.exchanges], self.exporters)
        return replace(other, settings=self.settings)

    @property
    def unread(self) -> frozenset[Column]:
        """Columns of the reader's tables, stages' columns among them, that no step requires."""
        steps: tuple[Step | Exporter, ...] = (*self.stages, *self.exchanges, *self.exporters)
        made = {
            (table, column)
            for columns_of in (EVENT_TABLES, *(stage.produces for stage in self.stages))
            for table, columns in columns_of.items()
            if table in EVENT_TABLES
            for column in columns
        }
        return frozenset(
            (table, column)
            for table, column in made
            if not any(_reads(step.requires, table, column) for step in steps)
        )

    def text(self) -> str:
        """Return the plan for people: one line a step, passes over event bytes last.

        Raises:
            RunNotFoundError: The folder of the run has no trace file.
        """
        events = _event_tables(self.stages)
        lines = list(_of_run(self.settings)) if self.settings else []
        lines += ["index      reads headers, objects and chunk headers of all rank files"]
        for stage in self.stages:
            when = {
                "index": "from the index",
                "before": "a pass of its own",
                "after": "summed up in the main pass",
                "tables": "from tables, in the end",
                None: "in the main pass",
            }[stage.summary]
            lines.append(f"stage      {stage.name:12} {when:28} -> {_shown(stage, events)}")
        for exchange in self.exchanges:
            lines.append(
                f"exchange   {exchange.name:12} {'rows of two ranks meet':28} -> "
                f"{_shown(exchange, events)}"
            )
        lines += [f"export     {exporter.name}" for exporter in self.exporters]
        if self.unread:
            lines.append(f"unread     {_listed(self.unread)}: may be left out")
        lines.append(f"passes over event bytes: {self.passes}")
        return "\n".join(lines)


def _of_run(settings: Settings) -> Iterator[str]:
    """Yield what can be told of a run without reading it; it need not be there."""
    if not settings.run.is_dir():
        return
    paths = find_rank_files(settings.run)
    size = byte_text(sum(path.stat().st_size for path in paths if path.is_file()))
    each = f"read in partitions of {settings.partition_mb} MiB of records"
    yield f"run        {settings.run}: {counted(len(paths), 'file')}, {size}; {each}"
    if settings.window is not None:
        time = settings.window.written.partition("=")[2]
        yield f"window     {time}: chunks of records outside are not read"


def make(steps: Iterable[Step], exporters: Iterable[Exporter]) -> Plan:
    """Order the steps and check that they and the exporters fit together.

    Args:
        steps: Stages and exchanges in any order; the result does not depend on it.
        exporters: What is to be written.

    Raises:
        PipelineError: A column has no producer, two producers or another dtype than is
            required, steps need each other's columns, or an exchange does not produce exactly
            one whole-run table. The stage and column are named.
    """
    steps = sorted(steps, key=lambda step: step.name)
    chosen = sorted(exporters, key=lambda exporter: exporter.name)
    producers = _producers(steps)
    needs = {step.name: _providers(step.name, step.requires, producers) for step in steps}
    for exporter in chosen:
        _providers(exporter.name, exporter.requires, producers)
    ordered = _sorted(steps, needs)
    _check_exchanges(ordered)
    _check_times(ordered, needs)
    return Plan(
        tuple(step for step in ordered if isinstance(step, Stage)),
        tuple(step for step in ordered if isinstance(step, Exchange)),
        tuple(chosen),
    )


def completed(steps: Sequence[Step], exporters: Sequence[Exporter]) -> list[Step]:
    """Return the steps, and the built-in ones that make what they and the exporters lack."""
    found = list(steps)
    while True:
        own = itertools.chain.from_iterable(map(_made, found))
        tables = itertools.chain(INDEX_TABLES.items(), EVENT_TABLES.items(), own)
        made = {(table, column) for table, columns in tables for column in columns}
        lacking = {at for user in (*found, *exporters) for at in _wanted(user.requires, made)}
        more = next((step for step in _built_in(lacking) if step.name not in _names(found)), None)
        if more is None:
            return found
        found.append(more)


def _wanted(requires: Columns, made: Set[Column]) -> Iterator[Column]:
    """Yield the columns that nobody makes; "" stands for those of a table that is not there."""
    tables = {table for table, _ in made}
    for table, columns in requires.items():
        if table not in tables:
            yield table, ""
        yield from ((table, column) for column in columns if (table, column) not in made)


def _built_in(lacking: Set[Column]) -> Iterator[Step]:
    """Yield the built-in steps, new ones, that make any of these columns."""
    if not lacking:
        return
    from sigmatrace import config  # with Hydra, which takes its time

    for make in config.shipped("stage", (Stage, Exchange)).values():
        tables = dict(_made(make))
        if any(t in tables and (not c or c in tables[t]) for t, c in lacking):
            yield make()


def _names(steps: Iterable[Step]) -> set[str]:
    return {step.name for step in steps}


def _reads(requires: Columns, table: str, column: str) -> bool:
    """Return whether a step that requires these columns reads a column; none named are all."""
    return table in requires and (not requires[table] or column in requires[table])


def _listed(columns: Iterable[Column]) -> str:
    """Return columns by table, as text."""
    grouped = itertools.groupby(sorted(columns), lambda at: at[0])
    return " ".join(f"{table}.{{{','.join(x for _, x in group)}}}" for table, group in grouped)


def _event_tables(steps: Iterable[Step]) -> frozenset[str]:
    """Return the names of the tables that partitions have: the reader's, and what stages add."""
    return frozenset(EVENT_TABLES).union(*(step.adds for step in steps if isinstance(step, Stage)))


def _made(step: Step | type[Step]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the tables, with columns, that a step makes or adds columns to."""
    yield from step.produces.items()
    yield from getattr(step, "adds", {}).items()


def _shown(step: Step, events: Set[str]) -> str:
    parts = (
        f"{table}.{{{','.join(columns)}}}" if table in events else table
        for table, columns in _made(step)
    )
    return " ".join(parts) or "nothing"


def _producers(steps: Sequence[Step]) -> dict[Column, tuple[str, str]]:
    """Map each column to the name of its producer and its dtype."""
    found: dict[Column, tuple[str, str]] = {}
    for table, columns in (*INDEX_TABLES.items(), *EVENT_TABLES.items()):
        found.update({(table, column): (READER, dtype) for column, dtype in columns.items()})
    for step in steps:
        for table, columns in _made(step):
            for column, dtype in columns.items():
                if (table, column) in found:
                    raise PipelineError(
                        f"stage {step.name} produces {table}.{column}, which "
                        f"{found[table, column][0]} produces too",
                        "leave one of them out, or give the column another name",
                    )
                found[table, column] = (step.name, dtype)
    return found


def _providers(
    user: str, requires: Columns, producers: Mapping[Column, tuple[str, str]]
) -> set[Column]:
    """Return the columns that ``user`` reads, each checked for a producer and its dtype."""
    read: set[Column] = set()
    for table, columns in requires.items():
        of_table = {at for at in producers if at[0] == table}
        if not of_table:
            raise _missing(user, table, None)
        read |= of_table if not columns else set()
        for column, dtype in columns.items():
            if (table, column) not in producers:
                raise _missing(user, table, column)
            producer, made = producers[table, column]
            if made != dtype:
                raise PipelineError(
                    f"{user} requires {table}.{column} as {dtype}, but {producer} makes it {made}",
                    "correct the dtype in requires or in produces",
                )
            read.add((table, column))
    return read


def _missing(user: str, table: str, column: str | None) -> PipelineError:
    name = table if column is None else f"{table}.{column}"
    from sigmatrace import config

    for built_in, step in config.shipped("stage", (Stage, Exchange)).items():
        made = dict(_made(step)).get(table)
        if made is not None and (column is None or column in made):
            return PipelineError(
                f"{user} requires {name}, which no chosen stage produces",
                f"stage {built_in} would; add it to stage=[...]",
            )
    return PipelineError(
        f"{user} requires {name}, which no chosen stage produces",
        "no built-in stage does either; check the name, or add the stage that makes it",
    )


def _sorted(steps: Sequence[Step], needs: Mapping[str, set[Column]]) -> list[Step]:
    makers = {
        (table, column): step.name
        for step in steps
        for table, columns in _made(step)
        for column in columns
    }
    waits = {
        step.name: {makers[column]: column for column in sorted(needs[step.name] & makers.keys())}
        for step in steps
    }
    ordered: list[Step] = []
    left = list(steps)
    while left:
        done = {step.name for step in ordered}
        ready = next((step for step in left if waits[step.name].keys() <= done), None)
        if ready is None:
            raise _cycle(left[0].name, waits, done)
        left.remove(ready)
        ordered.append(ready)
    return ordered


def _cycle(start: str, waits: Mapping[str, Mapping[str, Column]], done: set[str]) -> PipelineError:
    path, name = [start], start
    while True:
        name = min(waits[name].keys() - done)
        path.append(name)
        if path.count(name) > 1:
            break
    circle = path[path.index(name) :]
    links = (
        f"{user} requires {'.'.join(waits[user][maker])} of {maker}"
        for user, maker in itertools.pairwise(circle)
    )
    return PipelineError(f"stages need each other: {', '.join(links)}", "break the cycle")


def _check_exchanges(steps: Iterable[Step]) -> None:
    """Refuse exchanges that do not make exactly one whole-run table."""
    events = _event_tables(steps)
    for step in steps:
        made = list(step.produces) if isinstance(step, Exchange) else ["one"]
        if len(made) != 1 or made[0] in events:
            raise PipelineError(
                f"{step.name} produces {', '.join(made) or 'nothing'}, but what it joins is one "
                "table of the whole run",
                "name exactly one, that partitions do not have, in produces",
            )


_AFTER_PASS, _JOINED, _LAST = 1, 2, 3
"""When a step's whole-run tables are known; 0: before the main pass."""


def _time(step: Step) -> int:
    if isinstance(step, Exchange):
        return _JOINED
    return {"after": _AFTER_PASS, "tables": _LAST}.get(step.summary or "", 0)


def _check_times(ordered: Sequence[Step], needs: Mapping[str, set[Column]]) -> None:
    """Refuse steps that read a whole-run table which is known only after they have worked."""
    events = _event_tables(ordered)
    made: dict[str, Step] = {}
    for step in ordered:
        own = 0 if isinstance(step, Exchange) else _time(step)
        for table, column in sorted(needs[step.name]):
            if table in made and _time(made[table]) > own:
                kind = "after" if _time(made[table]) == _AFTER_PASS else "tables"
                raise PipelineError(
                    f"{step.name} requires {table}.{column}, which {made[table].name} knows only "
                    "after the pass over the events",
                    f"declare {step.name} with summary = {kind!r}",
                )
        made.update({table: step for table in step.produces if table not in events})
