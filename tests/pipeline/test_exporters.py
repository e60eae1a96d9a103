"""What the exporters write, read back with other people's tools."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ET

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from matplotlib.image import imread

from sigmatrace import api
from sigmatrace.export import matrix
from sigmatrace.export.amounts import balance
from sigmatrace.export.csv import Csv
from sigmatrace.partition import Run
from sigmatrace.schema import INDEX_TABLES
from sigmatrace.testing.synthetic import generate


@pytest.fixture(scope="module")
def made(synthetic, tmp_path_factory):
    names = ["perfetto", "json", "csv", "parquet", "matrix"]
    out = tmp_path_factory.mktemp("exported") / "out"
    return api.run(synthetic.folder, export=names, out=out)


def truth_of(synthetic, column):
    pairs = synthetic.truth.pairs
    keys = zip(pairs["src"].tolist(), pairs["dst"].tolist(), strict=True)
    return {key: n for key, n in zip(keys, pairs[column].tolist(), strict=True) if n}


def test_parquet_in_duckdb_is_the_truth(synthetic, made):
    rows = duckdb.sql(
        "select src_proc, dst_proc, op, count(*), sum(size_bytes)::hugeint "
        f"from '{made.out}/parquet/ops/*.parquet' group by all"
    ).fetchall()
    for op, count, size in (1, "sent", "sent_bytes"), (2, "received", "received_bytes"):
        counts = {(src, dst): n for src, dst, which, n, _ in rows if which == op}
        sizes = {(src, dst): n for src, dst, which, _, n in rows if which == op and n}
        assert counts == truth_of(synthetic, count)
        assert sizes == truth_of(synthetic, size)
    both = duckdb.sql(
        f"select count(*) from (select flow from '{made.out}/parquet/ops/*.parquet' "
        "where flow > 0 group by flow having count(distinct op) = 2)"
    ).fetchall()
    assert both == [(synthetic.truth.pairs["matched"].sum(),)]


def test_parquet_has_every_table(made):
    def rows(files):
        return duckdb.sql(f"select count(*) from '{made.out}/parquet/{files}.parquet'").fetchall()

    counts = made.ledger["exports"]["parquet"]
    for table, record in ("ops", "op"), ("completions", "completion"), ("targets", "target"):
        assert rows(f"{table}/*") == [(counts[f"{record}_records"],)]
    for name, table in made.tables.items():
        assert rows(name) == [(table.num_rows,)]


def test_json_is_the_truth(synthetic, made):
    content = json.loads((made.out / "summary.json").read_text())
    sends = [row for row in content["traffic"]["by_rank"] if row["op"] == "send"]
    known = truth_of(synthetic, "sent_bytes")
    assert {(r["src_proc"], r["dst_proc"]): r["size_bytes"] for r in sends} == known
    assert {r["src"] for r in sends} == {f"rank {rank}" for rank in range(8)}
    hosts = synthetic.truth.host
    by_host = {}
    for (src, dst), n in known.items():
        key = hosts[src], hosts[dst]
        by_host[key] = by_host.get(key, 0) + n
    rows = [row for row in content["traffic"]["by_host"] if row["op"] == "send"]
    assert {(r["src_host"], r["dst_host"]): r["size_bytes"] for r in rows} == by_host
    (total,) = content["messages"]
    assert total["matched"] == synthetic.truth.pairs["matched"].sum()
    assert len(content["clock_quality"]) == len(content["processes"]) == 8
    assert (made.out / content["ledger"]).is_file()


def test_csv_is_the_truth(synthetic, made):
    with (made.out / "csv/messages.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["matched"]) for row in rows) == synthetic.truth.pairs["matched"].sum()
    assert {row["layer"] for row in rows} == {"ofi"}
    with (made.out / "csv/processes.csv").open(newline="", encoding="utf-8") as file:
        assert [row["label"] for row in csv.DictReader(file)] == [f"rank {n}" for n in range(8)]
    names = {path.stem for path in (made.out / "csv").iterdir()}
    assert names == {"processes", "libraries", *(made.tables.keys() - INDEX_TABLES)}
    assert {"traffic", "timeline", "messages", "clock_quality", "routes"} < names


def test_csv_has_the_tables_of_a_users_own_stage_by_name(tmp_path):
    own = pa.table(
        {
            "proc": pa.array([1, -1, 0], pa.int32()),
            "kind": pa.array([3, 3, 1], pa.uint8()),
            "op": pa.array([1, None, 2], pa.uint8()),
            "list": [[1, 2], None, []],
        }
    )
    processes = pa.table({"proc": [0, 1], "label": ["rank 0", 'a "b", c']})
    libraries = pa.table({"proc": [0], "layer": ["ofi"]})
    run = Run({"processes": processes, "libraries": libraries, "mine": own})
    Csv().finish([], run, tmp_path)
    with (tmp_path / "csv/mine.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == ['a "b", c', "", "rank 0"]
    assert [row["kind"] for row in rows] == ["3", "3", "1"], "what it means is not known"
    assert [row["op"] for row in rows] == ["1", "", "2"]
    assert [row["list"] for row in rows] == ["[1, 2]", "", "[]"]


def test_the_query_that_the_hint_shows_has_names(made, monkeypatch):
    monkeypatch.chdir(made.out)
    shown = made.hints["parquet"].removeprefix("in DuckDB, for example: ")
    traffic = made.ledger["stages"]["match"]
    assert dict(duckdb.sql(shown).fetchall()) == {
        "send": traffic["sends"],
        "recv": traffic["receives"],
    }


def test_codes_have_names_and_routes_show_them(made):
    rows = duckdb.sql(
        f"select field, code, name from '{made.out}/parquet/codes.parquet'"
    ).fetchall()
    assert len({row[:2] for row in rows}) == len(rows)
    assert {("op", 1, "send"), ("layer", 2, "ucp"), ("fate", 4, "peer_not_traced")} <= set(rows)
    assert {("kind", 3, "rma"), ("marks.kind", 3, "counter")} <= set(rows)
    assert {("queue", 3, "shared"), ("requests.owner", 3, "ambiguous")} <= set(rows)
    assert {("requests.opcode", 2, "send"), ("cqes.opcode", 128, "recv")} <= set(rows)
    assert {("latencies.opcode", 0, "send"), ("latencies.status", 5, "wr_flush_err")} <= set(rows)
    assert {("wqes.opcode", 0x14, "atomic_masked_cs"), ("wqes.ce", 2, "always")} <= set(rows)
    assert {("wqes.fence", 2, "fence"), ("doorbells.flags", 64, "not_read")} <= set(rows)
    with (made.out / "csv/routes.csv").open(newline="", encoding="utf-8") as file:
        assert {row["fate"] for row in csv.DictReader(file)} <= {
            r[2] for r in rows if r[0] == "fate"
        }


def test_perfetto_in_trace_processor_is_the_ledger(synthetic, made, trace_processor):
    counts = made.ledger["exports"]["perfetto"]
    trace = trace_processor(made.out / "trace.pftrace")
    (row,) = trace.query("select count(*) as n from slice")
    assert row["n"] == counts["slices"] + counts["instants"]
    (row,) = trace.query("select count(*) as n from flow")
    assert row["n"] == synthetic.truth.pairs["matched"].sum()
    bad = trace.query("select name from stats where severity in ('error', 'data_loss') and value")
    assert list(bad) == []


def test_arrows_of_hosts_whose_clocks_disagree(tmp_path, trace_processor):
    generate(tmp_path / "run", ranks=4, events=2000, hosts=2, clock_offset_ns=50_000)
    as_they_are = ["stage.clock.method=calibration"]
    made = api.run(tmp_path / "run", export=["perfetto", "parquet"], overrides=as_they_are)
    counts = made.ledger["exports"]["perfetto"]
    early, pairs = duckdb.sql(
        f"""with ops as (from '{made.out}/parquet/ops/*.parquet' where flow > 0)
        select count(*) filter (r.t_ns < s.t_ns), count(*) from ops s join ops r using (flow)
        where s.op = 1 and r.op = 2"""
    ).fetchall()[0]
    assert 0 < early == counts["flows_backwards"] < pairs
    assert (
        trace_processor(made.out / "trace.pftrace").value("select count(*) from flow")
        == (counts["flows"])
    )
    assert counts["flows"] == pairs - early
    assert pairs == made.ledger["stages"]["match"]["sends_matched"]
    assert made.ledger["balanced"]
    assert f"{early} messages without an arrow: received before sent (clocks)" in made.text()


def cell_colours(image, size):
    """Return the colours in the middle of the cells of a matrix, found by its black frame."""
    dark = (image[:, :, :3] < 0.1).all(axis=2)
    rows = np.flatnonzero(dark.sum(axis=1) > image.shape[0] // 3)
    columns = np.flatnonzero(dark.sum(axis=0) > image.shape[0] // 3)
    top, bottom, left = rows[0], rows[-1], columns[0]
    side = bottom - top
    middle = ((np.arange(size) + 0.25) * side / size).astype(int)
    return image[np.ix_(top + middle, left + middle)][:, :, :3]


def a_run(values, layers=None, hosts=None):
    size = len(values)
    src, dst = np.nonzero(values)
    layers = np.full(src.size, 1, np.uint8) if layers is None else layers
    traffic = {
        "src_proc": src.astype(np.int32), "dst_proc": dst.astype(np.int32), "layer": layers,
        "op": np.full(src.size, 1, np.uint8), "nested": np.zeros(src.size, np.uint8),
        "count": np.ones(src.size, np.uint64), "size_bytes": values[src, dst].astype(np.uint64),
        "size_unknown": np.zeros(src.size, np.uint64),
    }  # fmt: skip
    names = [f"rank {n}" for n in range(size)]
    processes = {"label": names, "host": hosts or ["h"] * size}
    return Run({"processes": pa.table(processes), "traffic": pa.table(traffic)})


def drawn(run, folder):
    made = matrix.MatrixExporter().finish([], run, folder)
    return folder / made.files[0], made


def test_matrix_files_are_pictures(made):
    folder = made.out / "matrix"
    stems = {f"{level}-{unit}" for level in ("rank", "host") for unit in ("bytes", "operations")}
    assert {path.name for path in folder.iterdir()} == {
        f"{stem}.{suffix}" for stem in stems for suffix in ("png", "svg")
    }
    for path in folder.glob("*.png"):
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert np.unique(imread(path)[:, :, :3].reshape(-1, 3), axis=0).shape[0] > 10
    for path in folder.glob("*.svg"):
        assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_matrix_of_two_ranks_has_its_cells_where_they_belong(tmp_path):
    folder, _ = drawn(a_run(np.array([[0, 3 << 20], [1 << 20, 0]])), tmp_path)
    colours = cell_colours(imread(folder / "rank-bytes.png"), 2)
    blank = np.array([0xF2] * 3) / 255
    np.testing.assert_allclose(colours[0, 0], blank, atol=0.01)
    np.testing.assert_allclose(colours[1, 1], blank, atol=0.01)
    yellow = np.array([0.993, 0.906, 0.144])
    np.testing.assert_allclose(colours[0, 1], yellow, atol=0.02)
    assert np.abs(colours[1, 0] - yellow).max() > 0.2
    text = (folder / "rank-bytes.svg").read_text()
    for shown in ("Bytes from rank to rank", "3 MiB", "1 MiB", "total 4 MiB", "rank 0", "rank 1"):
        assert f"<!-- {shown}" in text


def test_matrix_of_1024_ranks_is_readable(tmp_path):
    values = np.roll(np.diag(np.geomspace(1, 1e12, 1024).astype(np.int64)), 300, axis=1)
    values[5, 9] = 7
    folder, _ = drawn(a_run(values), tmp_path)
    image = imread(folder / "rank-bytes.png")
    frame = (image[:, :, :3] < 0.1).all(axis=2)
    lines = np.flatnonzero(frame.sum(axis=1) > image.shape[0] // 3)
    assert lines[-1] - lines[0] > 1024, "every cell has a pixel of its own"
    text = (folder / "rank-bytes.svg").read_text()
    assert 10 <= text.count("<!-- rank ") / 2 <= matrix.LABELS_MAX
    assert "logarithmic" in text


def test_matrix_counts_a_message_once_per_layer(tmp_path):
    values = np.array([[0, 10], [20, 0]])
    run = a_run(values, layers=np.array([2, 3], np.uint8))
    made = {one.name: one.values for one in matrix.matrices(run)}
    assert made["rank-bytes-ucp"].tolist() == [[0, 10], [0, 0]]
    assert made["rank-bytes-uct"].tolist() == [[0, 0], [20, 0]]
    assert len(made) == 8


def test_matrix_leaves_out_nested_and_receives_and_shows_unknown_ends():
    rows = {
        "src_proc": [0, 0, 0, 0], "dst_proc": [1, 1, 1, -1], "layer": [1, 1, 1, 1],
        "op": [1, 2, 3, 3], "nested": [0, 0, 1, 0], "count": [1, 1, 1, 1],
        "size_bytes": [100, 100, 100, 5], "size_unknown": [0, 0, 0, 0],
    }  # fmt: skip
    processes = pa.table({"label": ["rank 0", "rank 1"], "host": ["a", "b"]})
    types = dict(src_proc="i4", dst_proc="i4", count="u8", size_bytes="u8", size_unknown="u8")
    traffic = {k: np.array(v, types.get(k, "u1")) for k, v in rows.items()}
    run = Run({"processes": processes, "traffic": pa.table(traffic)})
    made = {one.name: one for one in matrix.matrices(run)}
    assert made["rank-bytes"].labels == ["rank 0", "rank 1", "unknown"]
    assert made["rank-bytes"].values.tolist() == [[0, 100, 5], [0, 0, 0], [0, 0, 0]]
    nested = {one.name: one for one in matrix.matrices(run, nested=True)}
    assert nested["host-bytes"].values.tolist() == [[0, 200, 5], [0, 0, 0], [0, 0, 0]]


def test_matrix_of_more_ranks_than_cells_is_summed_in_blocks():
    run = a_run(np.eye(1500, dtype=np.int64))
    made = {one.name: one for one in matrix.matrices(run)}
    one = made["rank-bytes"]
    assert np.array_equal(one.values, 2 * np.eye(750))
    assert one.labels[:2] == ["rank 0", "rank 2"]
    assert made["host-bytes"].values.sum() == 1500
    figure = matrix.draw(one)
    (image,) = figure.axes[0].images
    assert image.get_array().shape == (750, 750)
    assert "a cell is 2 x 2" in figure.axes[0].get_title()


def test_drawing_leaves_matplotlib_alone():
    import matplotlib.pyplot as plt

    before = dict(plt.rcParams)
    matrix.draw(matrix.Matrix("x", "X", "bytes", ["a"], np.zeros((1, 1), np.uint64)))
    assert dict(plt.rcParams) == before
    assert plt.get_fignums() == []


def test_exporters_that_show_less_than_the_traffic_are_found(made):
    run, book = made.run, made.ledger["stages"]["traffic"]
    operations, size_bytes = balance(run, 1, 2)
    assert (operations["left"], size_bytes["left"]) == (1, 2)
    told = [one for one in made.ledger["balance"] if re.search("(ions|bytes) of the", one["name"])]
    assert {one["name"].partition(":")[0] for one in told} == {"csv", "json", "matrix"}
    assert {one["right"] for one in told} == {book["operations"], book["size_bytes"]}
    full = pa.table({"size_bytes": pa.array([2**64 - 1], pa.uint64())})
    assert len(balance(run.with_results({"traffic": full}), 1, 2)) == 1, "bytes beyond 64 bits"
