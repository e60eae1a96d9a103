"""A window of a run: its records are those of the whole run in it, and nothing else is read."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pytest

from sigmatrace import api, pipeline
from sigmatrace.cluster import Threads
from sigmatrace.errors import ConfigError, DataLossError
from sigmatrace.layout import TRACE
from sigmatrace.testing.synthetic import generate
from sigmatrace.testing.synthetic_draw import BASE_NS
from sigmatrace.testing.synthetic_gpu import GpuRun, generate_gpu
from sigmatrace.window import Window

EXPORT = ("parquet", "json", "perfetto")
SKEWED = {"clock_offset_ns": 5_000_000, "clock_drift_ppm": 40.0}
AS_THEY_ARE = "stage.clock.method=calibration"


@pytest.fixture(scope="module", params=["full", "simple"])
def whole(request, tmp_path_factory):
    """A run, and what all of it correlates to."""
    folder = tmp_path_factory.mktemp("window")
    options = {"mode": request.param, "chunk_records": 32, "hosts": 3, **SKEWED}
    generate(folder / "run", ranks=6, events=9000, **options)
    made = api.run(folder / "run", export=EXPORT, out=folder / "whole", overrides=[AS_THEY_ARE])
    return folder / "run", made


def rows(out: Path, table: str, where: str = "true") -> list[tuple]:
    length = {"ops": "call_ns"}.get(table, "0")
    return duckdb.sql(
        f"select * exclude (thread), {length} as length from '{out}/parquet/{table}/*.parquet'"
        f" where {where} order by all"
    ).fetchall()


def inside(begin: int, end: int, table: str) -> str:
    length = {"ops": "call_ns"}.get(table, "0")
    return f"t_ns < {end} and (t_ns >= {begin} or t_ns + {length} > {begin})"


WINDOWS = ["0.004s..0.0045s", "..1ms", "5ms..", "0s..1us", "100s..200s", "1999999ns..2000001ns"]


@pytest.mark.parametrize("text", WINDOWS)
def test_a_window_holds_the_records_of_the_whole_run_in_it(whole, tmp_path, text):
    folder, of_all = whole
    options = {"overrides": [AS_THEY_ARE, f"window={text}", "partition_mb=1"]}
    made = api.run(folder, export=EXPORT, out=tmp_path / "out", **options)
    begin, end = Window.parse("window", text).at(int(of_all.run.facts["base_ns"]))
    for table in ("ops", "completions", "marks"):
        if not list((of_all.out / "parquet" / table).glob("*")):
            continue
        wanted = rows(of_all.out, table, inside(begin, end, table))
        assert rows(made.out, table) == wanted
    book = made.ledger
    assert [one for one in book["balance"] if not one["ok"]] == []
    assert book["lossless"]
    for name, one in book["records"].items():
        total = of_all.ledger["records"][name]["read"]
        assert one["read"] + one["outside"] + one["not_read"] == total
    window = book["capture"]["window"]
    assert window["chunks_read"] + window["chunks_not_read"] == sum(
        len(file.chunks[file.chunks["schema"] != 2]) for file in indexed(folder).files
    )
    outside = begin > of_all.run.facts["last_ns"]
    said = "nothing lies in it: the run is 0s..0.00" if outside else "that is no loss"
    assert said in made.text() and "lost       nothing" in made.text()


def indexed(folder, window=None):
    return pipeline.index(folder, Threads(), partition_bytes=1 << 20, window=window)


def test_chunks_that_are_not_needed_are_not_read(whole, tmp_path):
    """All others are damaged: a reader that looked at one would say so."""
    folder, _ = whole
    copy = shutil.copytree(folder, tmp_path / "run")
    text = "0.004s..0.0045s"
    found = indexed(copy, Window.parse("window", text))
    needed = {
        (piece.path, offset)
        for spec in found.partitions
        for piece in spec.pieces
        for offset in piece.chunks["offset"].tolist()
    }
    damaged = 0
    for file in found.files:
        with Path(file.path).open("r+b") as raw:
            for chunk in file.chunks[file.chunks["schema"] != 2]:
                if (file.path, int(chunk["offset"])) not in needed:
                    raw.seek(int(chunk["data"]))
                    raw.write(b"\xa5" * 16)
                    damaged += 1
    assert damaged > 10 * len(needed) > 0
    outs = []
    for run in (folder, copy):
        options = {"overrides": [AS_THEY_ARE, f"window={text}"], "strict": True}
        outs.append(api.run(run, export=EXPORT, out=tmp_path / f"out{len(outs)}", **options))
    assert outs[1].ledger["capture"]["window"]["chunks_not_read"] == damaged
    assert outs[1].ledger["lossless"] and outs[1].ledger["balanced"]
    assert outs[0].ledger["records"] == outs[1].ledger["records"]
    traces = [(one.out / TRACE).read_bytes() for one in outs]
    assert traces[0] == traces[1]
    with pytest.raises(DataLossError):
        api.run(copy, export="json", out=tmp_path / "strict", strict=True)


def test_the_trace_of_a_window_has_counters_of_the_whole_run(whole, tmp_path, trace_processor):
    folder, of_all = whole
    options = {"overrides": [AS_THEY_ARE, "window=2ms..3ms"]}
    made = api.run(folder, out=tmp_path / "out", **options)
    tp = trace_processor(made.out / TRACE)
    assert tp.problems() == []
    counts = made.ledger["exports"]["perfetto"]
    assert tp.value("select count(*) from slice") == counts["slices"] + counts["instants"]
    assert tp.value("select count(*) from counter") == counts["counters"]
    assert tp.value("select count(*) from flow") == counts["flows"] > 0
    found = tp.query(
        "select ts, value, upid from counter c join process_counter_track t on c.track_id = t.id"
        " where t.name = 'records in the files' order by upid, ts"
    )
    assert len({row["upid"] for row in found}) == 6
    total = 0.0
    for now, then in pairwise(found):
        if now["upid"] == then["upid"]:
            total += now["value"] * (then["ts"] - now["ts"]) / 1e9
    records = of_all.ledger["records"]
    timed = sum(one["read"] for name, one in records.items() if name != "channel")
    assert total == pytest.approx(timed, rel=1e-3)
    assert max(row["ts"] for row in found) > 5_000_000
    wall = "select clock_value from clock_snapshot where clock_name = 'REALTIME' and ts = 0"
    assert tp.value(wall) == made.run.facts["base_ns"]
    begin = "select min(ts + max(dur, 0)) from slice"
    assert tp.value(begin) >= 2_000_000 and tp.value("select max(ts) from slice") < 3_000_000


def test_windows_and_choices_of_the_trace_are_within_each_other(whole, tmp_path):
    folder, _ = whole
    both = [AS_THEY_ARE, "window=2ms..3ms", "export.perfetto.window=2.5ms..9s"]
    made = api.run(folder, out=tmp_path / "both", overrides=both).ledger
    alone = api.run(
        folder, out=tmp_path / "alone", overrides=[AS_THEY_ARE, "window=2.5ms..3ms"]
    ).ledger
    assert made["balanced"]
    counts = [one["exports"]["perfetto"] for one in (made, alone)]
    assert counts[0]["op_records"] == counts[1]["op_records"] > 0
    assert counts[0]["not_chosen"] > 0 == counts[1]["not_chosen"]


def test_a_window_of_a_run_with_gpus(tmp_path, trace_processor):
    generate_gpu(tmp_path / "run", GpuRun(completed=0.7))
    whole = api.run(tmp_path / "run", export="parquet", out=tmp_path / "whole")
    times = duckdb.sql(
        f"select quantile_cont(t_ns, [0.3, 0.6]) from '{whole.out}/parquet/ops/*.parquet'"
    ).fetchall()[0][0]
    begin, end = (int(t) for t in times)
    options = {"overrides": [AS_THEY_ARE, f"window={begin}..{end}"]}
    made = api.run(tmp_path / "run", export=EXPORT, out=tmp_path / "out", **options)
    assert [one for one in made.ledger["balance"] if not one["ok"]] == []
    for table in ("ops", "requests", "cqes", "doorbells", "wqes", "kernels"):
        length = "duration_ns" if table == "kernels" else "0"
        where = f"t_ns < {end} and (t_ns >= {begin} or t_ns + {length} > {begin})"
        assert rows(made.out, table) == rows(whole.out, table, where), table
    tp = trace_processor(made.out / TRACE)
    assert tp.problems() == []
    counts = made.ledger["exports"]["perfetto"]
    assert tp.value("select count(*) from slice") == counts["slices"] + counts["instants"] > 0


@pytest.mark.parametrize("whole", ["full"], indirect=True)  # in mode simple there are no marks
def test_regions_at_the_edges_of_a_window(whole, tmp_path, trace_processor):
    folder, of_all = whole
    spans = duckdb.sql(
        f"select min(t_ns), max(t_ns) from '{of_all.out}/parquet/marks/*.parquet'"
        " where kind in (1, 2) group by proc order by 2"
    ).fetchall()
    begin = spans[0][1] - 100
    before = sum(first < begin for first, _ in spans)
    options = {"overrides": [AS_THEY_ARE, f"window={begin}.."]}
    made = api.run(folder, out=tmp_path / "out", **options)
    counts = made.ledger["exports"]["perfetto"]
    assert made.ledger["balanced"]
    assert counts["regions_from_before"] == counts["regions_stray_ends"] == before > 0
    assert counts["regions_closed"] == len(spans) - before
    tp = trace_processor(made.out / TRACE)
    assert tp.problems() == []
    assert tp.value("select count(*) from slice") == counts["slices"] + counts["instants"]
    found = tp.query(
        "select s.ts, s.dur, extract_arg(s.arg_set_id, 'debug.region') as region from slice s"
        " join thread_track k on k.id = s.track_id where k.name = 'regions' order by s.ts + s.dur"
    )
    base, text = made.run.facts["base_ns"], "began before the window"
    assert [(row["ts"] + base, row["ts"] + row["dur"] + base, row["region"]) for row in found] == [
        (max(first, begin), last, text if first < begin else None) for first, last in spans
    ]


def test_wrong_windows_are_refused_before_anything_is_read(command, tmp_path):
    for word, why in (
        ("window=1..2", "window: '1' has no unit"),
        ("window=5s", "window=5s is no window"),
        ("export.perfetto.ranks=0-15,x", "export.perfetto.ranks: 'x' is no number"),
        ("export.perfetto.ops=send,rite", "unknown operation 'rite'"),
        ("export.perfetto.budget_mb=0", "budget_mb must be at least 1"),
    ):
        said = command(f"run={tmp_path}", word)
        assert said.code == 2 and why in said.err and said.err.count("\n") == 1, said
    with pytest.raises(ConfigError, match="needs times"):
        api.compose(["run=x", "window=1s..2s", "stage=[topology]", "export=json"])


def test_absolute_and_relative_windows_are_the_same(whole, tmp_path):
    folder, of_all = whole
    base = int(of_all.run.facts["base_ns"])
    assert abs(base - BASE_NS) < 10_000_000
    texts = ["2ms..3ms", f"{base + 2_000_000}..{base + 3_000_000}"]
    books = [
        api.run(
            folder, export="json", out=tmp_path / str(k), overrides=[AS_THEY_ARE, f"window={text}"]
        ).ledger
        for k, text in enumerate(texts)
    ]
    assert books[0]["records"] == books[1]["records"]
    assert np.all([book["records"]["op"]["read"] > 0 for book in books])


@pytest.mark.parametrize("option", ["window", "export.perfetto.window"])
def test_a_window_whose_end_lies_before_its_begin_is_refused(small, option, command):
    """Only the run's zero tells so: one side is Unix time."""
    text = f"{BASE_NS + 10**15}..1s"
    code, _, said = command(f"run={small}", "export=perfetto", f"{option}={text}")
    assert code == ConfigError.exit_code
    assert f"error: {option}={text} is empty (the run's zero is " in said.splitlines()[-1]
    assert not (small / "sigmatrace-out").exists()
