"""The contract of a stage.

A stage sees the run in one of two ways and says which in ``summary``:

* ``"index"``: ``summarize(run)`` reads whole-run tables only (no event bytes);
  ``resolve`` runs before any event is read, and ``apply`` gets its result.
* ``"after"``: ``apply`` (if any) gets ``None``; ``summarize(partition)`` sees the
  partition with the columns of this stage and of all stages before it;
  summaries are merged with ``combine`` and resolved when all partitions are done.
* ``"before"``: like ``"index"``, but ``summarize(partition)`` reads events: this costs a
  pass over them of its own, and the plan says so.
* ``None``: ``apply`` alone.

Stages import neither Dask nor Hydra nor files; ``pipeline.py`` alone builds the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pyarrow as pa

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import Columns

SummaryKind = Literal["index", "before", "after"] | None


class Stage:
    """One step of the correlation. Subclass it, declare columns, override what you need.

    Attributes:
        name: Name in the configuration, the ledger and in errors.
        requires: Columns read, by table, with dtypes.
        produces: Columns that ``apply`` adds to event tables, and whole-run tables that
            ``results`` returns.
        adds: Event tables that ``apply`` adds to every partition.
        summary: What ``summarize`` reads; see the module's text.
    """

    name: ClassVar[str]
    requires: ClassVar[Columns] = {}
    produces: ClassVar[Columns] = {}
    adds: ClassVar[Columns] = {}
    summary: ClassVar[SummaryKind] = None

    def summarize(self, part: Any) -> Any:
        """Return a small, mergeable, picklable summary of a partition (or of the run)."""
        raise TypeError(f"stage {self.name} declares a summary but has no summarize")

    def combine(self, left: Any, right: Any) -> Any:
        """Merge two summaries; associative."""
        raise TypeError(f"stage {self.name} declares a summary but has no combine")

    def resolve(self, summary: Any, run: Run) -> Any:
        """Turn the merged summary into what ``apply``, ``results`` and ``account`` need."""
        return summary

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
        """Return this stage's part of the ledger (plain numbers and strings)."""
        return {}


class Exchange:
    """The rarer shape: rows of two ranks have to meet in one place.

    ``split`` sorts the rows of a partition into at most ``buckets`` buckets by a key that is
    equal at both ends; ``join`` gets all pieces of one bucket and returns a table.
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
        """Return this exchange's part of the ledger."""
        return {}
