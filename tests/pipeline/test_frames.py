"""Frames of a run: the truth of it, the same at once and from what is left on disk."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pytest

from sigmatrace import api
from sigmatrace.errors import QueryError, RunNotFoundError
from sigmatrace.frames.finished import FinishedOutput
from sigmatrace.testing.scenarios import AlltoallTruth, generate


class Made(NamedTuple):
    """A run, what was done, and what is true of it."""

    result: api.Result
    opened: FinishedOutput
    truth: AlltoallTruth


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    run = tmp_path_factory.mktemp("frames") / "a [run] of *"
    truth = generate("alltoall", run, ranks=4, hosts=2, rounds=5)
    result = api.execute(api.compose([f"run={run}", "preset=analysis"]))
    return Made(result, api.open_output(run), truth)


def test_both_ways_lead_to_the_same(made):
    assert dict(made.opened.ledger) == dict(made.result.ledger)
    assert made.opened.text() == made.result.text()
    at_once = api.Result(**{**vars(made.result), "files": {}}).frames
    assert set(at_once) == set(made.result.tables)
    assert set(made.result.frames) == set(made.opened.frames) > set(at_once)
    for name in at_once:
        assert at_once[name].arrow().equals(made.opened.frames[name].arrow()), name


def test_every_table_is_one_frame_in_all_three(made):
    for name, frame in made.opened.frames.items():
        table = frame.arrow()
        table.validate(full=True)
        assert table.schema == frame.schema, name
        assert frame.rows == len(frame.pandas()) == frame.polars().height == table.num_rows
        assert sum(batch.num_rows for batch in frame.batches()) == frame.rows


def test_who_sent_how_much_is_the_truth(made):
    sent = made.opened.frames["ops"].pandas(
        ["src", "dst", "size_bytes"], filters=[("op", "==", "send")]
    )
    by_pair = sent.groupby(["src", "dst"], observed=True)["size_bytes"].agg(["count", "sum"])
    ranks = range(4)
    expected = {
        (f"rank {src}", f"rank {dst}"): (
            made.truth.count[src, dst],
            made.truth.size_bytes[src, dst],
        )
        for src in ranks
        for dst in ranks
        if src != dst
    }
    assert {pair: tuple(row) for pair, row in by_pair.iterrows()} == expected


def test_a_window_is_that_of_the_pipeline(made, tmp_path):
    window = "2ms..5ms"
    run = made.opened.out.parent
    cut = api.run(run, export=["parquet"], out=tmp_path / "cut", overrides=[f"window={window}"])
    columns = ["t_ns", "op", "src", "size_bytes"]
    whole = made.opened.frames["ops"]
    inside = whole.polars(columns, window=window)
    assert 0 < inside.height < whole.rows
    assert inside.equals(cut.frames["ops"].polars(columns))
    zero = pa.scalar(made.opened.frames.base_ns, pa.timestamp("ns", "UTC")).cast(pa.int64())
    offsets = inside["t_ns"].cast(pl.Int64) - zero.as_py()
    assert offsets.min() >= 2_000_000 and offsets.max() < 5_000_000


@pytest.mark.parametrize("place", ["", "sigmatrace-out", "sigmatrace-out/parquet"])
def test_an_output_is_found_from_anywhere(made, place):
    found = api.open_output(made.opened.out.parent / place)
    assert found.frames["ops"].rows == made.truth.operations
    assert found.frames.base_ns == made.result.run.facts["base_ns"]


def test_what_is_no_output_is_one_line(made, tmp_path):
    with pytest.raises(RunNotFoundError, match="no Parquet files there: name a run"):
        api.open_output(tmp_path)
    with pytest.raises(RunNotFoundError, match="no such folder"):
        api.open_output(tmp_path / "none")
    for path in (made.opened.out / "parquet").iterdir():
        (tmp_path / path.name).symlink_to(path)
    alone = api.open_output(tmp_path)
    assert alone.frames["ops"].rows == made.truth.operations and alone.frames.base_ns is None
    with pytest.raises(RunNotFoundError, match=r"ledger\.json"):
        _ = alone.ledger


def test_a_damaged_record_is_one_line(tmp_path):
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "codes.parquet").touch()
    (tmp_path / "run.json").write_text('{"base_ns": ')
    with pytest.raises(RunNotFoundError, match=r"run\.json: damaged") as refused:
        api.open_output(tmp_path)
    assert "\n" not in str(refused.value)
    (tmp_path / "run.json").unlink()
    with pytest.raises(QueryError, match=r"codes\.parquet") as refused:
        api.open_output(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [b"[]", b"\xff\xfe", b'{"base_ns": "soon"}'])
def test_a_record_of_something_else_is_one_line(tmp_path, text):
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "codes.parquet").touch()
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(RunNotFoundError, match=r"run\.json: damaged") as refused:
        api.open_output(tmp_path)
    assert "\n" not in str(refused.value)
