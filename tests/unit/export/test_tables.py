"""What tables for people show: labels, words for codes, and nothing where nothing is known."""

from __future__ import annotations

import csv

import pyarrow as pa
import pytest

from sigmatrace.export.csv import Csv
from sigmatrace.trace_format import Queue, WcOpcode
from tests.factories import make_run

SENT = {"queue": Queue.SEND, "opcode": WcOpcode.RDMA_WRITE, "status": 0}
FLUSHED = {"queue": Queue.RECV, "opcode": WcOpcode.RECV, "status": 5}
ODD = {"queue": Queue.SHARED, "opcode": 77, "status": 99}
KNOWN = {"count": 3, "timed": 2, "total_ns": 80, "min_ns": 30, "max_ns": 50}
UNKNOWN = {"count": 3, "timed": 0, "total_ns": 0, "min_ns": None, "max_ns": None}


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (SENT, ("send", "rdma_write", "success")),
        (FLUSHED, ("recv", "recv", "wr_flush_err")),
        (ODD, ("shared", "77", "99")),  # of a later release
    ],
)
@pytest.mark.parametrize(("times", "shown"), [(KNOWN, ("30", "50")), (UNKNOWN, ("", ""))])
def test_latencies_are_in_words_and_only_where_they_are_known(tmp_path, codes, words, times, shown):
    table = pa.Table.from_pylist([{"proc": 0, **codes, **times}])
    run = make_run(processes=[{"label": "rank 7"}]).with_results({"latencies": table})
    Csv().finish((), run, tmp_path)
    with (tmp_path / "csv/latencies.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["label"] == "rank 7"
    assert (row["queue"], row["opcode"], row["status"]) == words
    assert (row["min_ns"], row["max_ns"]) == shown
    assert (row["count"], row["timed"]) == (str(times["count"]), str(times["timed"]))
