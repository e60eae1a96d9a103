"""What flows through the pipeline: event partitions and whole-run tables."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

Tables = Mapping[str, pa.Table]


@dataclass(frozen=True)
class Run:
    """Whole-run tables: the index, and what stages have resolved so far.

    Attributes:
        tables: ``schema.INDEX_TABLES`` plus the stages' ``results``.
        facts: Small scalars of the run by name (``base_ns``: the zero of exported time).
    """

    tables: Tables
    facts: Mapping[str, object] = field(default_factory=dict)

    def column(self, table: str, name: str) -> np.ndarray:
        """Return a column as a numpy array."""
        return column(self.tables[table], name)

    def fact_ns(self, name: str) -> int:
        """Return a fact that is a time, or a duration, in ns.

        Raises:
            KeyError: The run has no such fact.
        """
        return int(cast(int, self.facts[name]))

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """Unix ns of begin and end of what was read; None: everything was."""
        return cast("tuple[int, int] | None", self.facts.get("window_ns"))

    def with_results(self, tables: Tables, facts: Mapping[str, object] | None = None) -> Run:
        """Return a run that holds these tables and facts too."""
        return Run({**self.tables, **tables}, {**self.facts, **(facts or {})})


@dataclass(frozen=True)
class Partition:
    """Some chunks of some rank files, as Arrow tables.

    Attributes:
        number: Position in the plan, from 0; names the partition's output pieces.
        tables: Event tables by name (``schema.EVENT_TABLES`` plus what stages added).
        unread: Columns, as (table, column), that nobody reads; they need not be there.
        run: What is known of the run before the pass: the index, and what stages with
            ``summary = "index"`` have found.
    """

    number: int
    tables: Tables
    unread: Set[tuple[str, str]] = frozenset()
    run: Run = field(default=Run({}), repr=False)

    def column(self, table: str, name: str) -> np.ndarray:
        """Return a column as a numpy array, without a copy where Arrow allows it."""
        return column(self.tables[table], name)

    def is_read(self, table: str, name: str) -> bool:
        """Return whether a later step may read a column; one that is not need not be made."""
        return (table, name) not in self.unread

    def with_columns(self, table: str, columns: Mapping[str, np.ndarray]) -> Partition:
        """Return a partition in which ``table`` has these columns too (replaced if present)."""
        old = self.tables[table]
        if old.num_rows == 0:
            kinds = tuple((name, values.dtype.str) for name, values in columns.items())
            return self.with_table(table, _without_rows(old.schema, kinds))
        grown: dict[str, Any] = dict(zip(old.column_names, old.columns, strict=True))
        grown.update((name, pa.array(values)) for name, values in columns.items())
        return replace(self, tables={**self.tables, table: pa.table(grown)})

    def with_table(self, name: str, table: pa.Table) -> Partition:
        """Return a partition that has this table too."""
        return replace(self, tables={**self.tables, name: table})


def without_rows(columns: Mapping[str, Mapping[str, str]]) -> Partition:
    """Return a partition that has these event columns (table, name, dtype) and no rows."""
    return Partition(
        0,
        {
            table: pa.table({name: np.zeros(0, dtype) for name, dtype in named.items()})
            for table, named in columns.items()
        },
    )


@functools.lru_cache(maxsize=256)
def _without_rows(schema: pa.Schema, more: tuple[tuple[str, str], ...]) -> pa.Table:
    """Return a table without rows that has these columns, too; most tables have no rows."""
    kinds = {one.name: one.type for one in schema}
    kinds.update((name, pa.from_numpy_dtype(np.dtype(dtype))) for name, dtype in more)
    return pa.schema(kinds.items()).empty_table()


def column(table: pa.Table, name: str) -> np.ndarray:
    """Return a column of a table as a numpy array.

    Raises:
        KeyError: The table has no such column.
    """
    chunked = table.column(name)
    is_single = chunked.num_chunks == 1
    array: np.ndarray = (
        chunked.chunk(0).to_numpy(zero_copy_only=False) if is_single else chunked.to_numpy()
    )
    return array
