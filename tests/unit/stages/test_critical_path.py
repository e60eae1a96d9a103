"""The critical path, against a plain walk back over what each process did."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given

from sigmatrace.stages.critical_path import CriticalPath
from tests.unit.stages.message_run import Row, balances, message, messages, run_of, tables
from tests.unit.stages.test_waits import bits, events_of, least_of, pair


def walked(rows: list[Row]) -> list[tuple[object, ...]]:
    """Steps of the path, first to last, those in a process that take time put together."""
    if not rows:
        return []
    count = Counter(row["layer"] for row in rows)
    layer = min(count, key=lambda one: (-count[one], one))
    rows = [row for row in rows if row["layer"] == layer]
    least = least_of(rows)
    events = {proc: own for (proc, _), own in events_of(rows).items()}
    last_ns = max(own[-1][0] for own in events.values())
    proc = min(proc for proc, own in events.items() if own[-1][0] == last_ns)
    at = next(k for k, event in enumerate(events[proc]) if event[0] == last_ns)
    steps: list[tuple[object, ...]] = []
    until = last_ns
    while True:
        time, is_receive, send, number = events[proc][at]
        row, is_first = rows[number], at == 0
        quick = least.get((*pair(row), bits(row)), 0)
        if is_receive and send <= time and (is_first or send + quick > events[proc][at - 1][0]):
            if until > time:
                steps.append(("local", proc, proc, time, until, 0))
            steps.append(("message", row["src_proc"], proc, send, time, row["size_bytes"]))
            proc, until = row["src_proc"], send
            at = next(k for k, x in enumerate(events[proc]) if x[1] == 0 and x[3] == number)
        elif is_first:
            return ([("local", proc, proc, time, until, 0)] if until > time else []) + steps[::-1]
        else:
            at -= 1


@given(messages)
def test_path_is_that_of_a_walk_back(rows: list[Row]) -> None:
    found, account, _ = tables(CriticalPath(), run_of(rows))
    path = [tuple(row.values()) for row in found["critical_path"]]
    assert [row[0] for row in path] == list(range(len(path)))
    assert [row[1:] for row in path] == walked(rows)
    assert all(one[5] == other[4] for one, other in itertools.pairwise(path))
    assert balances(account, len(rows))


def test_it_goes_over_to_the_one_that_sent_late_and_stays_with_the_one_that_received_late() -> None:
    rows = [
        message(1, 3, 0, 5),
        message(0, 1, 10, 20),
        message(0, 1, 40, 50),  # late: what process 1 waited for
        message(1, 2, 60, 70),
        message(1, 2, 61, 90),  # it has been there for long: the receiver did other things until
        message(2, 3, 85, 86),
    ]
    found, account, lines = tables(CriticalPath(), run_of(rows))
    start = run_of(rows).column("message_pairs", "send_ns").min()
    steps = [
        (row["kind"], row["from_proc"], row["proc"], row["begin_ns"] - start, row["end_ns"] - start)
        for row in found["critical_path"]
    ]
    assert steps == [
        ("local", 0, 0, 10, 40),
        ("message", 0, 1, 40, 50),
        ("local", 1, 1, 50, 60),
        ("message", 1, 2, 60, 70),
        ("local", 2, 2, 70, 90),
    ]
    assert (account["messages"], account["message_ns"], account["local_ns"]) == (2, 20, 60)
    assert lines == ["path       ofi: 80 ns over 2 messages; 25 % under way, 38 % in rank 0"]


def test_of_nothing_there_is_no_path() -> None:
    found, account, lines = tables(CriticalPath(), run_of([]))
    assert (found, lines, account["messages"]) == ({"critical_path": []}, [], 0)
