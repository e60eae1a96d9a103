"""The contract of a stage.

What a stage sums up, it says in ``summary``:

* ``"index"``: ``survey(run)`` reads whole-run tables only (no event bytes); ``resolve`` runs
  before any event is read, and ``apply`` gets its result. Such a stage may have ``summarize`` and
  ``combine``, too, as below, for what it says of its own work: ``conclude`` puts both together for
  ``account`` and ``lines``, when results and facts are long known.
* ``"after"``: ``apply`` (if any) gets ``None``; ``summarize(part)`` sees the partition with the
  columns of this stage and of all stages before it; summaries are merged with ``combine``
  and resolved when all partitions are done.
* ``"before"``: ``summarize(part)`` likewise, in a pass over the events of its own (the plan says
  so); ``apply`` gets what was resolved.
* ``"tables"``: ``survey(run)`` reads whole-run tables once all partitions are done: those of the
  index, of other stages and of exchanges. It sees no events.
* ``None``: ``apply`` alone.

A partition in which no table of events that a stage reads, or adds columns to, has rows is not
shown to it: such tables have all columns that any stage declares from the beginning. Of a run in
which there was nothing to show ``summarize`` sees one partition without rows.

What a stage counts goes into the ledger by ``account``. Its key ``"balance"``, if there, is a
list of equations ``{"name", "left", "right"}``, which the ledger judges. A side is a number, or
the place of one in the ledger (``"records.op"``: records read of that schema;
``"capture.aggregated_bytes"``; ``"stages.match.sends"``), or a list of these, which is summed.
An equation that names a stage which was not chosen is left out.

Stages import neither Dask nor Hydra nor files; ``pipeline.py`` alone builds the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa

from sigmatrace.errors import PipelineError
from sigmatrace.partition import Partition, Run, arrow_type
from sigmatrace.schema import Columns

SummaryKind = Literal["index", "before", "after", "tables"] | None


class Stage:
    """One step of the correlation. Subclass it, declare columns, override what you need.

    Attributes:
        name: Name in the configuration, the ledger and in errors.
        requires: Columns read, by table, with dtypes.
        produces: Columns that ``apply`` adds to event tables, and whole-run tables that
            ``results`` returns.
        adds: Event tables that ``apply`` adds to every partition.
        summary: What is summed up, and when; see the module's text.
    """

    name: ClassVar[str]
    requires: ClassVar[Columns] = {}
    produces: ClassVar[Columns] = {}
    adds: ClassVar[Columns] = {}
    summary: ClassVar[SummaryKind] = None

    def survey(self, run: Run) -> Any:
        """Return a picklable summary of whole-run tables ("index", "tables")."""
        raise TypeError(f"stage {self.name} declares summary = {self.summary!r} but has no survey")

    def summarize(self, part: Partition) -> Any:
        """Return a small, mergeable, picklable summary of a partition ("before", "after")."""
        raise TypeError(f"stage {self.name} declares a summary but has no summarize")

    def combine(self, left: Any, right: Any) -> Any:
        """Merge two summaries; associative. Stages with a ``combine_all`` need none."""
        raise TypeError(f"stage {self.name} declares a summary but has no combine")

    def combine_all(self, summaries: Sequence[Any]) -> Any:
        """Merge one or more summaries in their order; associative, too.

        For stages that merge many at once for less than two by two.
        """
        return functools.reduce(self.combine, summaries)

    def resolve(self, summary: Any, run: Run) -> Any:
        """Turn the merged summary into what ``apply``, ``results`` and ``account`` need."""
        return summary

    def conclude(self, resolved: Any, summary: Any) -> Any:
        """Return what ``account`` and ``lines`` get of an "index" stage that summed up, too."""
        raise TypeError(f"stage {self.name} has summary = 'index' and summarize, but no conclude")

    def instead(self, resolved: Any) -> tuple[Stage, str] | None:
        """Return the stage that should have done this one's work, and why; None: all is well.

        It is asked once all partitions are done. Then everything is done again with the other
        stage, of the same name, in its place.
        """
        return None

    @property
    def is_summed(self) -> bool:
        """Whether ``summarize`` sees the partitions in the main pass."""
        own = type(self).summarize is not Stage.summarize
        return self.summary == "after" or (self.summary == "index" and own)

    def is_concerned(self, part: Partition) -> bool:
        """Return whether a partition has rows in a table that the stage reads or adds to.

        A stage that adds no columns may be concerned by fewer; columns would be missing there.
        """
        names = {*self.requires, *self.produces} & part.tables.keys()
        return not names or any(part.tables[name].num_rows for name in names)

    def apply(self, part: Partition, resolved: Any) -> Partition:
        """Return the partition with this stage's columns. Pure."""
        return part

    def results(self, resolved: Any) -> Mapping[str, pa.Table]:
        """Return whole-run tables for later stages and for exporters."""
        return {}

    def facts(self, resolved: Any) -> Mapping[str, object]:
        """Return small scalars of the run for later stages and for exporters."""
        return {}

    def account(self, resolved: Any) -> Mapping[str, object]:
        """Return this stage's part of the ledger: plain numbers, strings, and equations."""
        return {}

    def lines(self, resolved: Any, run: Run) -> Sequence[str]:
        """Return lines for the closing summary; ``run`` holds the results of all stages."""
        return ()


def check_made(stage: Stage, before: Partition, part: object) -> None:
    """Refuse what ``apply`` returned if it is not what the stage declares.

    Args:
        stage: The stage.
        before: What ``apply`` got.
        part: What it returned.

    Raises:
        PipelineError: It is no partition, a table that the stage adds is still the empty one that
            stood in for it, or a declared column is missing or of another dtype.
    """
    if not isinstance(part, Partition):
        what = type(part).__name__
        raise PipelineError(f"stage {stage.name}: apply returned {what}", "return a Partition")
    for table in stage.adds:
        if part.tables.get(table) is before.tables.get(table):
            what = f"stage {stage.name} declares the table {table}, and did not add it"
            raise PipelineError(
                what, "give every partition one, also without rows, or correct adds"
            )
    for table, columns in (*stage.produces.items(), *stage.adds.items()):
        if table not in part.tables:
            continue
        schema = part.tables[table].schema
        for column, dtype in columns.items():
            at = schema.get_field_index(column)
            if at < 0 and (table, column) in before.unread:
                continue
            found = schema.field(at).type if at >= 0 else "missing"
            if found != arrow_type(dtype):
                raise PipelineError(
                    f"stage {stage.name} declares {table}.{column} as {dtype}, but it is {found}",
                    "make the column so, or correct produces",
                )


class Exchange:
    """The rarer shape: rows of two ranks have to meet in one place.

    ``split`` sorts the rows of a partition into at most ``buckets`` buckets by a key that is
    equal at both ends; ``join`` gets all pieces of one bucket and returns a table.

    Attributes:
        name: Name in the configuration, the ledger and in errors.
        requires: Columns read, by table, with dtypes.
        produces: The one whole-run table that is made; without rows where nothing has met.
    """

    name: ClassVar[str]
    requires: ClassVar[Columns] = {}
    produces: ClassVar[Columns] = {}

    def split(self, part: Partition, buckets: int) -> Mapping[int, pa.Table]:
        """Return the partition's rows by bucket number; empty buckets are left out."""
        raise NotImplementedError

    def join(self, bucket: list[pa.Table]) -> pa.Table:
        """Return the joined table of one bucket."""
        raise NotImplementedError

    def combine(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Merge two joined tables; default: rows one after the other."""
        return pa.concat_tables([left, right])

    def account(self, joined: pa.Table) -> Mapping[str, object]:
        """Return this exchange's part of the ledger, like ``Stage.account``."""
        return {}
