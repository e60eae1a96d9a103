"""What a pass shows to stages: partitions in which there is something for them."""

from __future__ import annotations

import pickle
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

from sigmatrace import passes
from sigmatrace.capture.read import PartitionSpec, ReadLoss
from sigmatrace.capture.tables import empty
from sigmatrace.cluster import Shared, threaded
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import EVENT_TABLES, Columns
from sigmatrace.sink import Sink
from sigmatrace.stages.base import Exchange, Stage


class Half(Stage):
    """Adds a column to marks, and remembers which partitions it saw."""

    name: ClassVar[str] = "half"
    summary = "after"
    requires: ClassVar[Columns] = {"marks": {"proc": "i4"}}
    produces: ClassVar[Columns] = {"marks": {"half": "f8"}}

    def __init__(self) -> None:
        self.shown: list[int] = []

    def apply(self, part: Partition, resolved: object) -> Partition:
        self.shown.append(part.number)
        return part.with_columns("marks", {"half": part.column("marks", "proc") / 2})

    def summarize(self, part: Partition) -> float:
        return float(part.column("marks", "half").sum())

    def combine(self, left: float, right: float) -> float:
        return left + right


class Rows(Stage):
    """Counts operations, and marks with the column of the other stage."""

    name: ClassVar[str] = "rows"
    summary = "after"
    requires: ClassVar[Columns] = {"ops": {"proc": "i4"}, "marks": {"half": "f8"}}

    def summarize(self, part: Partition) -> list[int]:
        return [part.tables["ops"].num_rows + part.column("marks", "half").size]

    def combine(self, left: list[int], right: list[int]) -> list[int]:
        return left + right


def computed(tmp_path, monkeypatch, parts: list[dict[str, int]]) -> tuple[Half, tuple]:
    """Return a stage that was part of a pass, and the summaries; parts are rows by table."""

    def read(spec, unread):
        rows = parts[spec.number] if parts else {}
        tables = {name: empty(name) for name in EVENT_TABLES}
        for name, count in rows.items():
            kinds = EVENT_TABLES[name].items()
            tables[name] = pa.table({key: np.ones(count, dtype) for key, dtype in kinds})
        return Partition(spec.number, tables, unread), ReadLoss()

    monkeypatch.setattr(passes, "read", read)
    half, rows = Half(), Rows()
    with Sink(tmp_path, "events") as sink:
        work = passes.Work(
            ((half, None), (rows, None)), (), (), (half, rows), frozenset(), Run({}), tmp_path,
            sink, 1,
        )  # fmt: skip
        specs = [PartitionSpec(number, (), 0) for number in range(len(parts))]
        graph, key, _ = passes.graph_of(Shared(work, tmp_path), specs)
        outcome = threaded.compute(graph, key, 1, lambda one: None)
    return half, outcome.summaries


def test_a_stage_sees_the_partitions_with_rows_for_it(tmp_path, monkeypatch):
    parts = [{"ops": 3}, {"marks": 2}, {}, {"ops": 4, "marks": 5}, *[{"ops": 1}] * 20]
    half, summaries = computed(tmp_path, monkeypatch, parts)
    assert half.shown == [1, 3]
    assert summaries == (3.5, [3, 2, 9, *[1] * 20])


@pytest.mark.parametrize("parts", [[], [{}, {}], [{"completions": 1}]])
def test_without_rows_a_stage_sums_up_nothing(tmp_path, monkeypatch, parts):
    half, summaries = computed(tmp_path, monkeypatch, parts)
    assert half.shown == []
    assert summaries == (0.0, [0])


class Slices(Exchange):
    """Splits into slices of one table."""

    name: ClassVar[str] = "slices"

    def split(self, part: Partition, buckets: int) -> dict[int, pa.Table]:
        rows = pa.table({"a": np.arange(64_000), "b": pa.array(["text"] * 64_000)})
        return {number: rows.slice(1000 * number, 1000) for number in range(buckets)}


def test_a_bucket_does_not_carry_the_rest_of_its_partition():
    found = passes._split(Slices(), Partition(0, {}), 64)
    assert {number: table["a"][0].as_py() for number, table in found.items()} == {
        number: 1000 * number for number in range(64)
    }
    assert sum(len(pickle.dumps(table, 5)) for table in found.values()) < 2 * 64_000 * (8 + 4 + 4)
