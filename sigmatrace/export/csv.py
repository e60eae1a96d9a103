"""The exporter ``csv``: one file for each small table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pyarrow import csv as arrow_csv

from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.export.tables import named, present
from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES, Columns


class Csv(Exporter):
    """Writes ``csv/NAME.csv``, with a header line, text in double quotes, UTF-8."""

    name: ClassVar[str] = "csv"
    requires: ClassVar[Columns] = {"traffic": STAGE_TABLES["traffic"]}

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Write the tables."""
        folder = staging / "csv"
        folder.mkdir()
        counts = {}
        for name in present(run):
            table = named(run, name)
            arrow_csv.write_csv(table, folder / f"{name}.csv")
            counts[f"{name}_rows"] = table.num_rows
            if name == "traffic":
                counts["traffic_operations"] = sum(table.column("count").to_pylist())
                counts["traffic_bytes"] = sum(table.column("size_bytes").to_pylist())
        return Exported(("csv",), counts, "open csv/*.csv in a spreadsheet, pandas or DuckDB")
