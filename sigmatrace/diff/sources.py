"""Where the tables of a run come from: the Parquet output of the pipeline, or a window read now."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from sigmatrace.code_words import OWN
from sigmatrace.errors import ChunkFormatError, RunNotFoundError
from sigmatrace.layout import LEDGER, facts_in, file_of, find, making, traced
from sigmatrace.partition import arrow_type, column

TABLES = (
    "processes", "chunk_times", "clock_quality", "communication", "traffic", "sizes",
    "message_latency", "barriers", "stragglers", "errors",
)  # fmt: skip
"""Those that are compared, or tell how good the data is."""
_STAGES = ("clock", "communication", "latency", "barriers", "stragglers", "errors")
"""They make these; what they need besides is brought in."""
Read = Callable[[str, Sequence[str] | None, str | None], pa.Table]
"""Returns columns (None: all) of a table, of one level (None: all) of ``communication``."""


@dataclass(frozen=True)
class Source:
    """A run, or a window of it.

    Attributes:
        name: As the user wrote it, with the window.
        book: Its ledger.
        read: Reads a table.
        place: Where it lies; the same for a run that is named twice.
    """

    name: str
    book: Mapping[str, Any]
    read: Read
    place: Path

    @cached_property
    def processes(self) -> pa.Table:
        """The table ``processes``."""
        return self.read("processes", None, None)

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """Unix ns of begin and end of what was read; None: everything was."""
        window = self.book["capture"]["window"]
        return (window["begin_ns"], window["end_ns"]) if window else None

    @cached_property
    def duration_ns(self) -> int:
        """From the first to the last record with a time, within the window; 0 without any."""
        times = self.read("chunk_times", ["first_ns", "last_ns"], None)
        if not times.num_rows:
            return 0
        first, last = int(column(times, "first_ns").min()), int(column(times, "last_ns").max())
        if self.window_ns is not None:
            first, last = max(first, self.window_ns[0]), min(last, self.window_ns[1])
        return max(last - first, 0)


def opened(place: Path, window: str | None) -> Source:
    """Return a run, or a window of it.

    Args:
        place: The run, or an output of the pipeline.
        window: ``BEGIN..END`` as the pipeline has it: the pipeline reads that time of the trace
            files now. None: what the output has.

    Raises:
        SigmaTraceError: It is not there, tables are missing, or it cannot be read.
    """
    return _output(place) if window is None else _window(place, window)


def _output(place: Path) -> Source:
    again = making(place, "preset=analysis")
    try:
        folder = find(place)
    except RunNotFoundError as error:
        raise RunNotFoundError(error.what, again if place.exists() else error.hint) from None
    missing = [name for name in TABLES if not file_of(folder, name).exists()]
    if missing:
        what = f"{place}: no table {missing[0]} there"
        raise RunNotFoundError(what, again)
    hint = "an output has it beside its tables, and tells by it what was lost"
    told = facts_in(folder.parent / LEDGER, hint)

    def read(name: str, columns: Sequence[str] | None, level: str | None) -> pa.Table:
        path = file_of(folder, name)
        only = None if level is None else pc.field("level") == level
        try:
            table = parquet.read_table(path, columns=columns, filters=only)
        except (OSError, pa.ArrowException) as error:
            what = " ".join(str(error).split())
            raise ChunkFormatError(f"{path}: cannot be read: {what}", again) from None
        for wanted in columns or OWN[name]:
            if wanted not in table.column_names:
                what = f"{path}: no column {wanted}, as it is of another version"
                raise ChunkFormatError(what, again)
            kind, right = table.schema.field(wanted).type, arrow_type(OWN[name][wanted])
            if kind != right:
                what = f"{path}: column {wanted} is {kind}, not {right}, as in another version"
                raise ChunkFormatError(what, again)
        return table

    return Source(str(place), told, read, folder.resolve())


def _window(place: Path, window: str) -> Source:
    from sigmatrace import api  # slow to import

    run = traced(place) or place
    with tempfile.TemporaryDirectory(prefix="sigmatrace-diff-") as out:
        done = api.run(
            run,
            export="json",
            out=Path(out) / "out",
            stage=_STAGES,
            overrides=[f"window={window}"],
        )
    tables = {name: done.tables[name] for name in TABLES}

    def read(name: str, columns: Sequence[str] | None, level: str | None) -> pa.Table:
        table = tables[name]
        if level is not None:
            table = table.filter(pc.equal(table.column("level"), level))
        return table.select(columns or table.column_names)

    return Source(f"{place} ({window})", done.ledger, read, run.resolve())
