"""Rows of a result as text: a table, CSV or JSON, written as they come."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol, TextIO

from sigmatrace.errors import QueryError
from sigmatrace.text import printable

Row = tuple[Any, ...]
Take = Callable[[Sequence[str], list[Row]], None]
"""Called with names of columns and some rows."""
_LOOKED_AT = 1000
_GAP = "  "
_CRLF = "\r\n"


class Writer(Protocol):
    """Writes rows."""

    def take(self, names: Sequence[str], rows: list[Row]) -> None:
        """Write some rows, with the names of their columns."""

    def end(self) -> None:
        """Write what is left when there are no more rows."""


class Table:
    """Columns that line up; their width is that of the first thousand rows.

    Args:
        out: Where to.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._names: Sequence[str] = ()
        self._held: list[Row] = []
        self._widths: list[int] = []
        self._right: list[bool] = []

    def take(self, names: Sequence[str], rows: list[Row]) -> None:
        """See ``Writer``."""
        self._names = names
        if self._widths:
            self._write(rows)
            return
        self._held += rows
        if len(self._held) >= _LOOKED_AT:
            self._begin()

    def end(self) -> None:
        """See ``Writer``."""
        if not self._widths and self._names:
            self._begin()

    def _begin(self) -> None:
        texts = [[_cell(value) for value in row] for row in self._held[:_LOOKED_AT]]
        for at in range(len(self._names)):
            self._widths.append(max(len(row[at]) for row in [self._names, *texts]))
            self._right.append(any(_is_number(row[at]) for row in self._held[:_LOOKED_AT]))
        self._line(self._names)
        self._write(self._held)
        self._held = []

    def _write(self, rows: list[Row]) -> None:
        for row in rows:
            self._line([_cell(value) for value in row])

    def _line(self, texts: Sequence[str]) -> None:
        columns = zip(texts, self._widths, self._right, strict=True)
        cells = (
            text.rjust(width) if right else text.ljust(width) for text, width, right in columns
        )
        self._out.write(_GAP.join(cells).rstrip() + "\n")


class _Lines:
    """Ends lines by LF alone. The csv module quotes of line ends only those of its own."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, line: str) -> int:
        return self._out.write(line.removesuffix(_CRLF) + "\n")


class Csv:
    """RFC 4180 but for line ends, which are LF; a line of names first; null is empty.

    Args:
        out: Where to.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = csv.writer(_Lines(out), lineterminator=_CRLF)
        self._begun = False

    def take(self, names: Sequence[str], rows: list[Row]) -> None:
        """See ``Writer``."""
        if not self._begun and names:
            self._out.writerow(names)
            self._begun = True
        self._out.writerows([_plain_text(value) for value in row] for row in rows)

    def end(self) -> None:
        """See ``Writer``."""


class Json:
    """An array of objects, one a line; infinite numbers are texts, as JSON has none.

    Args:
        out: Where to.

    Raises:
        QueryError: Two columns have the same name, from ``take``.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._before = "[\n"

    def take(self, names: Sequence[str], rows: list[Row]) -> None:
        """See ``Writer``."""
        if len(set(names)) < len(names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise QueryError(f"several columns are called {twice}", "name them apart by: as NAME")
        for row in rows:
            values = [_json_value(value) for value in row]
            text = json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False)
            self._out.write(self._before + text)
            self._before = ",\n"

    def end(self) -> None:
        """See ``Writer``."""
        self._out.write("[]\n" if self._before == "[\n" else "\n]\n")


class Counting:
    """Hands rows on to another writer, and counts them.

    Args:
        writer: That one.

    Attributes:
        rows: How many there were.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.rows = 0
        self.end = writer.end

    def take(self, names: Sequence[str], rows: list[Row]) -> None:
        """See ``Writer``."""
        self.rows += len(rows)
        self._writer.take(names, rows)


FORMATS: dict[str, Callable[[TextIO], Writer]] = {"table": Table, "csv": Csv, "json": Json}
"""Writers by their name."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _plain_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return value.hex() if isinstance(value, bytes) else value


def _cell(value: object) -> str:
    """Return a value in one line of a table."""
    if value is None:
        return ""
    return printable(str(_plain_text(value)))


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | Decimal):
        value = float(value)
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): _json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(one) for one in value]
    return str(_plain_text(value))
