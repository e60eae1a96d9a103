"""What codes in the tables of an output mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sigmatrace.schema import EVENT_TABLES, INDEX_TABLES, STAGE_TABLES

OWN = {**EVENT_TABLES, **INDEX_TABLES, **STAGE_TABLES}
"""Tables of this package: what their columns mean is known."""

Codes = Mapping[str, Mapping[int, str]]
"""What codes mean, by name of the column, or by ``TABLE.COLUMN`` where that is one table's own."""


def codes(rows: Iterable[tuple[str, int, str]]) -> Codes:
    """Return the rows of the table ``codes`` (field, code, name) by field."""
    known: dict[str, dict[int, str]] = {}
    for field, code, name in rows:
        known.setdefault(field, {})[code] = name
    return known


def words(known: Codes, table: str, column: str) -> Mapping[int, str]:
    """Return what the codes of a column (of u1) mean; empty: they stay numbers.

    They do where they are bits, and in tables of other stages, where what a column of that name
    means is not known.
    """
    if table not in OWN or column.endswith("flags"):
        return {}
    return known.get(f"{table}.{column}", known.get(column, {}))
