"""sigmatrace-query: both engines give the same answers on the same run, and these are the truth."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sigmatrace import api
from sigmatrace.query import parquet, shipped, trace
from sigmatrace.query.command import main
from sigmatrace.testing.scenarios import Truth, generate
from sigmatrace.testing.synthetic import generate as synthetic_run

OPTIONS = {
    "ring": {"ranks": 4, "hosts": 2, "iterations": 2},
    "alltoall": {"ranks": 4, "hosts": 2, "rounds": 5},
    "moe": {"steps": 2},
    "bfs": {},
}
QUERIES = [
    (name, {"level": level} if level else {})
    for name, query in shipped.all_queries().items()
    for level in (query.parameters["level"][0] if "level" in query.parameters else [None])
]


class Asked:
    """A run, and both engines with it."""

    def __init__(self, run: Path, tables: parquet.Tables, loaded, truth: Truth | None) -> None:
        self.run = run
        self.truth = truth
        self._engines = {False: tables, True: loaded}

    def rows(self, query: str, /, perfetto: bool, **given: str) -> list[dict]:
        return self.sql(shipped.named(query).filled(given, perfetto=perfetto), perfetto)

    def sql(self, sql: str, perfetto: bool = False) -> list[dict]:
        found: list[dict] = []

        def take(names, rows):
            found.extend(dict(zip(names, row, strict=True)) for row in rows)

        self._engines[perfetto].stream(sql, take)
        return found

    def both(self, query: str, /, **given: str) -> list[dict]:
        """The rows of a query, if both give the same."""
        duck, perfetto = (self.rows(query, on_trace, **given) for on_trace in (False, True))
        for row in (*duck, *perfetto):
            row.pop("backwards", None)  # no arrow tells of these
        assert [row for row in duck if row.get("messages") != 0] == perfetto
        return perfetto


def asked(run: Path, truth: Truth | None) -> Iterator[Asked]:
    api.run(run, export=["perfetto", "parquet"])
    with parquet.opened(run) as tables, trace.opened(run) as loaded:
        yield Asked(run, tables, loaded, truth)


@pytest.fixture(scope="module", params=OPTIONS)
def scenario(request, tmp_path_factory) -> Iterator[Asked]:
    run = tmp_path_factory.mktemp("query") / request.param
    yield from asked(run, generate(request.param, run, **OPTIONS[request.param]))


@pytest.fixture(scope="module")
def ring(tmp_path_factory) -> Iterator[Asked]:
    run = tmp_path_factory.mktemp("query") / "a [ring] it's"
    yield from asked(run, generate("ring", run, **OPTIONS["ring"]))


@pytest.fixture(scope="module")
def alltoall(tmp_path_factory) -> Iterator[Asked]:
    run = tmp_path_factory.mktemp("query") / "alltoall"
    yield from asked(run, generate("alltoall", run, **OPTIONS["alltoall"]))


@pytest.mark.parametrize(("name", "given"), QUERIES)
def test_both_give_the_same_answer(scenario, name, given):
    rows = scenario.both(name, **given)
    assert rows or name in ("arrivals", "barriers", "latency")


@pytest.mark.parametrize("name", shipped.all_queries())
def test_both_agree_on_a_run_with_losses_and_wrong_clocks(tmp_path, name):
    options = {"loss": 0.05, "unmatched": 0.05, "mode": "full", "clock_offset_ns": 100_000}
    synthetic_run(tmp_path / "run", ranks=4, hosts=2, events=2000, **options)
    for one in asked(tmp_path / "run", None):
        assert one.both(name) or name in ("arrivals", "barriers")


@pytest.mark.parametrize("name", ["ring", "alltoall"])
def test_the_matrix_is_the_truth(request, name):
    run = request.getfixturevalue(name)
    truth = run.truth
    found = {(row["src"], row["dst"]): row for row in run.both("matrix")}
    expected = np.argwhere(truth.count)
    assert found.keys() == {(f"rank {src}", f"rank {dst}") for src, dst in expected}
    for src, dst in expected:
        row = found[f"rank {src}", f"rank {dst}"]
        assert row["operations"] == truth.count[src, dst]
        assert row["size_bytes"] == truth.size_bytes[src, dst]


def test_latencies_are_the_truth(ring):
    sent = ring.truth.sent
    latency = sent.received_ns - sent.sent_ns
    for row in ring.both("latency"):
        src, dst = (int(row[end].removeprefix("rank ")) for end in ("src", "dst"))
        mine = np.sort(latency[(sent.src == src) & (sent.dst == dst)])
        assert (row["messages"], row["min_ns"], row["max_ns"]) == (mine.size, mine[0], mine[-1])
        assert row["p50_ns"] == np.percentile(mine, 50, method="inverted_cdf")
        assert row["p99_ns"] == np.percentile(mine, 99, method="inverted_cdf")
        assert row["mean_ns"] == pytest.approx(mine.mean())
    assert ring.both("latency")[0]["src"] == "rank 2"


def test_latencies_are_those_of_the_table(tmp_path):
    """Also where clocks are wrong, so that a part of the messages has none."""
    run, wrong = tmp_path / "run", {"mode": "full", "clock_offset_ns": 100_000}
    synthetic_run(run, ranks=4, hosts=2, events=2000, **wrong)
    as_they_are = "stage.clock.method=calibration"
    stages = ["clock", "topology", "match", "latency"]
    api.run(run, export="parquet", stage=stages, overrides=[as_they_are])
    names = "messages, min_ns, p50_ns, p99_ns, max_ns, mean_ns, backwards"
    own = "layer, label(src_proc) as src, label(dst_proc) as dst"
    with parquet.opened(run) as tables:
        one = Asked(run, tables, None, None)
        found = one.sql(f"select {own}, {names} from message_latency order by 1, 2, 3")
        asked_for = one.rows("latency", False)
    assert found == sorted(asked_for, key=lambda row: (row["layer"], row["src"], row["dst"]))
    assert sum(row["backwards"] for row in found) > 0 < sum(row["messages"] for row in found)


def test_barriers_and_arrivals_are_the_truth(alltoall):
    truth = alltoall.truth
    rows = alltoall.both("barriers")
    assert [row["spread_ns"] for row in rows] == truth.spread_ns.tolist()
    assert [row["first_ns"] for row in rows] == truth.arrival_ns.min(axis=1).tolist()
    assert {(row["members"], row["missing"], row["last"]) for row in rows} == {(4, 0, "rank 3")}
    arrivals = alltoall.both("arrivals", name="BARR")
    assert [row["label"] for row in arrivals] == [f"rank {r}" for r in truth.order.ravel()]
    assert alltoall.both("barriers", name="nowhere") == []


def test_a_barrier_that_one_never_came_to_tells_so(alltoall):
    of_three = alltoall.rows("barriers", False)[0]["members"] - 1
    sql = shipped.named("barriers").filled({}, perfetto=False)
    cut = "create or replace temp view marks as select * from memory.main.marks where proc <> 2"
    alltoall.sql(f"{cut} or t_ns < {alltoall.truth.arrival_ns[-1].min()}")
    try:
        *_, last = alltoall.sql(sql)
        assert (last["members"], last["missing"]) == (of_three, 1)
    finally:
        alltoall.sql("drop view temp.marks")


def test_the_imbalance_of_moe_is_that_of_its_traffic(tmp_path):
    truth = generate("moe", tmp_path / "run", **OPTIONS["moe"])
    for one in asked(tmp_path / "run", truth):
        moved = {(row["src"], row["dst"]): row["size_bytes"] for row in one.both("matrix")}
        names = {name for pair in moved for name in pair}
        sent = {a: sum(moved.get((a, b), 0) for b in names if a != b) for a in names}
        pairs = [size for (src, dst), size in moved.items() if src != dst and size]
        (row,) = [row for row in one.both("imbalance") if row["level"] == "rank"]
        assert row["egress_ratio"] == max(sent.values()) / min(sent.values())
        assert sent[row["egress_max"]] == row["egress_max_bytes"] == max(sent.values())
        assert row["pair_ratio"] == pytest.approx(max(pairs) / (sum(pairs) / len(pairs)))


def test_a_layer_alone(scenario):
    layers = {row["layer"] for row in scenario.both("matrix")}
    assert len(layers) == 1
    assert scenario.both("matrix", layer=layers.pop()) == scenario.both("matrix")
    for name in ("matrix", "imbalance", "latency"):
        assert scenario.both(name, layer="uct") == []


def test_codes_are_words_and_labels_are_there(ring):
    rows = ring.sql("select op, layer, fate, count(*) n from ops group by all order by op")
    count = ring.truth.operations // 2
    assert rows == [
        {"op": op, "layer": "ofi", "fate": "matchable", "n": count} for op in ("recv", "send")
    ]
    assert ring.sql("select label(1) a, label(-1) b") == [{"a": "rank 1", "b": ""}]
    assert ring.sql("select distinct kind, dir from channels order by dir") == [
        {"kind": "msg", "dir": way} for way in ("in", "out")
    ]


def test_every_file_is_a_table(ring, capsys):
    folder = ring.run / "sigmatrace-out" / "parquet"
    assert main([str(ring.run), "--tables", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["table"] for row in rows} == {path.stem for path in folder.iterdir()}
    assert {"table": "ops", "column": "t_ns", "type": "bigint"} in rows
    assert main(["--perfetto", str(ring.run), "--tables", "--format", "json"]) == 0
    tables = {row["table"] for row in json.loads(capsys.readouterr().out)}
    assert "sigmatrace_messages" in tables


@pytest.mark.parametrize("place", [".", "sigmatrace-out", "sigmatrace-out/parquet"])
def test_a_run_or_its_output(ring, capsys, place):
    assert main([str(ring.run / place), "select 1 as n", "--format=csv"]) == 0
    assert capsys.readouterr().out == "n\n1\n"


def test_the_command_on_both(ring, capsys):
    said = []
    for words in ([], ["--perfetto"]):
        arguments = [*words, str(ring.run), "--name", "matrix", "level=node", "--format", "csv"]
        assert main(arguments) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert {row["src"] for row in csv.DictReader(io.StringIO(said[0]))} == {"node0", "node1"}


@pytest.mark.parametrize("perfetto", [False, True])
@pytest.mark.parametrize(
    "sql", ["selec 1", "select nothing from nowhere", "select * from\n ops o,,"]
)
def test_what_is_no_query_is_one_line(ring, capsys, perfetto, sql):
    assert main([*["--perfetto"] * perfetto, str(ring.run), sql]) == 11
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1


def test_an_engine_goes_on_after_a_mistake(ring):
    for perfetto in (False, True):
        with pytest.raises(Exception, match="nowhere"):
            ring.sql("select * from nowhere", perfetto)
        assert ring.sql("select 7 as n", perfetto) == [{"n": 7}]


def started(*words: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "sigmatrace.query", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, **pipes)


ENDLESS = {
    False: "select * from range(1000000000000)",
    True: "select a.id from slice a, slice b, slice c, slice d, slice e, slice f",
}


@pytest.mark.parametrize("perfetto", [False, True])
def test_rows_come_as_they_are_found_and_a_closed_pipe_is_quiet(ring, perfetto):
    with started(*["--perfetto"] * perfetto, ring.run, ENDLESS[perfetto]) as process:
        lines = [process.stdout.readline().strip() for _ in range(2)]
        process.stdout.close()
        assert process.wait(timeout=60) == 1
        assert process.stderr.read() == "" and lines[1] == "0"


@pytest.mark.parametrize("perfetto", [False, True])
def test_ctrl_c_ends_it(ring, perfetto):
    with started(*["--perfetto"] * perfetto, ring.run, ENDLESS[perfetto]) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.close()
        # A closed pipe may be seen first.
        assert process.wait(timeout=60) in (130, -signal.SIGINT, 1)
        assert "Traceback" not in process.stderr.read()


def test_text_that_is_no_trace(tmp_path, capsys):
    (tmp_path / "text").write_text("this is no trace")
    assert main(["--perfetto", str(tmp_path / "text"), "select 1"]) == 4
    assert "no trace that Perfetto knows" in capsys.readouterr().err


@pytest.mark.parametrize("name", OPTIONS)
def test_the_evidence_of_findings_can_be_asked_for(tmp_path, name):
    run = tmp_path / "run"
    generate(name, run, **OPTIONS[name])
    api.run(run, export=["parquet"], stage=["clock", "findings"])
    with parquet.opened(run) as tables:
        engine = Asked(run, tables, None, None)
        evidence = [row["evidence"] for row in engine.sql("select evidence from findings")]
        assert evidence
        for one in evidence:
            assert engine.sql(f"select count(*) as n from {one}")[0]["n"] > 0, one


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_trace_that_lacks_its_end_gives_no_answer(ring, tmp_path, capsys, share):
    data = trace.find(ring.run).read_bytes()
    (tmp_path / "cut.pftrace").write_bytes(data[: int(len(data) * share) + 1])
    assert main(["--perfetto", str(tmp_path / "cut.pftrace"), "select count(*) from slice"]) == 4
    said = capsys.readouterr()
    assert said.out == "" and "its end is missing" in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("text", ["", '{ "ledger": 1}', "<html><p>a report</p></html>"])
def test_what_perfetto_reads_nothing_of_is_no_trace(tmp_path, capsys, text):
    (tmp_path / "text").write_text(text)
    assert main(["--perfetto", str(tmp_path / "text"), "select count(*) from slice"]) == 4
    assert "no trace that Perfetto knows: nothing is in it" in capsys.readouterr().err


def test_one_of_several_traces_of_a_run_must_be_named(tmp_path, capsys):
    out = tmp_path / "sigmatrace-out"
    out.mkdir()
    (out / "trace-ranks-0-1.pftrace").touch()
    assert main(["--perfetto", str(tmp_path), "select 1"]) == 3
    assert f"name one, as {out}/trace-ranks-0-1.pftrace" in capsys.readouterr().err
