"""JSON of tables with millions of rows: written in blocks, column by column."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

ROWS = 1 << 16
"""Rows that are text at a time."""
_ENCODER = json.JSONEncoder(indent=1, allow_nan=False, ensure_ascii=False)


def write_json(file: TextIO, value: Any, depth: int = 0) -> None:
    """Write a value as ``json.dump(value, file, indent=1, ensure_ascii=False)`` does.

    Args:
        file: Where to.
        value: Of JSON's types; a table is the list of its rows, without infinities.
        depth: How far the value is indented.
    """
    if isinstance(value, pa.Table) and value.num_rows:
        _write_rows(file, value, depth)
    elif isinstance(value, Mapping) and value:
        between = "{"
        for key, one in value.items():
            file.write(f"{between}\n{' ' * (depth + 1)}{_text(key)}: ")
            write_json(file, one, depth + 1)
            between = ","
        file.write(f"\n{' ' * depth}}}")
    else:
        text = _text([] if isinstance(value, pa.Table) else value)
        file.write(text.replace("\n", "\n" + " " * depth))


def _write_rows(file: TextIO, table: pa.Table, depth: int) -> None:
    row, cell = "\n" + " " * (depth + 1), "\n" + " " * (depth + 2)
    keys = [_text(name) for name in table.column_names]
    heads = [f"{'{' if at == 0 else ','}{cell}{key}: " for at, key in enumerate(keys)]
    between = "["
    for start in range(0, table.num_rows, ROWS):
        block = table.slice(start, ROWS).combine_chunks()
        parts = [
            part
            for head, column in zip(heads, block.columns, strict=True)
            for part in (head, _column_text(column.combine_chunks()))
        ]
        texts = pc.binary_join_element_wise(*parts, row + "}", "")
        file.write(between + row + ("," + row).join(texts.to_pylist()))
        between = ","
    file.write("\n" + " " * depth + "]")


def _column_text(column: pa.Array) -> pa.Array:
    """Return a column's values as JSON."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return pc.fill_null(column.cast(pa.string()), "null")
    if pa.types.is_string(kind):
        encoded = column.dictionary_encode(null_encoding="encode")
        words = [_text(word) for word in encoded.dictionary.to_pylist()]
        return pa.array(words, pa.string()).take(encoded.indices)
    if pa.types.is_floating(kind):
        values = column.to_pylist()
        return pa.array(["null" if x is None or not math.isfinite(x) else repr(x) for x in values])
    return pa.array([_text(value) for value in column.to_pylist()], pa.string())


def _text(value: Any) -> str:
    return _ENCODER.encode(value)
