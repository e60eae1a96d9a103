from __future__ import annotations

import io
import json
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.export.json_text import write_json

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            'text "é\n': st.none() | st.text(st.characters(codec="utf-8"), max_size=4),
            "number": st.none() | st.integers(0, 2**64 - 1),
            "share": st.none() | st.floats(),
            "is_so": st.none() | st.booleans(),
        }
    ),
    max_size=7,
)
TYPES = [pa.string(), pa.uint64(), pa.float64(), pa.bool_()]


def written(value):
    file = io.StringIO()
    write_json(file, value)
    return file.getvalue()


@given(ROWS)
def test_it_writes_what_json_dump_writes(rows):
    names = ['text "é\n', "number", "share", "is_so"]
    table = pa.Table.from_pylist(rows, pa.schema(list(zip(names, TYPES, strict=True))))
    plain = [
        {
            key: None if isinstance(row[key], float) and not math.isfinite(row[key]) else row[key]
            for key in names
        }
        for row in rows
    ]
    for value, same in ((table, plain), ({"a": {"b": table}, "c": 1}, {"a": {"b": plain}, "c": 1})):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sigmatrace.export.json_text.ROWS", 3)
            assert written(value) == json.dumps(same, indent=1, ensure_ascii=False)


def test_sums_beyond_64_bits_are_whole():
    many = pa.array([2**64 * 5], pa.decimal128(38))
    assert json.loads(written(pa.table({"bytes": many}))) == [{"bytes": 2**64 * 5}]


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_plain_values_are_as_of_json_dump(value):
    assert written(value) == json.dumps(value, indent=1, ensure_ascii=False)
