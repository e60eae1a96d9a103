"""Columns as people want them: words for codes, labels of processes, times and durations.

Each column of a frame is made of one stored column. What is stored is an integer; a filter on the
column becomes one on what is stored, so that files are read only where they match.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import pyarrow as pa
from pyarrow import compute

from sigmatrace.errors import ConfigError
from sigmatrace.export.tables import LABELS
from sigmatrace.query.folder import OWN, Codes, words
from sigmatrace.settings import suggest

TIMES = frozenset({
    "t_ns", "posted_ns", "start_ns", "wall_ns", "first_ns", "last_ns", "arrival_ns", "begin_ns",
    "end_ns", "send_ns", "receive_ns", "clock_quality.offset_ns",
})  # fmt: skip
"""Columns of Unix times; 0 is none."""
DURATIONS = frozenset({
    "call_ns", "duration_ns", "delay_ns", "delay_total_ns", "delay_min_ns", "delay_max_ns",
    "total_ns", "min_ns", "p50_ns", "p99_ns", "max_ns", "least_ns", "most_ns", "latency_ns",
    "slot_ns", "idle_ns", "longest_idle_ns", "late_sender_ns", "late_receiver_ns", "transfer_ns",
    "spread_ns", "late_ns", "caused_ns", "clock_hosts.offset_ns",
})  # fmt: skip
"""Columns of lengths of time in whole ns. (Means and bounds are floats and stay so.)"""
TIME, DURATION = pa.timestamp("ns", "UTC"), pa.duration("ns")
WORD = pa.dictionary(pa.int32(), pa.string())

_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_AMONG = ("in", "not in")


@dataclass(frozen=True)
class Column:
    """A column of a frame.

    Attributes:
        name: Its name.
        stored: The column that it is made of.
        kept: The type of that one.
        words: What its values are called, in the order that they shall have; None: no words.
        other: What all other values are called; None: by their number.
        shown: Its type in a frame.
    """

    name: str
    stored: str
    kept: pa.DataType
    shown: pa.DataType
    words: Mapping[int, str] | None = None
    other: str | None = None

    def made(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the column, of the values that are stored."""
        if self.words is not None:
            return self._named(values)
        if self.shown == TIME:
            none = pa.scalar(None, self.kept)
            values = compute.if_else(compute.equal(values, 0), none, values)
        return values if self.shown == self.kept else values.cast(self.shown)

    def matching(self, how: str, value: Any) -> compute.Expression:
        """Return what a filter on the column asks of what is stored; null fulfils none.

        Args:
            how: "==", "!=", "<", "<=", ">", ">=", "in" or "not in".
            value: A value as in the frame, or as stored; a collection of them for the last two.

        Raises:
            ConfigError: There is no such comparison, or the column cannot have such a value.
        """
        field = compute.field(self.stored)
        known = field.is_valid() & (field != 0) if self.shown == TIME else field.is_valid()
        if how in _AMONG:
            found = self._among(field, [value] if isinstance(value, str) else value)
            return known & (~found if how == "not in" else found)
        if how not in _COMPARED:
            raise ConfigError(
                f"{how!r} compares nothing", f"use {', '.join(_COMPARED)}, in, not in"
            )
        if self.words is None:
            return known & _COMPARED[how](field, self._scalar(value))
        if how not in ("==", "!="):
            raise ConfigError(f"{self.name} {how} {value!r}: words have no order", "use ==, in")
        found = self._among(field, [value])
        return known & (~found if how == "!=" else found)

    def _named(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        found = compute.unique(values).drop_null().to_pylist()
        rank = {value: at for at, value in enumerate(self.words or ())}
        found.sort(key=lambda value: (rank.get(value, len(rank)), value))
        called = [self._word(value) for value in found]
        names = list(dict.fromkeys(called))  # two processes may have the same label
        place = {name: at for at, name in enumerate(names)}
        places = pa.array([place[name] for name in called], pa.int32())
        index = compute.index_in(values, value_set=pa.array(found, self.kept))
        chunks = [
            pa.DictionaryArray.from_arrays(places.take(chunk), pa.array(names, pa.string()))
            for chunk in index.chunks
        ]
        return pa.chunked_array(chunks, WORD)

    def _word(self, value: int) -> str:
        return (self.words or {}).get(value, str(value) if self.other is None else self.other)

    def _among(self, field: compute.Expression, values: Iterable[Any]) -> compute.Expression:
        if self.words is None:
            stored = [self._scalar(value).as_py() for value in values]
            return field.isin(pa.array(stored, self.kept))
        asked = list(values)
        codes = [code for value in asked for code in self._codes(value)]
        found = field.isin(pa.array(codes, self.kept))
        if self.other is not None and self.other in asked:
            found |= ~field.isin(pa.array(list(self.words or ()), self.kept))
        return found

    def _codes(self, value: Any) -> list[int]:
        """Return what stands for a word; a number stands for itself."""
        known = self.words or {}
        codes = [code for code, word in known.items() if word == value]
        if codes or value == self.other:
            return codes
        if isinstance(value, Integral) or (self.other is None and str(value).isdecimal()):
            return [self._scalar(int(value)).as_py()]
        raise ConfigError(
            f"{self.name}: no such value {value!r}",
            suggest(str(value), dict.fromkeys(known.values())),
        )

    def _scalar(self, value: Any) -> pa.Scalar:
        """Return a value as it is stored; exactly, or not at all."""
        try:
            if self.shown in (TIME, DURATION) and not isinstance(value, int | pa.Scalar):
                value = pa.scalar(value, self.shown).value
            return pa.scalar(value, self.kept)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            said = str(error).splitlines()[0]
            raise ConfigError(f"{self.name}: no such value {value!r}", said) from None


def columns(table: str, schema: pa.Schema, codes: Codes, labels: Mapping[int, str]) -> list[Column]:
    """Return the columns of a frame: those that are stored, then labels of processes.

    Args:
        table: Its name.
        schema: What is stored.
        codes: What codes mean.
        labels: Labels of processes by their number.
    """
    made = [_column(table, field, codes) for field in schema]
    for proc, name in LABELS.items():
        if proc in schema.names and name not in schema.names:
            made.append(Column(name, proc, schema.field(proc).type, WORD, labels, ""))
    return made


def _column(table: str, field: pa.Field, codes: Codes) -> Column:
    kind, shown = field.type, field.type
    known = words(codes, table, field.name) if kind == pa.uint8() else {}
    if known:
        return Column(field.name, field.name, kind, WORD, known)
    names = {field.name, f"{table}.{field.name}"}
    if table in OWN and kind == pa.int64():
        shown = TIME if names & TIMES else DURATION if names & DURATIONS else kind
    return Column(field.name, field.name, kind, shown)
