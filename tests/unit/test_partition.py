from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sigmatrace.partition import Partition, Run


def test_columns_are_added_and_replaced_in_place():
    ops = pa.table({"a": np.zeros(0, np.uint32), "b": np.zeros(0, np.int64)})
    part = Partition(0, {"ops": ops})
    grown = part.with_columns("ops", {"a": np.zeros(0, np.uint8), "c": np.zeros(0, np.int32)})
    assert grown.tables["ops"].column_names == ["a", "b", "c"]
    assert grown.column("ops", "a").dtype == np.uint8
    assert part.tables["ops"].column_names == ["a", "b"]
    assert grown.tables["ops"].num_rows == 0


def test_what_nobody_reads_is_known_after_columns_were_added():
    ops = pa.table({"a": np.zeros(0, np.uint32)})
    part = Partition(0, {"ops": ops}, frozenset({("ops", "x")}))
    grown = part.with_columns("ops", {"y": np.zeros(0, np.uint8)})
    assert [grown.is_read("ops", name) for name in ("a", "x", "y")] == [True, False, True]


def test_facts_of_times():
    run = Run({}, {"base_ns": 5})
    assert run.fact_ns("base_ns") == 5 and run.window_ns is None
    assert run.with_results({}, {"window_ns": (1, 9)}).window_ns == (1, 9)
    with pytest.raises(KeyError, match="last_ns"):
        run.fact_ns("last_ns")


def test_what_was_read_is_the_run_or_its_part_in_the_window():
    run = Run({}, {"base_ns": 5, "last_ns": 90})
    assert run.extent_ns == (5, 90)
    for window, extent in (((0, 50), (5, 49)), ((7, 91), (7, 90)), ((7, 90), (7, 89))):
        assert run.with_results({}, {"window_ns": window}).extent_ns == extent
