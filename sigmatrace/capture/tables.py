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
    wanted = {key: kind for key, kind in _COLUMNS[name].items() if key not in without}
    return pa.table({key: pa.array(columns[key], arrow_type(kind)) for key, kind in wanted.items()})


def rows(name: str, values: Sequence[Sequence[Any]], without: Sequence[str] = ()) -> pa.Table:
    """Return the table ``name`` of these rows, each in the order of ``schema.py``."""
    if not values:
        return empty(name, tuple(without))
    keys = [key for key in _COLUMNS[name] if key not in without]
    columns = zip(*values, strict=True)
    return table(name, dict(zip(keys, columns, strict=True)), without)


def without_rows(columns: Mapping[str, str]) -> pa.Table:
    """Return a table of these columns, name to dtype as in ``schema.py``, without rows."""
    return pa.table({name: pa.array([], arrow_type(kind)) for name, kind in columns.items()})


@functools.cache
def empty(name: str, without: tuple[str, ...] = ()) -> pa.Table:
    """Return the table ``name`` without rows."""
    return table(name, dict.fromkeys(_COLUMNS[name], ()), without)
