"""The exporter ``csv``: one file for each table that stages have made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pyarrow import csv as arrow_csv

from sigmatrace.export.amounts import balance
from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.export.tables import named, results
from sigmatrace.partition import Run

FROM_INDEX = ("processes", "libraries")


class Csv(Exporter):
    """Writes ``csv/TABLE.csv``, with a header line, text in double quotes, UTF-8.

    Tables: all whole-run results of stages, one's own stages' too, and ``FROM_INDEX``. Events
    are left to the exporter ``parquet``.
    """

    name: ClassVar[str] = "csv"

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Write the tables."""
        folder = staging / "csv"
        folder.mkdir(exist_ok=True)
        counts = {}
        for name in (*FROM_INDEX, *results(run)):
            table = _flat(named(run, name))
            arrow_csv.write_csv(table, folder / f"{name}.csv")
            counts[f"{name}_rows"] = table.num_rows
        shown = []
        if "traffic" in run.tables:
            totals = (sum(run.column("traffic", name).tolist()) for name in ("count", "size_bytes"))
            counts["traffic_operations"], counts["traffic_bytes"] = totals
            shown = balance(run, counts["traffic_operations"], counts["traffic_bytes"])
        hint = "open csv/*.csv in a spreadsheet, pandas or DuckDB"
        return Exported(("csv",), counts, hint, shown)


def _flat(table: pa.Table) -> pa.Table:
    """Return a table whose lists and structures are text: CSV has no other place for them."""
    for at, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            text = [None if value is None else str(value) for value in table[at].to_pylist()]
            table = table.set_column(at, field.name, pa.array(text, pa.string()))
    return table
