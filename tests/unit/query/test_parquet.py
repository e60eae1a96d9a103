"""Tables as views: which columns become words, and what is no table."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import parquet as files

from sigmatrace.errors import QueryError
from sigmatrace.export.tables import codes
from sigmatrace.query import parquet


@pytest.fixture
def tables(tmp_path):
    ops = pa.table(
        {"op": pa.array([1, 2, 200], pa.uint8()), "flags": pa.array([1] * 3, pa.uint8())}
    )
    (tmp_path / "ops").mkdir()
    for part in range(2):
        files.write_table(ops, tmp_path / "ops" / f"part-{part:05d}.parquet")
    files.write_table(ops, tmp_path / "own.parquet")
    status = pa.table({"status": pa.array([0, 10], pa.uint8())})
    for name in ("latencies", "own_latencies"):
        files.write_table(status, tmp_path / f"{name}.parquet")
    files.write_table(codes(), tmp_path / "codes.parquet")
    (tmp_path / "notes.txt").touch()
    with parquet.opened(tmp_path) as found:
        yield found


def rows(tables, sql):
    found = []
    tables.stream(sql, lambda names, more: found.extend(more))
    return found


def test_codes_are_words_in_tables_of_this_package_alone(tables):
    assert tables.names == ["codes", "latencies", "ops", "own", "own_latencies"]
    assert rows(tables, "select op, flags from ops limit 3") == [
        ("send", 1),
        ("recv", 1),
        ("200", 1),
    ]
    assert rows(tables, "select op from own") == [(1,), (2,), (200,)]
    assert rows(tables, "from latencies") == [("success",), ("rem_access_err",)]
    assert rows(tables, "from own_latencies") == [(0,), (10,)]
    assert dict(tables.columns("ops")) == {"op": "varchar", "flags": "utinyint"}


def test_all_parts_are_one_table(tables):
    assert rows(tables, "select count(*) from ops where op = 'send'") == [(2,)]


def test_names_come_even_without_rows_and_statements_without_any(tables):
    seen = []
    tables.stream("select op as kind from ops where false", lambda *one: seen.append(one))
    assert seen == [(["kind"], [])]
    assert rows(tables, "-- nothing") == []


def test_what_is_not_installed_is_not_fetched(tables):
    with pytest.raises(QueryError, match="httpfs") as refused:
        rows(tables, "from read_csv('https://127.0.0.1:1/x.csv')")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("how", ["cut", "empty", "no parts"])
def test_a_table_that_cannot_be_read_leaves_the_others(tmp_path, how):
    """As where an output was copied in part."""
    files.write_table(codes(), tmp_path / "codes.parquet")
    files.write_table(pa.table({"n": [7]}), tmp_path / "whole.parquet")
    if how == "no parts":
        (tmp_path / "broken").mkdir()
    else:
        data = (tmp_path / "whole.parquet").read_bytes() if how == "cut" else b""
        (tmp_path / "broken.parquet").write_bytes(data[:20])
    with parquet.opened(tmp_path) as found:
        assert found.names == ["codes", "whole"]
        assert rows(found, "select n from whole") == [(7,)]
        with pytest.raises(QueryError, match=r"^broken: cannot be read: .*broken") as said:
            rows(found, "select * from whole join broken using (n)")
        assert "\n" not in str(said.value)
        with pytest.raises(QueryError, match="nothing"):
            rows(found, "select * from nothing")
