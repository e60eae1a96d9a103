"""What a choice leaves in the trace, judged by the real trace_processor and the records."""

from __future__ import annotations

import duckdb
import pytest

from sigmatrace import api
from sigmatrace.export.perfetto_budget import MB
from sigmatrace.layout import TRACE
from sigmatrace.testing.synthetic import generate
from sigmatrace.testing.synthetic_gpu import GpuRun, generate_gpu
from sigmatrace.text import count_text

FLOWS = "select count(*) from flow"
SLICES = "select count(*) from slice"
BY_PROCESS = """
select p.name as process, count(*) as n from slice s
join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid)
where s.name not like 'step%' group by 1
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run, the folder of its records, and the facts of both."""
    folder = tmp_path_factory.mktemp("choice")
    generate(folder / "run", ranks=6, events=6000, chunk_records=64, mode="full", unmatched=0.1)
    whole = api.run(folder / "run", export=["parquet", "perfetto"], out=folder / "out")
    return folder / "run", whole


@pytest.fixture
def chosen(run, tmp_path, trace_processor):
    """Exports with options and checks what the ledger says against the trace."""

    def chosen(*words, of=None):
        made = api.run(of or run[0], out=tmp_path / "out", overwrite=True, overrides=list(words))
        book, counts = made.ledger, made.ledger["exports"]["perfetto"]
        assert [one for one in book["balance"] if not one["ok"]] == []
        tp = trace_processor(made.out / TRACE)
        assert tp.problems() == []
        assert tp.value(SLICES) == counts["slices"] + counts["instants"]
        assert tp.value("select count(*) from counter") == counts["counters"]
        assert tp.value(FLOWS) == counts["flows"]
        return tp, counts, made

    return chosen


def records(whole, query):
    for table in ("ops", "completions"):
        query = query.replace(f"{{{table}}}", f"'{whole.out}/parquet/{table}/*.parquet'")
    return duckdb.sql(query).fetchall()


def test_ranks(run, chosen):
    tp, counts, made = chosen("export.perfetto.ranks=0-1,4,9")
    where = "where proc in (0, 1, 4)"
    ((ops,),) = records(run[1], f"select count(*) from {{ops}} {where}")
    ((done,),) = records(run[1], f"select count(*) from {{completions}} {where}")
    assert (counts["op_records"], counts["completion_records"]) == (ops, done)
    found = {row["process"].split(" (")[0]: row["n"] for row in tp.query(BY_PROCESS)}
    assert set(found) == {"rank 0", "rank 1", "rank 4"}
    ((flows,),) = records(
        run[1],
        "select count(*) from (select flow from {ops} where flow != 0 and proc in (0, 1, 4)"
        " group by flow having count(*) = 2)",
    )
    assert counts["flows"] + counts["flows_backwards"] == flows > 0
    text = made.text()
    assert "no rank 9 in this run" in text and "records are left out, as chosen" in text
    whole = run[1].ledger["exports"]["perfetto"]
    assert counts["traffic_counters"] == whole["traffic_counters"] > 0


def test_operations_in_a_window(run, chosen):
    tp, counts, _ = chosen("export.perfetto.ops=send", "export.perfetto.window=1ms..2ms")
    base = int(run[1].run.facts["base_ns"])
    low, high = base + 10**6, base + 2 * 10**6
    ((ops, flows),) = records(
        run[1],
        f"select count(*), 0 from {{ops}} where op = 1 and t_ns < {high}"
        f" and (t_ns >= {low} or t_ns + call_ns > {low})",
    )
    assert counts["op_records"] == ops > 0
    assert counts["flows"] == flows
    assert counts["flow_ends_left_out"] > 0
    names = {row["name"] for row in tp.query("select distinct name from slice")}
    assert not any("recv" in name for name in names)
    edges = tp.query("select min(ts + dur) as first, max(ts) as last from slice")
    assert edges[0]["first"] >= 10**6 and edges[0]["last"] < 2 * 10**6


def test_what_matches_nothing_is_said(run, chosen):
    tp, counts, made = chosen("export.perfetto.window=500s..", "export.perfetto.qps=0x11")
    assert counts["slices"] + counts["instants"] == 0 == tp.value(SLICES)
    assert "nothing matches the choice: there are counters alone" in made.text()
    assert "no QP 0x11 (17) in this run" in made.text()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_time_is_cut_to_the_budget(tmp_path, chosen, share):
    folder = tmp_path / "large"
    generate(folder, ranks=4, events=200_000, chunk_records=512)
    tp, counts, made = chosen("partition_mb=2", of=folder)
    size = (made.out / TRACE).stat().st_size
    assert counts["op_left_out"] == 0 and "budget" not in made.text()
    budget = round(size * share / MB)
    tp, counts, made = chosen(f"export.perfetto.budget_mb={budget}", "partition_mb=2", of=folder)
    small = (made.out / TRACE).stat().st_size
    assert budget * MB * 0.4 < small < budget * MB * 1.05
    assert counts["op_left_out"] == counts["not_chosen"] == counts["beyond_budget"] > 0
    left_out = count_text(counts["op_left_out"])
    assert f"{left_out} records are left out, for the budget" in made.text()
    line = next(line for line in made.text().splitlines() if "the budget is" in line)
    rest = line.split("(")[1].split(" ")[0]
    more = line.split("export.perfetto.budget_mb=")[1].split(" ")[0]
    assert "as chosen" not in made.text()
    begin = tp.value("select max(ts) from slice")
    _, after, _ = chosen(rest, "export.perfetto.budget_mb=9999", of=folder)
    assert after["op_records"] == counts["op_left_out"]
    _, every, _ = chosen(f"export.perfetto.budget_mb={more}", of=folder)
    assert every["op_left_out"] == 0
    assert begin < float(rest.split("=")[1].split("s")[0]) * 1e9


def test_queue_pairs_and_ranks_of_gpus(tmp_path, chosen):
    how = GpuRun(ranks=3, doorbells=60, completed=0.7)
    generate_gpu(tmp_path / "gpus", how)
    tp, whole, _ = chosen(of=tmp_path / "gpus")
    names = "select distinct name from track where name like 'QP 0x%' order by name"
    numbers = sorted({row["name"].split()[1] for row in tp.query(names)})
    options = {"of": tmp_path / "gpus"}
    shown = []
    for number in numbers:
        tp, counts, _ = chosen(f"export.perfetto.qps={number}", **options)
        shown.append(counts)
        tracks = "select distinct extract_arg(arg_set_id, 'debug.qp') as qp from slice s"
        tracks += " join thread_track k on k.id = s.track_id"
        assert {row["qp"] for row in tp.query(tracks)} <= {int(number, 16), None}
    for name in ("op_records", "request_records", "one_sided_arrivals", "doorbell_records"):
        assert sum(one[name] for one in shown) == whole[name] > 0, name
    assert {one["kernel_records"] for one in shown} == {whole["kernel_records"]}
    by_rank = [chosen(f"export.perfetto.ranks={rank}", **options)[1] for rank in range(3)]
    for name in ("op_records", "cqe_records", "one_sided_arrivals", "kernel_records", "slices"):
        assert sum(one[name] for one in by_rank) == whole[name] > 0, name
    flows = sum(one["flows"] for one in by_rank)
    assert flows < whole["flows"]
    puts, rest = (
        chosen(f"export.perfetto.ops={ops}", **options)[1]
        for ops in ("write", "send,read,atomic,atomic_fetch,flush,nop,bind,invalidate,recv")
    )
    for name in ("op_records", "request_records"):
        assert puts[name] + rest[name] == whole[name]
    assert puts["op_records"] > 0


@pytest.mark.parametrize("split", ["ranks:2", "time:0.5ms"])
def test_several_files_are_whole_each(run, tmp_path, trace_processor, split):
    words = [f"export.perfetto.split={split}", "partition_mb=1"]
    made = api.run(run[0], out=tmp_path / "out", overrides=words)
    assert [one for one in made.ledger["balance"] if not one["ok"]] == []
    counts, whole = made.ledger["exports"]["perfetto"], run[1].ledger["exports"]["perfetto"]
    files = [path.name for path in made.files["perfetto"]]
    assert files[0] == "trace-overview.pftrace" and len(files) > 3
    seen = 0
    for name in files:
        own = {
            key.removeprefix(f"{name}."): value
            for key, value in counts.items()
            if key.startswith(f"{name}.")
        }
        tp = trace_processor(made.out / name)
        assert tp.problems() == []
        assert tp.value(SLICES) == own["slices"] + own["instants"]
        assert tp.value("select count(*) from counter") == own["counters"] > 0
        assert tp.value(FLOWS) == own["flows"]
        processes = tp.value("select count(*) from process where name like 'rank%'")
        assert processes == (2 if name.startswith("trace-ranks") else 6)
        if name == files[0]:
            assert tp.value(SLICES) == 0
            assert own["counters"] == whole["counters"]
        seen += own["op_records"]
    # Calls that reach over a border of times are in both files.
    assert seen == whole["op_records"] if split == "ranks:2" else seen >= whole["op_records"]
    assert "trace-overview.pftrace in Perfetto's viewer" in made.text()


def test_several_files_of_gpus(tmp_path, trace_processor):
    generate_gpu(tmp_path / "run", GpuRun(ranks=4, doorbells=60, completed=0.7))
    whole = api.run(tmp_path / "run", out=tmp_path / "whole").ledger["exports"]["perfetto"]
    words = ["export.perfetto.split=ranks:2"]
    made = api.run(tmp_path / "run", out=tmp_path / "out", overrides=words)
    assert [one for one in made.ledger["balance"] if not one["ok"]] == []
    counts, files = made.ledger["exports"]["perfetto"], made.files["perfetto"]
    for key in ("op_records", "cqe_records", "one_sided_arrivals", "kernel_records"):
        assert sum(counts[f"{path.name}.{key}"] for path in files) == whole[key] > 0
    for path in files:
        tp = trace_processor(path)
        assert tp.problems() == []
        assert tp.value("select count(*) from counter") == counts[f"{path.name}.counters"]


def test_what_the_budget_leaves_out_of_several_files_is_said_of_each(tmp_path):
    generate(tmp_path / "run", ranks=4, events=200_000, chunk_records=512)
    words = ["export.perfetto.split=ranks:2", "export.perfetto.budget_mb=3"]
    words.append("export.perfetto.window=1ms..")
    made = api.run(tmp_path / "run", out=tmp_path / "out", overrides=words)
    counts = made.ledger["exports"]["perfetto"]
    for path in made.files["perfetto"][1:]:
        beyond = counts[f"{path.name}.beyond_budget"]
        assert 0 < beyond < counts[f"{path.name}.not_chosen"]
        note = f"{path.name}: {count_text(beyond)} records are left out, for the budget"
        assert note in made.text()


def test_a_budget_below_the_counters(run, chosen, tmp_path):
    generate(tmp_path / "many", ranks=64, events=100_000)
    words = ["export.perfetto.window=1ms..2ms", "export.perfetto.budget_mb=1"]
    tp, counts, made = chosen(*words, of=tmp_path / "many")
    assert tp.value(SLICES) == 0 and counts["op_left_out"] == 100_000
    assert 0 < counts["beyond_budget"] < 100_000
    assert "no slices fit" in made.text() and "nothing matches" not in made.text()
