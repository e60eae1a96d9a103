"""The exporter ``parquet``: every correlated event and every table, for DuckDB, Polars, pandas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pyarrow import parquet

from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.export.tables import codes
from sigmatrace.layout import CODES, PARQUET, file_of
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import EVENT_NAMES, EVENT_TABLES, Columns

RECORDS = {name: schema.name.lower() for schema, name in EVENT_NAMES.items()}
"""Name of the records of each of the reader's event tables, for the ledger."""

QUERY = (
    "select name, count(*) from 'parquet/ops/*.parquet' join 'parquet/codes.parquet' "
    "on code = op where field = 'op' group by name"
)
"""For example: operations by kind, by name."""


class Parquet(Exporter):
    """Writes ``parquet/TABLE/part-NNNNN.parquet`` for events, ``parquet/TABLE.parquet`` else.

    ``parquet/codes.parquet`` says what the codes in columns like ``op`` mean.
    """

    name: ClassVar[str] = "parquet"
    requires: ClassVar[Columns] = {name: {} for name in EVENT_TABLES}

    def write(self, part: Partition, run: Run, staging: Path) -> Piece:
        """Write the partition's events; a table without rows gets no file.

        The first partition writes all tables, so that each is there with its columns.
        """
        files = []
        counts = {}
        for name, table in part.tables.items():
            counts[f"{RECORDS.get(name, name)}_records"] = table.num_rows
            if table.num_rows == 0 and part.number > 0:
                continue
            folder = staging / PARQUET / name
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"part-{part.number:05d}.parquet"
            parquet.write_table(table, path, compression="zstd", compression_level=1)
            files.append(str(path.relative_to(staging)))
        return Piece(part.number, tuple(files), counts)

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Write the whole-run tables."""
        folder = staging / PARQUET
        folder.mkdir(exist_ok=True)
        for name, table in {**run.tables, CODES: codes()}.items():
            parquet.write_table(table, file_of(folder, name), compression="zstd")
        counts: Counter[str] = Counter()
        for piece in pieces:
            counts.update(piece.counts)
        hint = f"in DuckDB, for example: {QUERY}"
        return Exported((PARQUET,), dict(counts), hint)
