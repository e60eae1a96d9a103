"""Rows of many processes as one table, whatever form each is kept in."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sigmatrace.capture.tables import rows, stored, together

FEW, MANY = 3, 1000


@pytest.mark.parametrize("counts", [(), (0,), (FEW,), (MANY,), (FEW, 0, FEW, MANY, MANY, FEW)])
def test_few_rows_and_many_come_together_in_their_order(counts: tuple[int, ...]) -> None:
    parts = [[(at, f"of {part}") for at in range(count)] for part, count in enumerate(counts)]
    kept = [stored("names", part, ("proc",)) for part in parts]
    assert [isinstance(one, pa.RecordBatch) for one in kept] == [len(x) == MANY for x in parts]
    table = together("names", kept, ("proc",))
    everything = [row for part in parts for row in part]
    assert table.equals(rows("names", everything, ("proc",)))
    assert [tuple(row.values()) for row in table.to_pylist()] == everything
