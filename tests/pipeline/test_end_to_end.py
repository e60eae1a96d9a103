"""The whole pipeline against what a synthetic run is known to hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from sigmatrace import api, passes, pipeline, plan
from sigmatrace.cluster import Threads
from sigmatrace.errors import ClusterError, ConfigError, SigmaTraceError
from sigmatrace.export.parquet import Parquet
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.base import Stage
from sigmatrace.stages.clock import Clock
from sigmatrace.stages.match import Match
from sigmatrace.stages.topology import Topology
from sigmatrace.stages.traffic import Traffic
from sigmatrace.testing.synthetic import generate
from sigmatrace.testing.write import RankFile


@pytest.fixture(scope="module")
def result(synthetic, tmp_path_factory):
    return api.run(synthetic.folder, export=["json"], out=tmp_path_factory.mktemp("out") / "o")


def by_pair(table, truth_rows, column, ranks=8):
    made = np.zeros((ranks, ranks), np.int64)
    src, dst = (table.column(f"{end}_proc").to_numpy() for end in ("src", "dst"))
    np.add.at(made, (src, dst), table.column(column).to_numpy().astype(np.int64))
    known = np.zeros((ranks, ranks), np.int64)
    np.add.at(known, (truth_rows["src"], truth_rows["dst"]), truth_rows[column])
    return made, known


@pytest.mark.parametrize("column", ["sent", "received", "matched", "sent_bytes", "received_bytes"])
def test_messages_are_the_truth(synthetic, result, column):
    made, known = by_pair(result.tables["messages"], synthetic.truth.pairs, column)
    np.testing.assert_array_equal(made, known)
    assert known.sum() > 0


def test_ledger_is_the_truth(synthetic, result):
    truth, book = synthetic.truth, result.ledger
    assert truth.lost["dropped"] > 0 and truth.unmatched["never received"] > 0
    assert book["records"]["op"]["read"] == truth.operations
    assert book["records"]["op"]["dropped"] == truth.lost["dropped"]
    match = book["stages"]["match"]
    assert match["sends_matched"] == truth.pairs["matched"].sum()
    alone = sum(sum(match[f"{what}_unmatched"].values()) for what in ("sends", "receives"))
    assert alone == sum(truth.unmatched.values())
    assert book["balanced"] and not book["lossless"]
    assert book["stages"]["traffic"]["operations"] == truth.operations


def test_traffic_is_the_truth(synthetic, result):
    traffic = result.tables["traffic"]
    sends = traffic.filter(np.equal(traffic.column("op").to_numpy(), 1))
    made, known = by_pair(
        sends.rename_columns(
            [{"size_bytes": "sent_bytes"}.get(name, name) for name in sends.column_names]
        ),
        synthetic.truth.pairs,
        "sent_bytes",
    )
    np.testing.assert_array_equal(made, known)


def test_summary_text(synthetic, result):
    text = result.text()
    assert f"{synthetic.truth.operations:,}".replace(",", " ") + " operations" in text
    assert "of 8 processes on 2 hosts" in text
    dropped = f"{synthetic.truth.lost['dropped']:,}".replace(",", " ")
    assert f"{dropped} op records dropped" in text
    assert "8 of 8 calibrated" in text
    assert "rank" in text.split("top ofi")[1]
    listed = {Path(line.strip()) for line in text.splitlines() if line.startswith("  /")}
    assert listed == set(result.out.iterdir())
    assert (result.out / "summary.txt").read_text() == text + "\n"


def test_open_run_reads_the_index_alone(synthetic):
    run = api.open_run(synthetic.folder)
    assert run.tables["processes"].column("rank").to_pylist() == list(range(8))
    assert run.tables["channels"].num_rows > 0
    assert "traffic" not in run.tables


def test_record_says_how_to_do_it_again(synthetic, result):
    record = json.loads((result.out / "run.json").read_text())
    assert record["options"]["export"] == {"json": {"_target_": "sigmatrace.export.json.Json"}}
    assert record["versions"]["numba"][0].isdigit()
    assert record["run"] == str(synthetic.folder)


def test_partitions_do_not_change_the_result(synthetic, tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "FAN_IN", 2)
    whole = api.run(synthetic.folder, export=["json"], out=tmp_path / "whole")
    spec = pipeline.plan
    monkeypatch.setattr(pipeline, "plan", lambda files, bases, *_: spec(files, bases, 20_000))
    parts = api.run(synthetic.folder, export=["json"], out=tmp_path / "parts")
    assert (whole.out / "summary.json").read_bytes() == (parts.out / "summary.json").read_bytes()
    assert whole.ledger == parts.ledger


def test_exchange_pairs_every_matched_message(synthetic, tmp_path):
    stages = ["clock", "topology", "match", "traffic", "messages"]
    result = api.run(synthetic.folder, export=["json"], stage=stages, out=tmp_path / "out")
    pairs = result.tables["message_pairs"]
    assert pairs.num_rows == synthetic.truth.pairs["matched"].sum()
    assert len(set(pairs.column("flow").to_pylist())) == pairs.num_rows
    assert (
        pairs.column("size_bytes").to_numpy() == pairs.column("received_bytes").to_numpy()
    ).all()
    assert result.ledger["stages"]["messages"]["messages"] == pairs.num_rows


def test_an_exchange_in_which_nothing_meets_makes_a_table_without_rows(tmp_path):
    generate(tmp_path / "run", ranks=2, events=20, unmatched=1.0)
    stages = ["clock", "topology", "match", "traffic", "messages"]
    result = api.run(tmp_path / "run", export=["csv", "parquet"], stage=stages)
    assert result.tables["message_pairs"].schema.equals(
        pa.schema([(n, pa.from_numpy_dtype(d)) for n, d in STAGE_TABLES["message_pairs"].items()])
    )
    assert result.ledger["stages"]["messages"]["messages"] == 0
    assert (result.out / "csv/message_pairs.csv").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("address", "error", "said"),
    [
        ("tcp://127.0.0.1:1", ClusterError, r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"),
        ("tcp://127.0.0.1:x", ConfigError, "is no address: give cluster.address=tcp://HOST:PORT"),
    ],
)
def test_no_scheduler_answers(synthetic, tmp_path, address, error, said):
    words = [f"cluster.address={address}", "cluster.timeout_s=0.5"]
    with pytest.raises(error, match=said):
        api.run(
            synthetic.folder, export=["json"], cluster="distributed", out=tmp_path / "o",
            overrides=words,
        )  # fmt: skip


def test_an_empty_run_gives_empty_tables(tmp_path):
    generate(tmp_path / "run", ranks=2, events=0)
    result = api.run(
        tmp_path / "run", export=["perfetto", "json", "csv", "parquet", "matrix"],
        stage=["clock", "topology", "match", "traffic", "messages"],
    )  # fmt: skip
    assert result.tables["traffic"].num_rows == 0
    assert result.ledger["balanced"]
    assert "events     none" in result.text()


def test_a_process_without_any_channel(tmp_path):
    (tmp_path / "run").mkdir()
    with RankFile(tmp_path / "run") as file:
        file.clock(0, 10**18)
        file.end()
    result = api.run(tmp_path / "run", export=["perfetto", "json", "csv", "parquet", "matrix"])
    assert result.ledger["balanced"] and "events     none of 1 process" in result.text()


def test_a_bug_in_a_stage_is_named(synthetic, tmp_path, monkeypatch):
    def broken(self, part, resolved):
        raise KeyError("x")

    monkeypatch.setattr(Match, "apply", broken)
    with pytest.raises(
        SigmaTraceError, match=r"stage match failed in apply of partition 0: KeyError"
    ):
        api.run(synthetic.folder, export=["json"], out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class Longest(Stage):
    """Needs a pass of its own: how long the longest call of the run took."""

    name = "longest"
    requires: ClassVar = {"ops": {"call_ns": "i8"}}
    produces: ClassVar = {"ops": {"share": "f8"}, "longest": {"call_ns": "i8"}}
    summary = "before"

    def summarize(self, part):
        return int(part.column("ops", "call_ns").max(initial=0))

    def combine(self, left, right):
        return max(left, right)

    def apply(self, part, resolved):
        share = part.column("ops", "call_ns") / resolved
        return part.with_columns("ops", {"share": share})

    def results(self, resolved):
        return {"longest": pa.table({"call_ns": [resolved]})}


def test_a_stage_with_a_pass_of_its_own(synthetic, tmp_path):
    steps = [Longest(), Clock(), Topology(), Match(), Traffic()]
    made = plan.make(steps, [Parquet()])
    assert made.passes == 2
    indexed = pipeline.index(synthetic.folder, Threads(), partition_bytes=20_000)
    assert len(indexed.partitions) > 8
    done = pipeline.correlate(indexed, made, tmp_path, Threads())
    (longest,) = done.run.tables["longest"].column("call_ns").to_pylist()
    found = duckdb.sql(
        f"select max(call_ns), max(share) from '{tmp_path}/parquet/ops/*.parquet'"
    ).fetchall()
    assert found == [(longest, 1.0)] and longest > 0
