"""Frames: exact in Arrow, pandas and Polars, and never more than was asked for."""

from __future__ import annotations

import importlib.util

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from sigmatrace.errors import ConfigError, MissingPackageError, QueryError
from sigmatrace.export.tables import codes
from sigmatrace.frames.frames import Frames

BEYOND = [2**53 + 1, 2**63 + 1, 2**64 - 1]
"""Not to be held by a float."""


def frames(base_ns=None, **tables):
    return Frames.in_memory(tables, base_ns)


@pytest.mark.parametrize("null", [False, True])
def test_ids_of_64_bits_are_exact_with_and_without_nulls(null):
    ids = [*BEYOND, *([None] if null else [])]
    made = frames(own=pa.table({"id": pa.array(ids, pa.uint64())}))["own"]
    assert made.arrow()["id"].to_pylist() == ids
    frame = made.pandas()
    assert frame["id"].dtype == pd.UInt64Dtype()
    assert [None if one is pd.NA else int(one) for one in frame["id"]] == ids
    assert frame.groupby("id").size().index.tolist() == BEYOND
    assert made.polars()["id"].to_list() == ids
    assert made.polars().schema == {"id": pl.UInt64}
    for value in BEYOND:
        assert made.arrow(filters=[("id", "==", value)])["id"].to_pylist() == [value]
        assert made.arrow(filters=[("id", "in", [value])])["id"].to_pylist() == [value]


def test_types_are_those_of_each_library():
    t_ns = 1_700_000_000_123_456_789
    table = pa.table(
        {
            "t_ns": pa.array([t_ns, 0], pa.int64()),
            "call_ns": pa.array([2**53 + 1, None], pa.int64()),
            "op": pa.array([1, None], pa.uint8()),
            "good": pa.array([True, None], pa.bool_()),
        }
    )
    made = frames(ops=table)["ops"]
    assert made.arrow().schema == made.schema
    frame = made.pandas()
    assert [str(one) for one in frame.dtypes] == [
        "datetime64[ns, UTC]",
        "timedelta64[ns]",
        "category",
        "boolean",
    ]
    assert frame["t_ns"][0].value == t_ns and frame["t_ns"][1] is pd.NaT
    assert frame["call_ns"][0].value == 2**53 + 1 and frame["call_ns"][1] is pd.NaT
    assert frame["op"].cat.categories.tolist() == ["send"]
    assert dict(made.polars().schema) == {
        "t_ns": pl.Datetime("ns", "UTC"),
        "call_ns": pl.Duration("ns"),
        "op": pl.Categorical,
        "good": pl.Boolean,
    }
    assert made.polars()["t_ns"].cast(pl.Int64).to_list() == [t_ns, None]


def test_a_large_table_is_refused_and_its_pieces_are_not():
    rows = 300_000
    made = frames(own=pa.table({"id": range(rows), "more": range(rows)}))["own"]
    with pytest.raises(QueryError, match=r"more than 1 MiB of 300 000 rows.*batches") as refused:
        made.pandas(limit_mb=1)
    assert "\n" not in str(refused.value)
    sizes, total = [], 0
    for batch in made.batches(["id"]):
        sizes.append(batch.num_rows)
        total += sum(batch["id"].to_pylist())
    assert max(sizes) <= 65536 and total == rows * (rows - 1) // 2
    assert made.arrow(rows=5)["id"].to_pylist() == [0, 1, 2, 3, 4]
    assert made.arrow(filters=[("id", ">=", 299_999)]).num_rows == 1
    assert made.arrow(rows=0).num_rows == 0


def test_a_refused_read_has_read_no_more_than_a_few_batches(monkeypatch):
    made = frames(own=pa.table({"id": range(1 << 20)}))["own"]
    asked = []
    stored = made._stored

    def counted(*words):
        for batch in stored(*words):
            asked.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(made, "_stored", counted)
    with pytest.raises(QueryError):
        made.arrow(limit_mb=1)
    assert sum(asked) * 8 <= (1 << 20) + 65536 * 8


def test_labels_stand_beside_numbers_and_can_be_asked_for():
    processes = pa.table({"proc": [0, 1, 2], "label": ["rank 0", "pid 7", "pid 7"]})
    traffic = pa.table({"src_proc": [0, 1, -1, 2], "size_bytes": [1, 2, 3, 4]})
    made = frames(processes=processes, traffic=traffic)["traffic"]
    assert made.pandas(["src"])["src"].tolist() == ["rank 0", "pid 7", "", "pid 7"]
    for label, expected in (("rank 0", [1]), ("pid 7", [2, 4]), ("", [3])):
        found = made.polars(["size_bytes"], filters=[("src", "==", label)])
        assert found["size_bytes"].to_list() == expected
    for number in (2, np.int64(2)):
        assert made.arrow(filters=[("src", "==", number)])["size_bytes"].to_pylist() == [4]
    with pytest.raises(ConfigError, match="rank 9"):
        made.arrow(filters=[("src", "==", "rank 9")])


def test_a_window_counts_from_the_runs_zero():
    base = 1_700_000_000_000_000_000
    table = pa.table({"t_ns": [base + at for at in (0, 10, 20, 30)]})
    made = frames(base, ops=table, traffic=pa.table({"count": [1]}))
    found = made["ops"].arrow(window="10ns..30ns")["t_ns"].cast(pa.int64()).to_pylist()
    assert found == [base + 10, base + 20]
    assert made["ops"].arrow(window=f"{base + 20}..").num_rows == 2
    with pytest.raises(ConfigError, match="no events"):
        made["traffic"].arrow(window="1s..")
    lost = frames(ops=table)["ops"]
    assert lost.arrow(window=f"..{base + 20}").num_rows == 2
    with pytest.raises(ConfigError, match="zero is not known"):
        lost.arrow(window="10ns..")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_not_there_is_one_line(monkeypatch, library):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    made = frames(own=pa.table({"id": [1]}))["own"]
    with pytest.raises(MissingPackageError, match=rf"{library}: not installed.*\.\[notebook\]"):
        getattr(made, library)()
    assert made.arrow().num_rows == 1


def test_names_that_are_not_there_are_one_line():
    made = frames(traffic=pa.table({"count": [1]}))
    assert "ops" not in made and made.get("ops") is None
    with pytest.raises(ConfigError, match="did you mean 'traffic'"):
        made["trafic"]
    with pytest.raises(ConfigError, match=r"no table 'nope': known: ops, traffic$"):
        frames(ops=pa.table({"count": [1]}), traffic=pa.table({"count": [1]}))["nope"]
    with pytest.raises(ConfigError, match=r"write \['count'\]"):
        made["traffic"].arrow("count")
    with pytest.raises(ConfigError, match="did you mean 'count'"):
        made["traffic"].arrow(["counts"])


def test_a_frame_shows_its_columns():
    made = frames(ops=pa.table({"op": pa.array([1], pa.uint8())}))
    assert repr(made) == "1 tables: ops"
    assert repr(made["ops"]).splitlines()[0] == "ops: 1 row"
    assert "op  dictionary" in repr(made["ops"])


def test_a_damaged_file_is_one_line(tmp_path):
    parquet.write_table(codes(), tmp_path / "codes.parquet")
    (tmp_path / "traffic.parquet").write_bytes(b"PAR1 no parquet")
    made = Frames.in_folder(tmp_path, None)
    with pytest.raises(QueryError, match="traffic") as refused:
        made["traffic"].arrow()
    assert "\n" not in str(refused.value)


def test_what_is_stored_can_be_scanned_by_others():
    made = frames(ops=pa.table({"op": pa.array([1], pa.uint8())}))["ops"]
    assert isinstance(made.dataset, dataset.Dataset)
    assert pl.scan_pyarrow_dataset(made.dataset).collect()["op"].to_list() == [1]


def test_an_output_that_is_replaced_is_not_read_as_the_one_that_was_opened(tmp_path):
    def write(out, first):
        out.mkdir()
        parquet.write_table(codes(), out / "codes.parquet")
        labels = {"proc": pa.array([0, 1], pa.int32()), "label": [f"rank {first}", "rank 9"]}
        parquet.write_table(pa.table(labels), out / "processes.parquet")
        own = pa.table({"proc": pa.array([0, 1], pa.int32()), "value": [first, first + 1]})
        parquet.write_table(own, out / "own.parquet")

    write(tmp_path / "out", 0)
    made = Frames.in_folder(tmp_path / "out", None)
    frame, pieces = made["own"], made["own"].batches()
    assert frame.arrow(filters=[("value", ">=", 0)]).num_rows == 2
    (tmp_path / "out").rename(tmp_path / "old")
    write(tmp_path / "out", 5)
    asked = (
        lambda: frame.arrow(filters=[("value", "<", 5)]),
        lambda: made["own"],
        lambda: list(pieces),
    )
    for ask in asked:
        with pytest.raises(QueryError, match="was replaced, or is gone, since it was opened"):
            ask()
    again = Frames.in_folder(tmp_path / "out", None)["own"].arrow(["label", "value"]).to_pylist()
    assert again == [{"label": "rank 5", "value": 5}, {"label": "rank 9", "value": 6}]


@pytest.mark.parametrize("name", ["codes", "processes"])
def test_a_table_of_other_columns_is_one_line(tmp_path, name):
    parquet.write_table(codes(), tmp_path / "codes.parquet")
    parquet.write_table(pa.table({"proc": pa.array([0], pa.int32())}), tmp_path / "own.parquet")
    parquet.write_table(pa.table({"other": [1]}), tmp_path / f"{name}.parquet")
    with pytest.raises(QueryError, match=name) as refused:
        _ = Frames.in_folder(tmp_path, None)["own"]
    assert "\n" not in str(refused.value)
