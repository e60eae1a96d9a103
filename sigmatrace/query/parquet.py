"""SQL over the Parquet output of a run, by DuckDB: each table is a view by its name."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from sigmatrace import code_words, layout
from sigmatrace.errors import QueryError

Take = Callable[[Sequence[str], list[tuple[Any, ...]]], None]
"""Called with names of columns and some rows."""
_ROWS = 4096
_LABEL = (
    "create macro label(process) as "
    "coalesce((select label from processes where proc = process), '')"
)


class Tables:
    """The tables of a run as views of a database in memory.

    Args:
        database: A connection to it.
        folder: What ``layout.find`` returned.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._unreadable: dict[str, str] = {}
        with _refused():
            self._codes = self._known_codes()
            self.names = sorted(self._make_views())
            if "processes" in self.names:
                database.execute(_LABEL)

    def stream(self, sql: str, take: Take) -> None:
        """Run a query, and hand over its rows as they come.

        Args:
            sql: One or more statements; the last one's rows are those of the result.
            take: Called with names and rows, at least once, also if there are no rows.

        Raises:
            QueryError: The query is refused.
        """
        # In another thread: this one would not see Ctrl-C while DuckDB works.
        with self._asked(), ThreadPoolExecutor(1) as pool:
            try:
                found = pool.submit(self._database.execute, sql).result()
                names = [column[0] for column in (found and found.description) or ()]
                take(names, [])
                while names and (rows := pool.submit(found.fetchmany, _ROWS).result()):
                    take(names, rows)
            except KeyboardInterrupt:
                self._database.interrupt()
                raise

    def columns(self, table: str) -> list[tuple[str, str]]:
        """Return the names and types of a table's columns."""
        with _refused():
            found = self._database.execute(f"describe {_name(table)}").fetchall()
        return [(name, kind.lower()) for name, kind, *_ in found]

    def _known_codes(self) -> code_words.Codes:
        path = glob.escape(str(layout.file_of(self._folder, layout.CODES)))
        rows = self._database.execute("select field, code, name from read_parquet(?)", [path])
        return code_words.codes(rows.fetchall())

    def _make_views(self) -> Iterator[str]:
        for name, path in layout.tables(self._folder).items():
            where = glob.escape(str(path)) + ("/*.parquet" if path.is_dir() else "")
            source = f"read_parquet({_text(where)})"
            try:
                words = ", ".join(self._words(name, source))
                replaced = f"replace ({words})" if words else ""
                self._database.execute(
                    f"create view {_name(name)} as select * {replaced} from {source}"
                )
            except duckdb.Error as error:  # the others can be asked all the same
                self._unreadable[name] = _line(str(error))
                continue
            yield name

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Say in one line what a query is refused for; of a table that cannot be read, why."""
        try:
            with _refused():
                yield
        except QueryError as error:
            for name, why in self._unreadable.items():
                if f"name {name} " in error.what:
                    raise QueryError(f"{name}: cannot be read: {why}") from None
            raise

    def _words(self, table: str, source: str) -> Iterator[str]:
        """Yield what stands for columns of codes."""
        for column, kind, *_ in self._database.execute(f"describe from {source}").fetchall():
            words = code_words.words(self._codes, table, column)
            if kind == "UTINYINT" and words:
                cases = " ".join(f"when {code} then {_text(word)}" for code, word in words.items())
                column = _name(column)
                yield f"case {column} {cases} else {column}::varchar end as {column}"


@contextmanager
def opened(run: Path) -> Iterator[Tables]:
    """Open the tables of a run, or of an output of the pipeline.

    Raises:
        RunNotFoundError: There are none.
        QueryError: What codes mean cannot be read. Another table says so when it is asked.
    """
    folder = layout.find(run)
    with tempfile.TemporaryDirectory(prefix="sigmatrace-query-") as spill:
        # What is not in the wheel is not fetched: a name that is not known is an error at once.
        settings: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
        }
        with duckdb.connect(":memory:", config=settings) as database:
            yield Tables(database, folder)


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise QueryError(_line(str(error))) from None


def _line(text: str) -> str:
    """Return a message in one line: without the place that it draws below the query."""
    lines = [line.strip() for line in text.strip().splitlines()]
    where = next((n for n, line in enumerate(lines) if line.startswith("LINE ")), len(lines))
    said = " ".join(line for line in lines[:where] if line)
    return said if where == len(lines) else f"{said} ({lines[where].split(':')[0].lower()})"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
