"""Tables in order, and sums of groups of rows, without what Arrow imports for its own.

``Table.sort_by`` and ``Table.group_by`` import Arrow's query engine and readers of files, which
takes 20 ms: much, where there are no rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def in_order(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows of a table in ascending order of these columns; equal ones stay in order."""
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names]))


def grouped(table: pa.Table, keys: Sequence[str], how: Sequence[tuple[str, str]]) -> pa.Table:
    """Return one row for each group, with the columns aggregated under their own names.

    Args:
        table: Its aggregated columns are i8, as sums of them are.
        keys: Columns that are equal in all rows of a group.
        how: Columns, each with ``sum``, ``min`` or ``max``.
    """
    names = [name for name, _ in how]
    if not table.num_rows:
        return table.select([*keys, *names])
    added = table.group_by(list(keys)).aggregate(list(how))
    made = [f"{name}_{kind}" for name, kind in how]
    return added.select([*keys, *made]).rename_columns([*keys, *names])
