"""Rows as text: tables, CSV and JSON, whatever the values and however they come."""

from __future__ import annotations

import csv
import io
import json
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.errors import QueryError
from sigmatrace.query.rows import FORMATS

VALUES = st.one_of(st.none(), st.integers(), st.text(max_size=8), st.booleans())
CHUNKS = st.lists(st.lists(st.tuples(VALUES, VALUES), max_size=4), max_size=4)


def written(kind, chunks, names=("a", "b")):
    out = io.StringIO()
    writer = FORMATS[kind](out)
    writer.take(names, [])
    for rows in chunks:
        writer.take(names, rows)
    writer.end()
    return out.getvalue()


def together(chunks):
    return [row for rows in chunks for row in rows]


@given(CHUNKS)
def test_json_is_what_it_was(chunks):
    expected = [dict(zip("ab", row, strict=True)) for row in together(chunks)]
    assert json.loads(written("json", chunks)) == expected


@given(CHUNKS)
def test_csv_has_the_texts(chunks):
    def text(value):
        if isinstance(value, bool):
            return str(value).lower()
        return "" if value is None else str(value)

    # newline="": line ends within values are theirs.
    found = list(csv.reader(io.StringIO(written("csv", chunks), newline="")))
    assert found == [["a", "b"], *([text(x) for x in row] for row in together(chunks))]


@given(CHUNKS)
def test_a_table_has_a_line_for_each_row(chunks):
    lines = written("table", chunks).split("\n")
    assert len(lines) == 1 + len(together(chunks)) + 1 and lines[-1] == ""


def test_columns_of_a_table_line_up():
    rows = [(1, "x"), (None, "long text"), (12345, None)]
    assert written("table", [rows]) == "    a  b\n    1  x\n       long text\n12345\n"


def test_a_long_table_keeps_the_widths_of_its_first_rows():
    rows = [(n, "x") for n in range(1500)]
    lines = written("table", [rows[:700], rows[700:1400], rows[1400:]]).splitlines()
    assert lines[1] == "  0  x" and lines[1500] == "1499  x" and len(lines) == 1501


def test_control_characters_do_not_reach_the_terminal():
    assert written("table", [[("a\x1b[31m\nb→", 1)]]).splitlines()[1] == r"a\x1b[31m\nb→  1"


def test_values_that_json_lacks():
    row = (float("inf"), Decimal("1.5"), date(2026, 11, 30), b"\x01\xff", [1, {"k": float("nan")}])
    (found,) = json.loads(written("json", [[row]], "abcde"))
    assert list(found.values()) == ["Infinity", 1.5, "2026-11-30", "01ff", [1, {"k": "NaN"}]]


def test_two_columns_of_one_name_are_no_json():
    with pytest.raises(QueryError, match="several columns are called a: name them apart"):
        written("json", [[(1, 2)]], "aa")
    assert written("csv", [[(1, 2)]], "aa") == "a,a\n1,2\n"


def test_nothing_at_all():
    assert [written(kind, [], ()) for kind in ("table", "csv", "json")] == ["", "", "[]\n"]
