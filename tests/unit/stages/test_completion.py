"""Stage completion against sums in plain Python."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.stages.completion import Completion
from sigmatrace.trace_format import NO_POSITION, Layer, Queue
from tests.factories import make_partition, make_run

REQUEST = st.fixed_dictionaries(
    {
        "proc": st.integers(0, 2),
        "object": st.integers(1, 3),
        "queue": st.sampled_from(list(Queue)),
        "position": st.sampled_from([0, 1, 6, 2**32 - 2]),
    }
)
CQE = st.fixed_dictionaries(
    {
        "proc": st.integers(0, 2),
        "object": st.integers(1, 3),
        "queue": st.sampled_from(list(Queue)),
        "opcode": st.sampled_from([0, 1, 128]),
        "status": st.sampled_from([0, 0, 5, 10]),
        "flags": st.sampled_from([0, 2, 128]),
        "size_bytes": st.integers(0, 2**32 - 1),
        "first": st.sampled_from([0, 7, 2**32 - 9]),
        "retired": st.integers(0, 5),
        "posted_tsc": st.sampled_from([0, 1]),
        "posted_ns": st.integers(10**18, 10**18 + 50),
        "t_ns": st.integers(10**18, 10**18 + 50),
    }
)


REQUEST_COLUMNS = {"proc": "i4", "object": "u4", "queue": "u1", "position": "u4"}
CQE_COLUMNS = {
    **{"proc": "i4", "object": "u4", "queue": "u1", "opcode": "u1", "status": "u1"},
    "flags": "u1",
    **{"size_bytes": "u4", "first": "u4", "position": "u4", "posted_tsc": "u8"},
    **{"posted_ns": "i8", "t_ns": "i8"},
}


NUMBERS = ("requests", "cqes", "joined", "retired", "errors", "posted", "completed")


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


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.lists(REQUEST), st.lists(CQE)), min_size=1, max_size=3))
def test_tables_are_the_sums_of_the_rows(parts):
    tables, _ = summed(parts)
    queues, kinds = defaultdict(Counter), defaultdict(list)
    for requests, cqes in parts:
        for row in requests:
            here = queues[row["proc"], row["object"], row["queue"]]
            here["requests"] += 1
            here["posted"] = max(here["posted"], row["position"] + 1)
        for row in cqes:
            here = queues[row["proc"], row["object"], row["queue"]]
            here["cqes"] += 1
            here["joined"] += row["retired"] > 0
            here["retired"] += row["retired"]
            here["errors"] += row["status"] != 0
            until = position(row) + 1 if row["retired"] else 0
            here["posted"] = max(here["posted"], until)
            here["completed"] = max(here["completed"], until)
            kind = row["proc"], row["queue"], row["opcode"], row["status"], row["flags"] == 128
            kinds[kind].append(row)
    got = {(r["proc"], r["object"], r["queue"]): r for r in tables["queues"].to_pylist()}
    assert got.keys() == queues.keys()
    for key, want in queues.items():
        assert all(got[key][name] == want[name] for name in NUMBERS)
    found = {
        (r["proc"], r["queue"], r["opcode"], r["status"], r["at_most"]): r
        for r in tables["latencies"].to_pylist()
    }
    assert found.keys() == kinds.keys()
    for key, rows in kinds.items():
        times = [r["t_ns"] - r["posted_ns"] for r in rows if r["posted_tsc"]]
        row = found[key]
        assert (row["count"], row["timed"], row["total_ns"]) == (len(rows), len(times), sum(times))
        assert row["size_bytes"] == sum(r["size_bytes"] for r in rows)
        limits = (min(times), max(times)) if times else (None, None)
        assert (row["min_ns"], row["max_ns"]) == limits


SEND = {"proc": 0, "object": 1, "queue": Queue.SEND}
TIMES = {"posted_tsc": 1, "posted_ns": 1, "t_ns": 2}
REST = {"opcode": 0, "status": 0, "flags": 0, "size_bytes": 0, **TIMES}


def broken(account):
    """The names of the equations of the stage's own that do not hold."""
    own = [x for x in account["balance"] if isinstance(x["right"], int)]
    return [x["name"].split(",")[0] for x in own if x["left"] != x["right"]]


def test_lost_requests_are_posted_all_the_same():
    posted = [{**SEND, "position": p} for p in (0, 3)]
    _, account = summed([(posted, [{**SEND, **REST, "first": 0, "retired": 6}])])
    assert broken(account) == []
    names = ("send_requests", "send_posted", "send_completed", "send_outstanding")
    assert [account[name] for name in names] == [2, 6, 6, 0]


@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_counted_twice_breaks_the_balance(parts):
    """A request and a completion that were read twice, in one partition or in two."""
    posted = [{**SEND, "position": p} for p in (0, 1, 2)]
    cqe = {**SEND, **REST, "first": 0, "retired": 2}
    other = {"proc": 1, "object": 1, "queue": Queue.SEND, "position": 9}
    whole = [([*posted, other], [cqe])]
    _, account = summed(whole)
    assert broken(account) == []
    again = [([*posted, other, posted[0]], [cqe, cqe])] if parts == 1 else [(posted, [cqe])] * 2
    _, account = summed(again)
    assert broken(account) == ["request records", "send requests retired"]


def test_more_receives_than_were_posted_break_the_balance():
    one = {**SEND, "queue": Queue.RECV}
    came = {**one, **REST, "first": 0, "retired": 1}
    _, account = summed([([{**one, "position": 0}], [came, came])])
    assert broken(account) == ["receives completed"]


def test_a_run_without_verbs_gives_empty_tables():
    tables, account = summed([([], [])])
    assert [table.num_rows for table in tables.values()] == [0, 0]
    assert account["requests"] == account["cqes"] == 0


def test_the_line_says_what_completed_of_what_was_posted():
    one = {"proc": 0, "object": 1}
    more = {"opcode": 0, "flags": 0, "size_bytes": 0, **TIMES, "first": 0}
    posted = [
        {**one, "queue": queue, "position": position}
        for queue, count in [(Queue.SEND, 5), (Queue.RECV, 3), (Queue.SHARED, 2)]
        for position in range(count)
    ]
    cqes = [
        {**one, **more, "queue": queue, "retired": retired, "status": status}
        for queue, retired, status in [(Queue.SEND, 4, 5), (Queue.RECV, 1, 0), (Queue.SHARED, 0, 0)]
    ]
    assert line_of([(posted, cqes)]) == [
        "completed  4 of 5 send requests, 1 outstanding; 2 of 5 posted receives; 1 error"
    ]
    assert line_of([([], [])]) == ()


@pytest.mark.parametrize("queue", [Queue.RECV, Queue.SHARED])
@pytest.mark.parametrize("retired", [0, 1])
def test_receives_that_completed_were_posted_though_their_requests_are_lost(queue, retired):
    cqes = [{**REST, "proc": 0, "object": 1, "queue": queue, "first": k} for k in range(3)]
    (line,) = line_of([([], [{**row, "retired": retired} for row in cqes])])
    assert "; 3 of 3 posted receives;" in line


def test_completions_of_a_gpus_requests_are_not_visible():
    stage = Completion()
    posts = [(1, k, Queue.SEND) for k in range(3)] + [(2, k, Queue.SEND) for k in (0, 4)]
    rows = [{"proc": 0, "object": o, "position": k, "queue": q} for o, k, q in posts]
    run = make_run(
        processes=[{}],
        endpoints=[{"object": 1, "layer": Layer.VERBS}, {"object": 2, "layer": Layer.MLX5DV}],
    )
    none = columns([], CQE_COLUMNS)
    both = stage.resolve(stage.summarize(make_partition(requests=rows, cqes=none)), run)
    account = stage.account(both)
    assert (account["send_outstanding"], account["send_not_visible"]) == (3, 2)
    assert stage.lines(both, run) == [
        "completed  0 of 3 send requests, 3 outstanding; 0 of 0 posted receives; 0 errors",
        "completed  2 requests of GPUs: not visible",
    ]
    alone = stage.resolve(stage.summarize(make_partition(requests=rows[3:], cqes=none)), run)
    assert stage.lines(alone, run) == ["completed  2 requests of GPUs: not visible"]
    assert stage.results(alone)["queues"].column("visible").to_pylist() == [False]


GPU_QUEUE = st.fixed_dictionaries(
    {
        "slots": st.lists(st.integers(1, 4), min_size=1, max_size=30),
        "is_request": st.lists(st.booleans(), min_size=30, max_size=30),
        "completes": st.lists(st.booleans(), min_size=30, max_size=30),
        "first": st.sampled_from([0, 100_000]),
    }
)


def drawn(queue, thing):
    """Requests and completions of one queue, and how many requests are behind the last one."""
    at, requests, cqes, behind = queue["first"], [], [], 0
    for k, slots in enumerate(queue["slots"]):
        row = {"proc": 0, "object": thing, "queue": Queue.SEND}
        if queue["is_request"][k]:
            requests.append({**row, "position": at})
            behind += 1
        if queue["completes"][k]:
            first = cqes[-1]["first"] + cqes[-1]["retired"] if cqes else 0
            more = {"flags": 128, "status": 10 if k == 7 else 0}
            cqes.append({**row, **REST, **more, "first": first, "retired": at - first + 1})
            behind = 0
        at += slots
    return requests, cqes, behind


@settings(max_examples=50, deadline=None)
@given(st.lists(GPU_QUEUE, min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 1))
def test_requests_of_gpus_behind_the_last_completion_are_outstanding(queues, pieces, reverse):
    stage, things = Completion(), range(1, len(queues) + 1)
    made = [drawn(queue, thing) for queue, thing in zip(queues, things, strict=True)]
    requests = [row for one in made for row in one[0]]
    cqes = [{**row, "position": position(row)} for one in made for row in one[1]]
    parts = [
        make_partition(
            requests=columns(requests[k::pieces], REQUEST_COLUMNS),
            cqes=columns(cqes[k::pieces], CQE_COLUMNS),
        )
        for k in range(pieces)
    ]
    run = make_run(
        processes=[{}],
        endpoints=[{"object": thing, "layer": Layer.MLX5DV} for thing in things],
        gpu_queues=[{"object": thing, "completions": True} for thing in things],
    )
    summaries = [stage.summarize(part) for part in parts][:: -1 if reverse else 1]
    resolved = stage.resolve(functools.reduce(stage.combine, summaries), run)
    found = {
        row["object"]: row["outstanding"] for row in stage.results(resolved)["queues"].to_pylist()
    }
    assert found == {
        thing: one[2] for thing, one in zip(things, made, strict=True) if one[0] or one[1]
    }
    account = stage.account(resolved)
    assert broken(account) == []
    assert account["gpu_requests"] == len(requests)
    assert account["gpu_outstanding"] == sum(one[2] for one in made)
    assert account["gpu_errors"] == sum(row["status"] != 0 for row in cqes)
    assert account["send_posted"] == account["send_not_visible"] == 0


def test_what_a_gpu_posted_more_than_a_ring_ago_has_completed():
    stage, row = Completion(), {"proc": 0, "object": 1, "queue": Queue.SEND}
    requests = [{**row, "position": at} for at in (0, 1, 40_000, 70_000)]
    run = make_run(
        processes=[{}],
        endpoints=[{"object": 1, "layer": Layer.MLX5DV}],
        gpu_queues=[{"object": 1, "completions": True}],
    )
    part = make_partition(
        requests=columns(requests, REQUEST_COLUMNS), cqes=columns([], CQE_COLUMNS)
    )
    resolved = stage.resolve(stage.summarize(part), run)
    assert stage.lines(resolved, run) == [
        "completed  2 of 4 requests of GPUs, 2 outstanding; 0 errors; times are upper bounds"
    ]
