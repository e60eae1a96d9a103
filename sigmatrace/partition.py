"""What flows through the pipeline: event partitions and whole-run tables."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import cast

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

    @property
    def extent_ns(self) -> tuple[int, int]:
        """Unix ns of the first and the last moment of what was read, of the run or its window.

        Raises:
            KeyError: The run has no times.
        """
        begin, end = self.fact_ns("base_ns"), self.fact_ns("last_ns")
        if self.window_ns is not None:
            begin, end = max(begin, self.window_ns[0]), min(end, self.window_ns[1] - 1)
        return begin, end

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
        grown = self.tables[table]
        for name, values in columns.items():
            at = grown.schema.get_field_index(name)
            if at < 0:
                grown = grown.append_column(name, pa.array(values))
            else:
                grown = grown.set_column(at, name, pa.array(values))
        return replace(self, tables={**self.tables, table: grown})

    def with_table(self, name: str, table: pa.Table) -> Partition:
        """Return a partition that has this table too."""
        return replace(self, tables={**self.tables, name: table})


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


@functools.cache
def arrow_type(dtype: str) -> pa.DataType:
    """Return the Arrow type of a column by its dtype in ``schema.py``."""
    return pa.string() if dtype == "str" else pa.from_numpy_dtype(np.dtype(dtype))
