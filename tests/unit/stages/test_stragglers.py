"""Stragglers, against plain sums over barriers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.stragglers import Stragglers
from tests.factories import make_table
from tests.unit.stages.message_run import PROCS, Row, run_of, tables

# By barrier: members, as process and GPU, with their arrivals.
members = st.dictionaries(
    st.tuples(st.integers(0, PROCS - 1), st.integers(0, 1)), st.integers(0, 20), min_size=2
)
waited = st.lists(st.tuples(*[st.integers(0, 3)] * 2, st.sampled_from([1, 4]), st.integers(0, 9)))


def made(barriers: list[dict[tuple[int, int], int]], waits: list[tuple[int, ...]]) -> Run:
    rows: dict[str, list[dict[str, Any]]] = {"barriers": [], "barrier_arrivals": [], "waits": []}
    for number, came in enumerate(barriers):
        ordered = sorted(came.items(), key=lambda one: (one[1], one[0]))
        first, last = ordered[0][1], ordered[-1][1]
        rows["barriers"].append(
            {
                **{"barrier": number, "members": len(came), "first_ns": first, "last_ns": last},
                **{"spread_ns": last - first, "last_proc": ordered[-1][0][0]},
            }
        )
        rows["barrier_arrivals"] += [
            {"barrier": number, "position": k, "proc": p, "gpu": gpu, "arrival_ns": t,
             "late_ns": t - first}
            for k, ((p, gpu), t) in enumerate(ordered)
        ]  # fmt: skip
    rows["waits"] = [
        {"src_proc": src, "dst_proc": dst, "layer": layer, "late_sender_ns": ns}
        for src, dst, layer, ns in waits
    ]
    return run_of([]).with_results({n: make_table(STAGE_TABLES[n], x) for n, x in rows.items()})


def waited_once(barriers: list[dict[tuple[int, int], int]]) -> list[int]:
    """How long members waited at each barrier, a ns at which one waits at several for the first."""
    found = [0] * len(barriers)
    for member in {member for came in barriers for member in came}:
        own = sorted((came[member], k) for k, came in enumerate(barriers) if member in came)
        waiting: set[int] = set()
        for since, k in own:
            new = set(range(since, max(barriers[k].values()))) - waiting
            found[k] += len(new)
            waiting |= new
    return found


@given(st.lists(members, max_size=6), waited)
def test_sums_are_plain(barriers: list[Any], waits: list[tuple[int, ...]]) -> None:
    found, account, _ = tables(Stragglers(), made(barriers, waits))
    want = [dict.fromkeys(("barriers", "last", "caused_ns", "late_ns"), 0) for _ in range(PROCS)]
    waited = waited_once(barriers)
    for number, came in enumerate(barriers):
        first, last = min(came.values()), max(came.values())
        for proc in {proc for proc, _ in came}:
            want[proc]["barriers"] += 1
        for (proc, _), t in came.items():
            want[proc]["late_ns"] += t - first
        if last > first:
            who = max(member for member, t in came.items() if t == last)[0]
            want[who]["last"] += 1
            want[who]["caused_ns"] += waited[number]
    for proc, row in enumerate(found["stragglers"]):
        late = [sum(ns for s, _, one, ns in waits if (s, one) == (proc, x)) for x in (1, 4)]
        assert row == {"proc": proc, **want[proc], "late_sender_ns": max(late)}
    assert account["caused_ns"] == sum(row["caused_ns"] for row in want)
    plain = sum(max(came.values()) - t for came in barriers for t in came.values())
    assert account["at_several_barriers_at_once_ns"] == plain - account["caused_ns"]


def test_a_barrier_within_another_one_is_waited_for_once() -> None:
    outer, inner = {(0, 0): 10, (1, 0): 100}, {(0, 0): 12, (1, 0): 105}
    rows: list[Row] = tables(Stragglers(), made([outer, inner], []))[0]["stragglers"]
    assert (rows[1]["barriers"], rows[1]["last"], rows[1]["caused_ns"]) == (2, 2, 90 + 5)


def test_who_comes_last_is_waited_for_by_all_others() -> None:
    came = {(0, 0): 10, (1, 0): 40, (2, 0): 20, (3, 0): 10}
    barriers = [{member: t + 100 * k for member, t in came.items()} for k in range(3)]
    rows: list[Row] = tables(Stragglers(), made(barriers, []))[0]["stragglers"]
    assert [(row["last"], row["caused_ns"], row["late_ns"]) for row in rows] == [
        (0, 0, 0), (3, 240, 90), (0, 0, 30), (0, 0, 0),
    ]  # fmt: skip
