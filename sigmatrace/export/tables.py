"""Whole-run tables with names of processes instead of numbers alone."""

from __future__ import annotations

import pyarrow as pa

from sigmatrace.partition import Run
from sigmatrace.schema import Kind, Layer, Op

SMALL = ("processes", "traffic", "messages", "clock_quality", "libraries")
"""Tables that a person reads."""


def named(run: Run, name: str) -> pa.Table:
    """Return a table of the run with readable columns added.

    ``src``/``dst``/``label`` are labels of processes ("" unknown), ``layer``, ``op`` and ``kind``
    become words.
    """
    table = run.tables[name]
    labels = run.tables["processes"].column("label").to_pylist()
    words = {"layer": Layer, "op": Op, "kind": Kind}
    for column in table.column_names:
        values = table.column(column).to_pylist()
        if column in ("src_proc", "dst_proc") or (column == "proc" and name != "processes"):
            shown = [labels[value] if 0 <= value < len(labels) else "" for value in values]
            key = "label" if column == "proc" else column.removesuffix("_proc")
            table = table.append_column(key, pa.array(shown, pa.string()))
        elif column in words and pa.types.is_integer(table.schema.field(column).type):
            known = {int(one): one.name.lower() for one in words[column]}
            shown = [known.get(value, str(value)) for value in values]
            at = table.schema.get_field_index(column)
            table = table.set_column(at, column, pa.array(shown, pa.string()))
    return table


def present(run: Run) -> list[str]:
    """Return which of the small tables the run has."""
    return [name for name in SMALL if name in run.tables]
