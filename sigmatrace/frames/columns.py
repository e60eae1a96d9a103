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

import numpy as np
import pyarrow as pa
from pyarrow import compute

from sigmatrace.code_words import OWN, Codes, words
from sigmatrace.errors import ConfigError
from sigmatrace.export.tables import LABELS
from sigmatrace.settings import suggest

TIMES = frozenset({
    "t_ns", "posted_ns", "start_ns", "wall_ns", "first_ns", "last_ns", "arrival_ns", "begin_ns",
    "end_ns", "send_ns", "receive_ns", "clock_quality.offset_ns",
})  # fmt: skip
"""Columns of Unix times; 0 is none."""
DURATIONS = frozenset({
    "call_ns", "duration_ns", "delay_ns", "delay_total_ns", "delay_min_ns", "delay_max_ns",
    "total_ns", "min_ns", "p50_ns", "p50_least_ns", "p99_ns", "max_ns", "least_ns", "most_ns",
    "latency_ns",
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
        if self._is_count_of_ns and self.shown == TIME:
            none = pa.scalar(None, self.kept)
            values = compute.if_else(compute.equal(values, 0), none, values)
        return values if self.shown == self.kept else values.cast(self.shown)

    @property
    def _is_count_of_ns(self) -> bool:
        """Whether an integer is shown as a time, or a length of time; of 0 a time is none.

        A column of another stage may be stored as a time.
        """
        return self.shown in (TIME, DURATION) and self.kept != self.shown

    def matching(self, how: str, value: Any) -> compute.Expression:
        """Return what a filter on the column asks of what is stored; null fulfils none.

        Args:
            how: "==", "!=", "<", "<=", ">", ">=", "in" or "not in".
            value: A value as in the frame, or as stored; a collection of them for the last two.

        Raises:
            ConfigError: There is no such comparison, or the column cannot have such a value.
        """
        field = compute.field(self.stored)
        known = field.is_valid()
        if self._is_count_of_ns and self.shown == TIME:
            known &= field != 0
        if how in _AMONG:
            found = self._among(field, self._listed(value))
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

    def _listed(self, values: Any) -> list[Any]:
        """Return the values of a collection; texts are one value, as texts."""
        if isinstance(values, str) or not isinstance(values, Iterable):
            if self.words is None and not isinstance(values, str):
                raise ConfigError(f"{self.name}: {values!r} is no list", f"write [{values!r}]")
            return [values]
        if hasattr(values, "to_arrow"):  # Polars iterates times without their ns
            values = values.to_arrow()
        return list(values)

    def _among(self, field: compute.Expression, values: Iterable[Any]) -> compute.Expression:
        if self.words is None:
            kept = self.kept.value_type if pa.types.is_dictionary(self.kept) else self.kept
            stored = [self._scalar(value).as_py() for value in values]
            return field.isin(pa.array(stored, kept))
        asked = [one.as_py() if isinstance(one, pa.Scalar) else one for one in values]
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
            if isinstance(value, np.datetime64 | np.timedelta64):
                value = pa.scalar(value)
            if self._is_count_of_ns and not isinstance(value, Integral):
                given = value if isinstance(value, pa.Scalar) else pa.scalar(value, self.shown)
                is_count = pa.types.is_integer(given.type)
                value = given.as_py() if is_count else given.cast(self.shown).value
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
            kind = schema.field(proc).type
            if pa.types.is_integer(kind):  # another stage may call something else so
                made.append(Column(name, proc, kind, WORD, _held(labels, kind), ""))
    return made


def _held(labels: Mapping[int, str], kind: pa.DataType) -> Mapping[int, str]:
    """Return the labels of the numbers that a type can hold."""
    range_ = np.iinfo(kind.to_pandas_dtype())
    return {number: text for number, text in labels.items() if range_.min <= number <= range_.max}


def _column(table: str, field: pa.Field, codes: Codes) -> Column:
    kind, shown = field.type, field.type
    known = words(codes, table, field.name) if kind == pa.uint8() else {}
    if known:
        return Column(field.name, field.name, kind, WORD, known)
    names = {field.name, f"{table}.{field.name}"}
    if table in OWN and kind == pa.int64():
        shown = TIME if names & TIMES else DURATION if names & DURATIONS else kind
    return Column(field.name, field.name, kind, shown)
