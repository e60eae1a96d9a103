"""From a running program to every output, on real programs of two processes.

The judges: the program's own parameters, the real trace_processor, and DuckDB.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pytest
from plain_reader import read_all

from sigmatrace import api
from sigmatrace.query.trace_processor import TraceProcessor
from sigmatrace.schema import Fate
from sigmatrace.trace_format import Layer, Op, Schema
from tests.listening import free_port

pytestmark = pytest.mark.real

CAPTURE = Path(sys.executable).with_name("sigmatrace-capture")

PAIR = Path(__file__).parents[1] / "pair.py"
MODES = ("simple", "full")
EXPORTS = ("perfetto", "parquet", "json", "csv", "matrix")
ONE_SIDED = (Op.PUT, Op.GET, Op.ATOMIC, Op.ATOMIC_FETCH)


@dataclass(frozen=True)
class Program:
    """A program of two processes; {port} and {host} are filled in.

    Attributes:
        messages: Messages in all that the parameters ask for, at the layer's own level.
        one_sided: (operation, count) that the parameters ask for.
    """

    name: str
    layer: str
    server: str
    client: str
    environment: dict[str, str] = field(default_factory=dict)
    messages: int | None = None
    one_sided: tuple[Op, int] | None = None


def pingpong(provider: str, endpoint: str) -> Program:
    common = f"-p {provider} -e {endpoint} -I 50 -S 4096"
    return Program(
        f"fi_pingpong-{provider}",
        "ofi",
        f"fi_pingpong -B {{port}} {common}",
        f"fi_pingpong -P {{port}} {common} 127.0.0.1",
    )


def perftest(test: str, transport: str, one_sided: Op | None = None) -> Program:
    common = f"ucx_perftest -p {{port}} -t {test} -n 200 -w 20 -s 1000"
    return Program(
        f"{test}-{transport}",
        "ucp",
        common,
        f"{common} 127.0.0.1",
        environment={"UCX_TLS": f"{transport},self"},
        one_sided=(one_sided, 200) if one_sided else None,
    )


PROGRAMS = [
    pingpong("tcp", "msg"),
    pingpong("shm", "rdm"),
    *(perftest("tag_lat", transport) for transport in ("tcp", "posix")),
    *(perftest("ucp_put_bw", transport, Op.PUT) for transport in ("tcp", "posix")),
    *(perftest("ucp_get", transport, Op.GET) for transport in ("tcp", "posix")),
    *(perftest("ucp_am_lat", transport) for transport in ("tcp", "posix")),
]


@dataclass(frozen=True)
class Traced:
    program: Program
    mode: str
    result: api.Result
    sql: duckdb.DuckDBPyConnection
    trace: TraceProcessor

    def one(self, query: str) -> tuple:
        row = self.sql.execute(query).fetchone()
        assert row is not None
        return row

    @property
    def exported(self) -> dict[str, int]:
        return self.result.ledger["exports"]["perfetto"]


def capture(program: Program, mode: str, run: Path) -> subprocess.CompletedProcess[str]:
    port = free_port()
    command = [sys.executable, PAIR, str(port)]
    command += [*program.server.format(port=port).split(), "--"]
    command += program.client.format(port=port).split()
    return subprocess.run(
        [
            *(CAPTURE, "-o", run),
            *("--mode", mode, "--layers", program.layer, "--", *command),
        ],
        env={**os.environ, **program.environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def captured(program: Program, mode: str, folder: Path) -> Path:
    """Capture a program and return the folder of the run."""
    run = folder / mode
    done = capture(program, mode, run)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(
    scope="module",
    params=[(program, mode) for program in PROGRAMS for mode in MODES],
    ids=lambda case: f"{case[0].name}-{case[1]}",
)
def traced(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    trace_processor: Callable[[Path], TraceProcessor],
) -> Traced:
    program, mode = request.param
    folder = tmp_path_factory.mktemp(program.name)
    run, out = captured(program, mode, folder), folder / "out"
    result = api.run(run, export=["perfetto", "parquet", "json", "matrix"], out=out, strict=True)
    sql = duckdb.connect()
    parquet = out / "parquet"
    sql.execute(f"create view ops as select * from read_parquet('{parquet}/ops/*.parquet')")
    parts = f"{parquet}/completions/*.parquet"
    sql.execute(f"create view completions as select * from read_parquet('{parts}')")
    for table in ("processes", "routes", "messages", "traffic"):
        where = f"{parquet}/{table}.parquet"
        sql.execute(f"create view {table} as select * from read_parquet('{where}')")
    return Traced(program, mode, result, sql, trace_processor(out / "trace.pftrace"))


def test_sends_receives_and_matches_are_equal(traced):
    sends, receives = traced.one(
        f"""select count(*) filter (op = {Op.SEND}), count(*) filter (op = {Op.RECV})
        from ops where fate = {Fate.MATCHABLE}"""
    )
    sent, received, matched, uncertain = traced.one(
        """select coalesce(sum(sent), 0), coalesce(sum(received), 0),
        coalesce(sum(matched), 0), coalesce(sum(uncertain), 0) from messages"""
    )
    assert sends == receives == sent == received == matched
    assert (matched > 0) == (traced.program.one_sided is None)
    assert uncertain == 0
    (unmatchable,) = traced.one(
        f"""select count(*) from ops where op in ({Op.SEND}, {Op.RECV})
        and fate <> {Fate.MATCHABLE}"""
    )
    assert unmatchable == 0


def test_one_sided_operations_are_at_least_those_of_the_parameters(traced):
    rows = traced.sql.execute(
        f"""select op, count(*), sum(size_bytes), min(dst_proc), count(distinct dst_proc)
        from ops where op in {tuple(int(op) for op in ONE_SIDED)} and depth = 0 group by op"""
    ).fetchall()
    if traced.program.one_sided is None:
        assert not rows
        return
    op, count = traced.program.one_sided
    ((found, operations, size, target, targets),) = rows
    # Iterations are 200; how many of the 20 warm-up rounds it posts is ucx_perftest's affair.
    assert (found, size) == (op, operations * 1000)
    assert operations >= count
    assert targets == 1
    assert target >= 0, "the peer of a one-sided operation must be resolved"


def test_no_receive_before_its_send(traced):
    early, pairs = traced.one(
        f"""select count(*) filter (r.t_ns < s.t_ns), count(*)
        from ops s join ops r on r.flow = s.flow
        where s.flow <> 0 and s.op = {Op.SEND} and r.op = {Op.RECV}"""
    )
    assert (pairs > 0) == (traced.program.one_sided is None)
    assert early == 0


def test_every_record_is_accounted_for(traced):
    ledger = traced.result.ledger
    assert ledger["balance"]
    assert all(line["ok"] for line in ledger["balance"])
    (rows,) = traced.one("select count(*) from ops")
    assert rows == ledger["records"]["op"]["read"] == ledger["records"]["op"]["written"]


def test_perfetto_holds_what_the_ledger_says(traced):
    trace, counts = traced.trace, traced.exported
    assert trace.problems() == []
    assert trace.value("select count(*) from slice") == counts["slices"] + counts["instants"]
    assert trace.value("select count(*) from counter") == counts["counters"]
    (matched,) = traced.one("select coalesce(sum(matched), 0) from messages")
    assert trace.value("select count(*) from flow") == counts["flows"] == matched
    assert counts["flows_backwards"] == 0
    backwards = """select count(*) from flow f join slice a on a.id = f.slice_out
        join slice b on b.id = f.slice_in where b.ts < a.ts"""
    assert trace.value(backwards) == 0
    (size,) = traced.one(
        """select (select sum(size_bytes) from ops)
        + coalesce((select sum(size_bytes) from completions), 0)"""
    )
    shown = """select sum(a.int_value) from slice s
        join args a on a.arg_set_id = s.arg_set_id where a.key = 'debug.size_bytes'"""
    assert (trace.value(shown) or 0) == size


def test_durations_are_those_of_the_mode(traced):
    longest = traced.trace.value("select max(dur) from slice")
    assert (longest > 0) == (traced.mode == "full")


def test_json_and_parquet_and_matrix_agree(traced):
    out = traced.result.out
    aggregates = json.loads((out / "summary.json").read_text())
    (count, size) = traced.one("select sum(count), sum(size_bytes) from traffic")
    rows = aggregates["traffic"]["by_rank"]
    assert sum(row["count"] for row in rows) == count
    assert sum(row["size_bytes"] for row in rows) == size
    pictures = sorted(path.name for path in (out / "matrix").iterdir())
    assert "rank-bytes.png" in pictures
    assert "rank-bytes.svg" in pictures


@pytest.mark.parametrize("mode", [*MODES, "aggregate"])
def test_each_layer_shows_all_that_it_moved_whatever_layer_called_it(mode: str, tmp_path: Path):
    """Nearly all that UCT does, UCP asked it for; that is no reason to hide it."""
    run = captured(replace(perftest("tag_lat", "tcp"), layer="ucp,uct"), mode, tmp_path)
    result = api.run(run, export=["json", "matrix"], out=tmp_path / "out", strict=True)
    moved: Counter[tuple[int, int]] = Counter()  # bytes by layer and operation
    below = 0
    for rank in read_all(run):
        layers = {channel["id"]: channel["layer"] for channel in rank.records(Schema.CHANNEL)}
        for record in (*rank.records(Schema.OP), *rank.records(Schema.AGGREGATE)):
            layer = layers[record["channel"]]
            moved[layer, record["op"]] += record["size_bytes"]
            below += record["size_bytes"] if layer == Layer.UCT and record["depth"] else 0
    shown: Counter[tuple[int, int]] = Counter()
    for row in result.tables["traffic"].filter(pc.field("nested") == 0).to_pylist():
        shown[row["layer"], row["op"]] += row["size_bytes"]
    assert +shown == +moved
    assert below > 200 * 1000, "the case that the test is about"

    count = 0
    for layer in (Layer.UCP, Layer.UCT):
        sent = {op: size for (at, op), size in moved.items() if at == layer and op != Op.RECV}
        pair = [line for line in talkers(result, layer) if "->" in line]
        assert len(pair) == 2 and sum(sent.values()) > 0
        told = (line.split(" in ")[1].split(" operation")[0] for line in pair)
        count += sum(int(number.replace(" ", "")) for number in told)
    assert count == result.ledger["exports"]["matrix"]["operations_shown"]


def talkers(result: api.Result, layer: Layer) -> list[str]:
    """The lines of the summary that name a layer's pairs of processes."""
    lines = result.text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith(f"top {layer.name.lower()}"))
    return [lines[at], *itertools.takewhile(lambda line: line[0] == " ", lines[at + 1 :])]


AGGREGATED = [
    (pingpong("tcp", "msg"), Op.SEND, 50, 4096),
    (pingpong("shm", "rdm"), Op.SEND, 50, 4096),
    (perftest("tag_lat", "tcp"), Op.SEND, 200, 1000),
    (perftest("ucp_put_bw", "posix", Op.PUT), Op.PUT, 200, 1000),
]
CONTROL_BYTES = 100
"""More than fi_pingpong's own message at the end has."""


def same(row: dict, other: dict) -> bool:
    return all(row[key] == other[key] for key in ("src_proc", "dst_proc", "layer", "op", "nested"))


def amounts(rows: list[dict]) -> Counter[tuple]:
    """Return counts and bytes by source, destination, layer, operation and nesting."""
    sums: Counter[tuple] = Counter()
    for row in rows:
        key = tuple(int(row[k]) for k in ("src_proc", "dst_proc", "nested"))
        for what in ("count", "size_bytes"):
            sums[*key, row["layer"], row["op"], what] += int(row[what])
    return sums


def histogram(rows: list[dict]) -> Counter[tuple]:
    """Return counts and bytes as ``amounts`` does, by size besides."""
    sums: Counter[tuple] = Counter()
    for row in rows:
        key = tuple(int(row[k]) for k in ("src_proc", "dst_proc", "nested"))
        limits = int(row["least_bytes"]), int(row["most_bytes"])
        for what in ("count", "size_bytes"):
            sums[*key, row["layer"], row["op"], *limits, what] += int(row[what])
    return sums


def read_csv(result: api.Result, table: str) -> list[dict]:
    with (result.out / f"csv/{table}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("case", AGGREGATED, ids=lambda case: case[0].name)
def test_aggregates_are_what_single_operations_add_up_to(
    case: tuple[Program, Op, int, int],
    tmp_path: Path,
    trace_processor: Callable[[Path], TraceProcessor],
) -> None:
    program, op, count, size = case
    results = {}
    for mode in ("simple", "aggregate"):
        run = captured(program, mode, tmp_path)
        results[mode] = api.run(run, export=EXPORTS, out=tmp_path / f"out-{mode}", strict=True)
    simple, aggregate = results["simple"], results["aggregate"]
    seen = amounts(json.loads((simple.out / "summary.json").read_text())["traffic"]["by_rank"])
    told = amounts(json.loads((aggregate.out / "summary.json").read_text())["traffic"]["by_rank"])
    assert told.keys() == seen.keys()
    if program.layer == "ofi":  # how many rounds ucx_perftest warms up depends on the time it takes
        assert told == seen
    assert amounts(read_csv(aggregate, "traffic")) == told

    seen, counted = (histogram(read_csv(results[mode], "sizes")) for mode in results)
    assert counted.keys() == seen.keys()
    if program.layer == "ofi":
        assert counted == seen
    by_size = [row for row in aggregate.tables["sizes"].to_pylist() if row["op"] == op]
    assert len({(row["proc"], row["object"]) for row in by_size}) == (1 if program.one_sided else 2)
    for row in by_size:
        assert {row["src_proc"], row["dst_proc"]} == {0, 1}
        limits = [row[key] * row["count"] for key in ("least_bytes", "most_bytes")]
        assert limits[0] <= row["size_bytes"] <= limits[1]
        if row["least_bytes"] <= size <= row["most_bytes"]:
            assert row["count"] >= count and row["size_bytes"] == row["count"] * size

    rows = [row for row in aggregate.tables["traffic"].to_pylist() if row["op"] == op]
    assert len(rows) == (1 if program.one_sided else 2), "one row a direction"
    for row in rows:
        assert {row["src_proc"], row["dst_proc"]} == {0, 1}
        assert row["count"] >= count
        if op == Op.SEND:
            other = {**row, "op": Op.RECV}
            (received,) = (x for x in aggregate.tables["traffic"].to_pylist() if same(x, other))
            assert received["count"] == row["count"]
        if program.layer == "ofi":
            assert 0 < row["size_bytes"] - count * size < CONTROL_BYTES
        else:
            assert row["size_bytes"] == row["count"] * size

    book = aggregate.ledger
    assert book["lossless"] and all(line["ok"] for line in book["balance"])
    records, shown = book["records"], book["exports"]
    assert records["op"]["found"] == 0
    written, operations, size_bytes = duckdb.sql(
        f"""select count(*), sum(count)::hugeint, sum(size_bytes)::hugeint
        from '{aggregate.out}/parquet/aggregates/*.parquet'"""
    ).fetchall()[0]
    assert written == records["aggregate"]["read"] == records["aggregate"]["written"]
    assert operations == book["capture"]["aggregated_operations"]
    assert shown["matrix"]["operations_shown"] == sum(row["count"] for row in rows)
    for exporter in ("json", "csv", "matrix"):
        assert shown[exporter]["traffic_operations"] == operations
        assert shown[exporter]["traffic_bytes"] == size_bytes
    trace = trace_processor(aggregate.out / "trace.pftrace")
    assert trace.problems() == []
    assert trace.value("select count(*) from slice") == 0
    name = program.server.split()[0]  # without a rank, a process is called like its program
    assert trace.value(f"select count(*) from process where name like '{name}%'") == 2
    assert f"{written} rows of mode aggregate have no times" in aggregate.text()
    assert "matched    nothing" in aggregate.text()
