"""Clocks corrected by messages, from trace files to outputs; the truth is the generator's."""

from __future__ import annotations

import io
import json
import pickle

import duckdb
import numpy as np
import pytest

from sigmatrace import api, passes, pipeline
from sigmatrace.stages import clock_messages
from sigmatrace.stages.clock import MessageClock
from sigmatrace.stages.skew import Correction
from sigmatrace.testing.synthetic import Truth, generate
from sigmatrace.testing.synthetic_draw import BASE_NS
from tests.outputs import assert_same, contents

STAGES = ("clock", "topology", "match", "traffic", "messages")
WRONG = {"clock_offset_ns": 20_000_000, "clock_drift_ppm": 100.0}
ROUNDING_NS = 3


def right_ns(truth: Truth, rank: int, reference: int, wall_ns: np.ndarray) -> np.ndarray:
    """What the clock of another rank's host shows when a rank's own shows this."""
    own, other = (float(truth.drift_ppm[one]) * 1e-6 for one in (rank, reference))
    past = wall_ns - BASE_NS - int(truth.offset_ns[rank])
    true = past / (1 + own)
    return BASE_NS + int(truth.offset_ns[reference]) + np.rint(true * (1 + other)).astype(np.int64)


def hosts_of(result: api.Result) -> dict[str, dict]:
    return {row["host"]: row for row in result.tables["clock_hosts"].to_pylist()}


@pytest.fixture
def pass_sizes(monkeypatch):
    """Partitions read, in order."""
    seen: list[int] = []
    real = passes.read

    def read(spec, unread):
        seen.append(spec.number)
        return real(spec, unread)

    monkeypatch.setattr(passes, "read", read)
    return seen


@pytest.mark.parametrize(("hosts", "ranks"), [(2, 4), (5, 10), (32, 64)])
def test_wrong_clocks_are_found_and_corrected(tmp_path, hosts, ranks):
    folder = tmp_path / "run"
    truth = generate(folder, ranks=ranks, events=600 * ranks, hosts=hosts, peers=12, **WRONG)
    options = {"stage": STAGES, "export": ["perfetto", "parquet"]}
    shown = io.StringIO()
    made = api.run(folder, out=tmp_path / "out", progress=shown, **options)
    assert shown.getvalue().count("clocks are corrected by messages; all is done again\n") == 1
    counts, match = made.ledger["exports"]["perfetto"], made.ledger["stages"]["match"]
    assert counts["flows_backwards"] == 0 and counts["flows"] == match["sends_matched"]
    assert match["sends"] == match["sends_matched"] == 300 * ranks
    assert made.ledger["balanced"] and made.ledger["lossless"]
    assert made.ledger["stages"]["messages"]["received_before_sent"] == 0
    told = made.ledger["stages"]["clock"]["messages"]
    assert told["received_before_sent"] > 0 == told["received_before_sent_after"]
    assert told["clocks"] == told["tied"] == hosts and told["left_aside"] == 0
    rows = hosts_of(made)
    assert len(rows) == hosts and all(row["tied"] for row in rows.values())
    assert {row["reference"] for row in rows.values()} == {told["reference"]}
    reference = truth.host.index(told["reference"])
    times = duckdb.sql(
        "select proc, min(t_ns) first, max(t_ns) last"
        f" from '{made.out}/parquet/ops/*.parquet' group by proc order by proc"
    ).fetchall()
    for rank, *found in times:
        walls = np.array([truth.first_ns[rank], truth.last_ns[rank]])
        right = right_ns(truth, rank, reference, walls)
        bound = rows[truth.host[rank]]["bound_ns"] + ROUNDING_NS
        assert (np.abs(np.array(found) - right) <= bound).all()
    facts = made.run.facts
    assert facts["base_ns"] <= min(first for _, first, _ in times)
    assert facts["last_ns"] >= max(last for _, _, last in times)
    assert f"clocks     corrected by messages: {hosts} of {hosts} hosts to" in made.text()
    errors = made.tables["clock_quality"].column("error_ns").to_numpy()
    bounds = np.array([rows[host]["bound_ns"] for host in truth.host])
    assert (errors >= bounds).all() and (errors < bounds + 1000).all()


def test_the_pairs_are_the_same_but_for_their_times(tmp_path):
    folder = tmp_path / "run"
    generate(folder, ranks=6, events=6000, hosts=3, mode="full", reorder=0.1, **WRONG)
    made = [
        api.run(folder, export="json", out=tmp_path / how, stage=STAGES, overrides=[word])
        for how, word in (
            ("a", "stage.clock.method=calibration"),
            ("b", "stage.clock.method=messages"),
        )
    ]
    names = ["flow", "src_proc", "dst_proc", "size_bytes", "received_bytes", "uncertain"]
    before, after = (
        one.tables["message_pairs"].sort_by("flow").select(names).to_pylist() for one in made
    )
    assert before == after
    early = [one.ledger["stages"]["messages"]["received_before_sent"] for one in made]
    assert early[0] > 500 and early[1] == 0
    assert (
        made[0].tables["clock_hosts"].num_rows == 0
        and "messages" not in (made[0].ledger["stages"]["clock"])
    )


@pytest.mark.parametrize("hosts", [1, 3])
def test_good_clocks_cost_no_pass_and_change_nothing(tmp_path, pass_sizes, hosts):
    folder = tmp_path / "run"
    generate(folder, ranks=6, events=6000, hosts=hosts, mode="full")
    options = {"stage": STAGES, "export": ["perfetto", "parquet", "json", "csv"]}
    made = []
    for method in ("calibration", "auto"):
        pass_sizes.clear()
        words = [f"stage.clock.method={method}"]
        made.append(api.run(folder, out=tmp_path / method, overrides=words, **options))
        assert pass_sizes == [0]
    files = [contents(one.out) for one in made]
    ledgers = [json.loads(one.pop("ledger.json")) for one in files]
    looked = ledgers[1]["stages"]["clock"].pop("messages")["looked_at"]
    assert files[0] == files[1] and ledgers[0] == ledgers[1]
    assert list(made[0].lines) == list(made[1].lines)
    assert looked == (0 if hosts == 1 else between_hosts(made[1]))


def between_hosts(result: api.Result) -> int:
    hosts = result.tables["processes"].column("host").to_pylist()
    pairs = result.tables["message_pairs"]
    ends = zip(pairs["src_proc"].to_pylist(), pairs["dst_proc"].to_pylist(), strict=True)
    return sum(hosts[src] != hosts[dst] for src, dst in ends)


def test_several_partitions_on_processes_give_the_same(tmp_path):
    folder = tmp_path / "run"
    generate(folder, ranks=4, events=100_000, hosts=2, **WRONG)
    made = [
        api.run(
            folder,
            export=["parquet", "perfetto"],
            out=tmp_path / cluster,
            cluster=cluster,
            overrides=["partition_mb=1", "cluster.workers=2"],
        )
        for cluster in ("threads", "processes")
    ]
    assert_same(*(one.out for one in made))
    assert made[0].ledger["exports"]["perfetto"]["flows_backwards"] == 0


def test_a_window_is_one_of_corrected_times(tmp_path):
    folder = tmp_path / "run"
    generate(folder, ranks=4, events=8000, hosts=2, chunk_records=64, **WRONG)
    messages = "stage.clock.method=messages"
    whole = api.run(folder, export="parquet", out=tmp_path / "a", overrides=[messages])
    begin, end = (int(whole.run.facts["base_ns"]) + ms * 1_000_000 for ms in (2, 3))
    query = (
        "select proc, ordinal, channel, op, t_ns from '{}/parquet/ops/*.parquet' {} order by all"
    )
    expected = duckdb.sql(
        query.format(whole.out, f"where t_ns >= {begin} and t_ns < {end}")
    ).fetchall()
    for window in (f"{begin}..{end}", "2ms..3ms"):
        out = tmp_path / window.replace(".", "_")
        words = [messages, f"window={window}"]
        part = api.run(folder, export="parquet", out=out, overrides=words)
        assert duckdb.sql(query.format(out, "")).fetchall() == expected and len(expected) > 500
        assert part.run.window_ns == (begin, end) and part.ledger["balanced"]


def test_auto_sees_the_messages_of_a_window_or_of_the_whole_run(tmp_path, pass_sizes):
    """Clocks differ by more than the window is long: no message has both ends in it."""
    folder = tmp_path / "run"
    truth = generate(folder, ranks=2, events=4000, hosts=2, seed=3, **WRONG)
    assert abs(int(np.diff(truth.offset_ns)[0])) > 10_000_000
    whole = api.run(folder, export="parquet", out=tmp_path / "a")
    window = (int(whole.run.facts["base_ns"]) + ms * 1_000_000 for ms in (1, 2))
    shown = io.StringIO()
    pass_sizes.clear()
    words = ["window={}..{}".format(*window)]
    part = api.run(folder, export="parquet", out=tmp_path / "b", overrides=words, progress=shown)
    assert "clocks are compared by those of the whole run; all is done again\n" in shown.getvalue()
    assert len(pass_sizes) == 3 and part.run.facts["base_ns"] == whole.run.facts["base_ns"]
    query = "select count(*) from '{}/parquet/ops/*.parquet' where t_ns >= {} and t_ns < {}"
    expected = duckdb.sql(query.format(whole.out, *part.run.window_ns)).fetchall()
    assert duckdb.sql(query.format(part.out, *part.run.window_ns)).fetchall() == expected
    assert expected[0][0] > 100


def test_good_clocks_stay_where_a_window_shows_no_message(tmp_path):
    folder = tmp_path / "run"
    generate(folder, ranks=2, events=2000, hosts=2)
    whole = api.run(folder, export="parquet", out=tmp_path / "a")
    first = duckdb.sql(f"select min(t_ns) from '{whole.out}/parquet/ops/*.parquet'").fetchall()[0][
        0
    ]
    words = [f"window={first}..{first + 1000}"]
    part = api.run(folder, export="parquet", out=tmp_path / "b", overrides=words)
    assert part.ledger["stages"]["clock"]["messages"]["received_before_sent"] == 0
    assert part.tables["clock_hosts"].num_rows == 0
    found = duckdb.sql(f"select min(t_ns), count(*) from '{part.out}/parquet/ops/*.parquet'")
    assert found.fetchall()[0][0] == first


def test_a_run_killed_after_its_first_turn_goes_on_with_the_second(tmp_path, pass_sizes):
    folder = tmp_path / "run"
    generate(folder, ranks=4, events=2000, hosts=2, **WRONG)
    whole = api.run(folder, export="parquet", out=tmp_path / "out")
    assert pass_sizes == [0, 0, 0]
    real, turns, staged = pipeline._correlate, [], {}

    def killed(indexed, chosen, staging, *more):
        turns.append([type(one) for one in chosen.stages if one.name == "clock"])
        if len(turns) == 2:
            staged.update(
                {one.name: one.read_bytes() for one in staging.iterdir() if one.is_file()}
            )
            raise KeyboardInterrupt
        return real(indexed, chosen, staging, *more)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pipeline, "_correlate", killed)
        patch.setattr("shutil.rmtree", lambda *_, **__: None)  # as if by SIGKILL
        api.run(folder, export="parquet", out=tmp_path / "again")
    assert isinstance(pickle.loads(staged[pipeline.AGAIN]), MessageClock)
    assert turns[1] == [MessageClock]
    pass_sizes.clear()
    left = next(tmp_path.glob(".again.*"))
    host = left.name.removeprefix(".again.").rsplit("-", 2)[0]
    left.rename(left.with_name(f".again.{host}-{2**30}-0.partial"))
    again = api.run(folder, export="parquet", out=tmp_path / "again")
    assert pass_sizes == [0, 0]  # the clock's own, and the main one
    assert_same(whole.out, again.out)


def test_a_correction_that_is_worse_is_dropped_and_said_so(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    generate(folder, ranks=4, events=2000, hosts=2)
    real = clock_messages.estimate

    def wrong(*given):
        skew = real(*given)
        worse = Correction(np.array([0, 1]), np.array([10**9, 10**9]))
        return type(skew)((skew.corrections[0], worse), *list(vars(skew).values())[1:])

    monkeypatch.setattr(clock_messages, "estimate", wrong)
    plain, made = (
        api.run(
            folder, export="parquet", out=tmp_path / how, overrides=[f"stage.clock.method={how}"]
        )
        for how in ("calibration", "messages")
    )
    line = next(line for line in made.lines if "not corrected" in line)
    assert line.startswith("clocks     not corrected: 0 of ")
    query = "select proc, channel, op, ordinal, t_ns from '{}/parquet/ops/*.parquet' order by all"
    assert (
        duckdb.sql(query.format(plain.out)).fetchall()
        == duckdb.sql(query.format(made.out)).fetchall()
    )
    assert plain.run.facts["base_ns"] == made.run.facts["base_ns"]
    for row in made.tables["clock_hosts"].to_pylist():
        assert (row["offset_ns"], row["drift_ppm"], row["tied"]) == (0, 0, False)
        assert row["violations_before"] == row["violations_after"] == 0
    assert made.ledger["stages"]["clock"]["messages"]["dropped"]


def test_an_unknown_method_is_one_line(command, small):
    said = command(f"run={small}", "stage.clock.method=ptp")
    assert said.code == 2 and said.err.count("\n") == 1
    assert "method=ptp: it is one of auto, calibration, messages" in said.err


def test_the_plan_shows_the_pass(command, small):
    said = command(f"run={small}", "--plan", "stage.clock.method=messages")
    assert "a pass of its own" in said.out and "passes over event bytes: 2" in said.out
    assert "passes over event bytes: 1" in command(f"run={small}", "--plan").out
