"""Order and sums of rows, judged by Python's own."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sigmatrace.table_order import grouped, in_order

ROWS = [
    {"proc": 1, "qp": 7, "count": 2, "least": 5, "most": 5, "at": 0},
    {"proc": 0, "qp": 9, "count": 3, "least": 4, "most": 9, "at": 1},
    {"proc": 1, "qp": 7, "count": 4, "least": 2, "most": 3, "at": 2},
    {"proc": 0, "qp": 2, "count": 0, "least": -1, "most": 1 << 40, "at": 3},
]
SCHEMA = pa.schema(
    {"proc": pa.int32(), "qp": pa.uint32(), **dict.fromkeys(("count", "least", "most"), pa.int64())}
)
HOW = [("count", "sum"), ("least", "min"), ("most", "max")]


def test_equal_rows_stay_in_order():
    found = in_order(pa.Table.from_pylist(ROWS), ["proc", "qp"]).column("at").to_pylist()
    by = sorted(ROWS, key=lambda row: (row["proc"], row["qp"]))
    assert found == [row["at"] for row in by] == [3, 1, 0, 2]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], []])
def test_groups_have_the_same_columns_whether_there_are_rows_or_none(rows):
    found = grouped(pa.Table.from_pylist(rows, SCHEMA), ["proc", "qp"], HOW)
    assert found.schema == SCHEMA
    expected = {}
    for row in rows:
        same = [one for one in rows if (one["proc"], one["qp"]) == (row["proc"], row["qp"])]
        expected[row["proc"], row["qp"]] = (
            sum(one["count"] for one in same),
            min(one["least"] for one in same),
            max(one["most"] for one in same),
        )
    told = {tuple(row.values())[:2]: tuple(row.values())[2:] for row in found.to_pylist()}
    assert told == expected and found.num_rows == len(expected)
