"""Stage completion against sums in plain Python."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.stages.completion import Completion
from sigmatrace.trace_format import NO_POSITION, Queue
from tests.factories import make_partition, make_run

REQUEST = st.fixed_dictionaries(
    {
        "proc": st.integers(0, 2),
        "object": st.integers(1, 3),
        "queue": st.sampled_from(list(Queue)),
    }
)
CQE = st.fixed_dictionaries(
    {
        "proc": st.integers(0, 2),
        "object": st.integers(1, 3),
        "queue": st.sampled_from(list(Queue)),
        "opcode": st.sampled_from([0, 1, 128]),
        "status": st.sampled_from([0, 0, 5, 10]),
        "size_bytes": st.integers(0, 2**32 - 1),
        "first": st.sampled_from([0, 7, 2**32 - 9]),
        "retired": st.integers(0, 5),
        "posted_tsc": st.sampled_from([0, 1]),
        "posted_ns": st.integers(10**18, 10**18 + 50),
        "t_ns": st.integers(10**18, 10**18 + 50),
    }
)


REQUEST_COLUMNS = {"proc": "i4", "object": "u4", "queue": "u1"}
CQE_COLUMNS = {
    **{"proc": "i4", "object": "u4", "queue": "u1", "opcode": "u1", "status": "u1"},
    **{"size_bytes": "u4", "first": "u4", "position": "u4", "posted_tsc": "u8"},
    **{"posted_ns": "i8", "t_ns": "i8"},
}


def columns(rows, dtypes):
    return {name: np.array([row[name] for row in rows], kind) for name, kind in dtypes.items()}


def position(row):
    return (row["first"] + row["retired"] - 1) % 2**32 if row["retired"] else NO_POSITION


def merged_of(parts):
    stage = Completion()
    parts = [
        make_partition(
            number,
            requests=columns(requests, REQUEST_COLUMNS),
            cqes=columns([{**row, "position": position(row)} for row in cqes], CQE_COLUMNS),
        )
        for number, (requests, cqes) in enumerate(parts)
    ]
    merged = functools.reduce(stage.combine, [stage.summarize(part) for part in parts])
    return stage, stage.resolve(merged, make_run(processes=[{}, {}, {}]))


def summed(parts):
    stage, resolved = merged_of(parts)
    return stage.results(resolved), stage.account(resolved)


def line_of(parts):
    stage, resolved = merged_of(parts)
    return stage.lines(resolved, make_run(processes=[{}, {}, {}]))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.lists(REQUEST), st.lists(CQE)), min_size=1, max_size=3))
def test_tables_are_the_sums_of_the_rows(parts):
    tables, _ = summed(parts)
    queues, kinds = defaultdict(Counter), defaultdict(list)
    for requests, cqes in parts:
        for row in requests:
            queues[row["proc"], row["object"], row["queue"]]["requests"] += 1
        for row in cqes:
            here = queues[row["proc"], row["object"], row["queue"]]
            here["cqes"] += 1
            here["joined"] += row["retired"] > 0
            here["retired"] += row["retired"]
            here["errors"] += row["status"] != 0
            kinds[row["proc"], row["queue"], row["opcode"], row["status"]].append(row)
    got = {(r["proc"], r["object"], r["queue"]): r for r in tables["queues"].to_pylist()}
    assert got.keys() == queues.keys()
    for key, want in queues.items():
        assert all(got[key][name] == want[name] for name in ("requests", *list(want)))
    found = {
        (r["proc"], r["queue"], r["opcode"], r["status"]): r
        for r in tables["latencies"].to_pylist()
    }
    assert found.keys() == kinds.keys()
    for key, rows in kinds.items():
        times = [r["t_ns"] - r["posted_ns"] for r in rows if r["posted_tsc"]]
        row = found[key]
        assert (row["count"], row["timed"], row["total_ns"]) == (len(rows), len(times), sum(times))
        assert row["size_bytes"] == sum(r["size_bytes"] for r in rows)
        if times:
            assert (row["min_ns"], row["max_ns"]) == (min(times), max(times))


@pytest.mark.parametrize(("retired", "holds"), [(3, True), (4, True), (5, False)])
def test_more_retired_than_posted_breaks_the_balance(retired, holds):
    one = {"proc": 0, "object": 1, "queue": Queue.SEND}
    cqe = {**one, "opcode": 0, "status": 0, "size_bytes": 0, "first": 0, "retired": retired}
    times = {"posted_tsc": 1, "posted_ns": 1, "t_ns": 2}
    posted = [one] * 4
    _, account = summed([(posted, [{**cqe, **times}])])
    (equation,) = (x for x in account["balance"] if x["name"].startswith("send requests"))
    assert (equation["left"] == sum(equation["right"])) is holds
    assert account["send_outstanding"] == max(0, 4 - retired)


def test_a_run_without_verbs_gives_empty_tables():
    tables, account = summed([([], [])])
    assert [table.num_rows for table in tables.values()] == [0, 0]
    assert account["requests"] == account["cqes"] == 0


def test_the_line_says_what_completed_of_what_was_posted():
    one = {"proc": 0, "object": 1}
    more = {"opcode": 0, "size_bytes": 0, "posted_tsc": 1, "posted_ns": 1, "t_ns": 2, "first": 0}
    posted = [
        {**one, "queue": queue}
        for queue in [Queue.SEND] * 5 + [Queue.RECV] * 3 + [Queue.SHARED] * 2
    ]
    cqes = [
        {**one, **more, "queue": queue, "retired": retired, "status": status}
        for queue, retired, status in [(Queue.SEND, 4, 5), (Queue.RECV, 1, 0), (Queue.SHARED, 0, 0)]
    ]
    assert line_of([(posted, cqes)]) == [
        "completed  4 of 5 send requests, 1 outstanding; 2 of 5 posted receives; 1 error"
    ]
    assert line_of([([], [])]) == ()
