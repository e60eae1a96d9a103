"""One table of a run, read when it is asked for, and no more of it than is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute, dataset

from sigmatrace.errors import ConfigError, QueryError
from sigmatrace.frames.columns import Column
from sigmatrace.perfetto_wheel import require
from sigmatrace.settings import suggest
from sigmatrace.text import byte_text, counted
from sigmatrace.window import Window

if TYPE_CHECKING:
    import pandas
    import polars

Filter = tuple[str, str, Any]
"""Column, comparison ("==", "!=", "<", "<=", ">", ">=", "in", "not in") and value."""
EXTRA = "notebook"
"""The extra of this package that brings pandas and Polars."""
LIMIT_MB, MIB = 1024, 1 << 20
_MOMENTS = ("t_ns", "send_ns")
"""Columns that say when a row's event was."""
_BATCH_ROWS = 1 << 16


class Frame:
    """A table of a run.

    Its columns are those of ``sigmatrace/schema.py``, with words for codes; columns ``label``,
    ``src``, ``dst`` and ``peer`` with labels of processes ("" unknown) are added to ``proc``,
    ``src_proc``, ``dst_proc`` and ``peer_proc``. Integers stay integers, of 64 bits also where some
    are null.

    ================  ==========================  =======================  =====================
    column            Arrow                       pandas                   Polars
    ================  ==========================  =======================  =====================
    Unix time         timestamp("ns", "UTC")      datetime64[ns, UTC]      Datetime("ns", "UTC")
    length of time    duration("ns")              timedelta64[ns]          Duration("ns")
    word, label       dictionary(int32, string)   category                 Categorical
    integer, bool     as stored                   Int64, UInt64, boolean   as stored
    text              string                      str (object before 3.0)  String
    ================  ==========================  =======================  =====================

    Args:
        name: Name of the table.
        source: What is stored.
        made: The columns, made of it.
        base_ns: Unix ns of the run's zero; None: not known.
        check: Raises ``QueryError`` for a table of an output that is another one by now.

    Attributes:
        name: Name of the table.
        dataset: What is stored, as a ``pyarrow.dataset.Dataset``: times and codes are integers
            there, and nothing is bounded. DuckDB and Polars can scan it.
    """

    def __init__(
        self,
        name: str,
        source: dataset.Dataset,
        made: Sequence[Column],
        base_ns: int | None,
        check: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.dataset = source
        self._columns = {column.name: column for column in made}
        self._base_ns = base_ns
        self._check = check

    @functools.cached_property
    def rows(self) -> int:
        """How many rows there are; of files, their metadata tell it."""
        self._check(self.name)
        with reading(self.name):
            found = int(self.dataset.count_rows())
        self._check(self.name)
        return found

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of all columns."""
        return pa.schema([(column.name, column.shown) for column in self._columns.values()])

    def arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        filters: Iterable[Filter] = (),
        window: str | None = None,
        rows: int | None = None,
        limit_mb: float = LIMIT_MB,
    ) -> pa.Table:
        """Return rows as an Arrow table.

        Args:
            columns: Names of columns; None: all.
            filters: What rows must fulfil, all of it: ``[("op", "==", "send"), ("size_bytes",
                ">=", 4096)]``. Values are as in the frame (words, labels, times), or as stored; a
                null fulfils no filter.
            window: ``BEGIN..END`` as of the pipeline's option: ``"1s..1.5s"`` after the run's zero,
                or Unix ns. Of events by their time, of ``message_pairs`` by that of the send.
            rows: No more than these, the first ones.
            limit_mb: No more MiB than these are read, as stored: so that a large run does not fill
                the memory by mistake.

        Raises:
            ConfigError: There is no such column, value or window.
            QueryError: It would be more than ``limit_mb``, files cannot be read, or the output was
                replaced since it was opened.
        """
        if rows is not None and not (isinstance(rows, Integral) and rows >= 0):
            raise ConfigError(f"{self.name}: rows={rows!r} is no number of rows", "from 0 on")
        chosen, held, size = self._chosen(columns), [], 0
        left = self.rows if rows is None else min(int(rows), self.rows)
        for batch in self._stored(chosen, filters, window):
            if not left:
                break
            held.append(batch.slice(0, left))
            left -= held[-1].num_rows
            size += held[-1].nbytes
            if size > limit_mb * MIB:
                raise QueryError(
                    f"{self.name}: more than {byte_text(limit_mb * MIB)} of "
                    f"{counted(self.rows, 'row')}",
                    "ask for less by columns=, filters=, window= or rows=, read it in pieces by "
                    "batches(), or give a larger limit_mb=",
                )
        names = list(dict.fromkeys(column.stored for column in chosen))
        stored = pa.schema([self.dataset.schema.field(name) for name in names])
        return _made(chosen, pa.Table.from_batches(held, stored))

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        filters: Iterable[Filter] = (),
        window: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Return rows in pieces of at most 65536, in the memory of a few of them.

        Words of a batch are those that occur in it. Arguments and errors are those of ``arrow``.
        """
        chosen = self._chosen(columns)
        for batch in self._stored(chosen, filters, window):
            yield from _made(chosen, pa.Table.from_batches([batch])).to_batches()

    def pandas(self, columns: Sequence[str] | None = None, **asked: Any) -> pandas.DataFrame:
        """Return rows as a pandas DataFrame.

        Integers and booleans have the types of pandas that know nulls (``Int64``, ``UInt64``,
        ``boolean``), so that none becomes a float.

        Args:
            columns: Names of columns; None: all.
            **asked: ``filters``, ``window``, ``rows`` and ``limit_mb`` of ``arrow``.

        Raises:
            MissingPackageError: pandas is not installed.
            SigmaTraceError: As ``arrow``.
        """
        require("pandas", extra=EXTRA)
        table = self.arrow(columns, **asked)
        found: pandas.DataFrame = table.to_pandas(types_mapper=_pandas_types().get)
        return found

    def polars(self, columns: Sequence[str] | None = None, **asked: Any) -> polars.DataFrame:
        """Return rows as a Polars DataFrame.

        Args:
            columns: Names of columns; None: all.
            **asked: ``filters``, ``window``, ``rows`` and ``limit_mb`` of ``arrow``.

        Raises:
            MissingPackageError: Polars is not installed.
            SigmaTraceError: As ``arrow``.
        """
        require("polars", extra=EXTRA)
        import polars

        return polars.DataFrame(self.arrow(columns, **asked))

    def __repr__(self) -> str:
        width = max((len(name) for name in self._columns), default=0)
        lines = [f"  {name:{width}}  {column.shown}" for name, column in self._columns.items()]
        return "\n".join([f"{self.name}: {counted(self.rows, 'row')}", *lines])

    def _chosen(self, names: Sequence[str] | None) -> list[Column]:
        if isinstance(names, str):
            raise ConfigError(f"{self.name}: columns={names!r} is no list", f"write [{names!r}]")
        found = [self._column(name) for name in (self._columns if names is None else names)]
        for at, column in enumerate(found):
            if column in found[:at]:
                raise ConfigError(f"{self.name}: {column.name} is asked for twice", "name it once")
        return found

    def _column(self, name: str) -> Column:
        if not isinstance(name, str) or name not in self._columns:
            hint = suggest(str(name), self._columns)
            raise ConfigError(f"{self.name} has no column {name!r}", hint)
        return self._columns[name]

    def _stored(
        self, chosen: Sequence[Column], filters: Iterable[Filter], window: str | None
    ) -> Iterator[pa.RecordBatch]:
        asked = [self._column(one).matching(how, value) for one, how, value in self._asked(filters)]
        if window is not None:
            asked.append(self._within(window))
        self._check(self.name)
        with reading(self.name):
            scanner = self.dataset.scanner(
                columns=list(dict.fromkeys(column.stored for column in chosen)),
                filter=functools.reduce(lambda one, other: one & other, asked) if asked else None,
                batch_size=_BATCH_ROWS,
                batch_readahead=2,
                fragment_readahead=1,
            )
            for batch in scanner.to_batches():
                self._check(self.name)
                yield batch
        self._check(self.name)

    def _asked(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Yield filters that are such.

        Raises:
            ConfigError: One is not.
        """
        form = 'write filters=[("size_bytes", ">=", 4096), ...]'
        if isinstance(filters, str) or not isinstance(filters, Iterable):
            raise ConfigError(f"{self.name}: filters={filters!r} is no list", form)
        for one in filters:
            if not (isinstance(one, tuple | list) and len(one) == 3 and isinstance(one[1], str)):
                what = f"{self.name}: filter {one!r} is not column, comparison and value"
                raise ConfigError(what, form)
            yield one[0], one[1], one[2]

    def _within(self, text: str) -> compute.Expression:
        moment = next((name for name in _MOMENTS if name in self._columns), None)
        if moment is None:
            raise ConfigError(f"{self.name}: no window, as its rows are no events", "leave it out")
        if not isinstance(text, str):
            raise ConfigError(f"{self.name}: window={text!r} is no text", 'write window="1s..1.5s"')
        window = Window.parse("window", text)
        if self._base_ns is None and not window.is_unix:
            raise ConfigError(
                f"{self.name}: the run's zero is not known here, which window={text} counts from",
                "write Unix times in ns",
            )
        begin, end = window.at(self._base_ns or 0)
        field = compute.field(moment)
        return (field >= begin) & (field < end)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Make one line of what goes wrong while a table's files are read.

    Raises:
        QueryError: They cannot be read.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise QueryError(f"{name}: {str(error).splitlines()[0]}") from None


def _made(chosen: Sequence[Column], stored: pa.Table) -> pa.Table:
    arrays = [column.made(stored.column(column.stored)) for column in chosen]
    return pa.Table.from_arrays(arrays, names=[column.name for column in chosen])


def _pandas_types() -> dict[pa.DataType, Any]:
    """Return what stands in pandas for types of Arrow that it would not keep with nulls."""
    import pandas

    types: dict[pa.DataType, Any] = {pa.bool_(): pandas.BooleanDtype()}
    for bits in (8, 16, 32, 64):
        for name in (f"Int{bits}", f"UInt{bits}"):
            types[pa.type_for_alias(name.lower())] = pandas.array([], name).dtype
    return types
