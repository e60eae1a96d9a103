"""How an output of the pipeline is laid out: for those who write it, and those who read it.

Its Parquet part: where it lies, which tables it has, and what codes mean there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sigmatrace.errors import RunNotFoundError
from sigmatrace.schema import EVENT_TABLES, INDEX_TABLES, STAGE_TABLES

OUTPUT = "sigmatrace-out"
"""The folder of the output, in that of the trace files, unless the user names another one."""
LEDGER, RUN, SUMMARY = "ledger.json", "run.json", "summary.txt"
"""Files in it."""
PARQUET = "parquet"
"""The folder of tables in it."""
CODES = "codes"
"""The table that says what codes mean."""
OWN = {**EVENT_TABLES, **INDEX_TABLES, **STAGE_TABLES}
"""Tables of this package: what their columns mean is known."""

Codes = Mapping[str, Mapping[int, str]]
"""What codes mean, by name of the column, or by ``TABLE.COLUMN`` where that is one table's own."""


def find(run: Path) -> Path:
    """Return the folder of Parquet files of a run, or of an output of the pipeline.

    Raises:
        RunNotFoundError: There is none.
    """
    for folder in (run / PARQUET, run / OUTPUT / PARQUET, run):
        if file_of(folder, CODES).exists():
            return folder
    if not run.exists():
        raise RunNotFoundError(f"{run}: no such folder", "name a run, or an output of the pipeline")
    made = run.parent if run.name == OUTPUT else run
    command = f"sigmatrace-pipeline run={made} export=parquet"
    raise RunNotFoundError(f"{run}: no Parquet files there", f"make them by: {command}")


def file_of(folder: Path, table: str) -> Path:
    """Return the place of a whole-run table."""
    return folder / f"{table}.parquet"


def tables(folder: Path) -> dict[str, Path]:
    """Return the place of each table by its name: its file, or the folder of its files."""
    return {
        path.name if path.is_dir() else path.stem: path
        for path in sorted(folder.iterdir())
        if path.is_dir() or path.suffix == ".parquet"
    }


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
