"""Arrow tables with exactly the columns that ``schema.py`` names."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from sigmatrace.partition import arrow_type
from sigmatrace.schema import EVENT_TABLES, INDEX_TABLES

Values = Sequence[Any] | np.ndarray

Rows: TypeAlias = Sequence[tuple[Any, ...]] | pa.RecordBatch
"""Rows of one process: a few as they are, since a batch of them would be dearer; many as one."""

_FEW = 100
_COLUMNS = {**INDEX_TABLES, **EVENT_TABLES}


def table(name: str, columns: Mapping[str, Values], without: Sequence[str] = ()) -> pa.Table:
    """Return the table ``name`` with these columns, in the order of ``schema.py``.

    Args:
        name: A key of ``INDEX_TABLES`` or ``EVENT_TABLES``.
        columns: Values by column.
        without: Columns to leave out.

    Raises:
        KeyError: A column is missing.
    """
    schema = _schema(name, tuple(without))
    return pa.Table.from_batches([_batch(schema, [columns[key] for key in schema.names])])


def rows(name: str, values: Sequence[Sequence[Any]], without: Sequence[str] = ()) -> pa.Table:
    """Return the table ``name`` of these rows, each in the order of ``schema.py``."""
    if not values:
        return empty(name, tuple(without))
    return pa.Table.from_batches([_of_rows(_schema(name, tuple(without)), values)])


def stored(name: str, values: Sequence[tuple[Any, ...]], without: tuple[str, ...]) -> Rows:
    """Return rows of the table ``name`` in the form that takes the least time and memory."""
    return values if len(values) <= _FEW else _of_rows(_schema(name, without), values)


def together(name: str, parts: Iterable[Rows], without: tuple[str, ...]) -> pa.Table:
    """Return the table ``name`` of what ``stored`` returned, in one piece."""
    schema = _schema(name, without)
    batches: list[pa.RecordBatch] = []
    for are_batches, group in itertools.groupby(parts, lambda x: isinstance(x, pa.RecordBatch)):
        members = list(group)
        if not are_batches:
            found = list(itertools.chain.from_iterable(members))
            members = [_of_rows(schema, found)] if found else []
        batches += members
    return pa.Table.from_batches(batches, schema).combine_chunks()


def _of_rows(schema: pa.Schema, values: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    # Half the time of zip(*values) when there are many.
    return _batch(schema, [[row[at] for row in values] for at in range(len(schema))])


def _batch(schema: pa.Schema, columns: Sequence[Values]) -> pa.RecordBatch:
    arrays = [_array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Values, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # a file's name that is not UTF-8
        texts = (os.fsencode(value).decode("utf-8", "backslashreplace") for value in values)
        return pa.array(list(texts), kind)


@functools.cache
def _schema(name: str, without: tuple[str, ...]) -> pa.Schema:
    columns = _COLUMNS[name].items()
    return pa.schema([(key, arrow_type(kind)) for key, kind in columns if key not in without])


def without_rows(columns: Mapping[str, str]) -> pa.Table:
    """Return a table of these columns, name to dtype as in ``schema.py``, without rows."""
    return pa.table({name: pa.array([], arrow_type(kind)) for name, kind in columns.items()})


@functools.cache
def empty(name: str, without: tuple[str, ...] = ()) -> pa.Table:
    """Return the table ``name`` without rows."""
    return table(name, dict.fromkeys(_COLUMNS[name], ()), without)
