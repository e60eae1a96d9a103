"""Arrow tables with exactly the columns that ``schema.py`` names."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sigmatrace.schema import EVENT_TABLES, INDEX_TABLES

Values = Sequence[Any] | np.ndarray

_COLUMNS = {**INDEX_TABLES, **EVENT_TABLES}


def arrow_type(dtype: str) -> pa.DataType:
    """Return the Arrow type of a column of ``schema.py``."""
    return pa.string() if dtype == "str" else pa.from_numpy_dtype(np.dtype(dtype))


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
    return pa.Table.from_batches([batch(name, values, tuple(without))])


def batch(
    name: str, values: Sequence[Sequence[Any]], without: tuple[str, ...] = ()
) -> pa.RecordBatch:
    """Return the same as ``rows``, in a form that is made sooner; none have one for all."""
    if not values:
        return _no_rows(name, without)
    return _batch(_schema(name, without), list(zip(*values, strict=True)))


def _batch(schema: pa.Schema, columns: Sequence[Values]) -> pa.RecordBatch:
    arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@functools.cache
def _schema(name: str, without: tuple[str, ...]) -> pa.Schema:
    columns = _COLUMNS[name].items()
    return pa.schema([(key, arrow_type(kind)) for key, kind in columns if key not in without])


@functools.cache
def _no_rows(name: str, without: tuple[str, ...]) -> pa.RecordBatch:
    schema = _schema(name, without)
    return _batch(schema, [()] * len(schema))


def without_rows(columns: Mapping[str, str]) -> pa.Table:
    """Return a table of these columns, name to dtype as in ``schema.py``, without rows."""
    return pa.table({name: pa.array([], arrow_type(kind)) for name, kind in columns.items()})


@functools.cache
def empty(name: str, without: tuple[str, ...] = ()) -> pa.Table:
    """Return the table ``name`` without rows."""
    return table(name, dict.fromkeys(_COLUMNS[name], ()), without)
