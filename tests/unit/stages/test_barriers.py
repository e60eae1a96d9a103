"""Barriers from regions, doorbells and phases, against what is put in."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.barriers import Barriers
from sigmatrace.trace_format import Layer, MarkKind, Op
from tests.factories import START_NS, make_partition, make_run, make_table

Row = dict[str, Any]
PROCS = 3
SPAN_NS = 10_000_000
NAMES = [
    {"proc": proc, "name": number, "text": text}
    for proc in range(PROCS)
    # Numbers of names are a process's own.
    for number, text in ((9 - proc, "MPI_Barrier"), (20, "solve"), (30 + proc, "end barrier"))
]


def make(
    error_ns: float = 0.0, hosts: tuple[str, ...] = ("node0",) * PROCS, **facts: object
) -> Run:
    times = {"base_ns": START_NS, "last_ns": START_NS + SPAN_NS, **facts}
    channels = [
        {"proc": proc, "object": 10 + k, "layer": layer}
        for proc in range(PROCS)
        for k, layer in enumerate((Layer.MLX5DV, Layer.MLX5DV, Layer.OFI))
    ]
    gpus = [
        {"proc": proc, "object": 10 + k, "gpu": 2 + k} for proc in range(PROCS) for k in range(2)
    ]
    processes = [{"host": host} for host in hosts]
    run = make_run(times, processes=processes, channels=channels, names=NAMES, gpu_queues=gpus)
    quality = [{"proc": proc, "error_ns": error_ns} for proc in range(PROCS)]
    return run.with_results({"clock_quality": make_table(STAGE_TABLES["clock_quality"], quality)})


def barriers(
    run: Run, *parts: dict[str, list[Row]], region: str = "barrier"
) -> tuple[list[Row], list[Row], Row, list[str]]:
    stage = Barriers(region)
    with_times = []
    for number, tables in enumerate(parts):
        part = make_partition(number, **{name: columns(name, x) for name, x in tables.items()})
        for name in ("marks", "ops"):
            if "t_ns" not in part.tables[name].column_names:
                part = part.with_columns(name, {"t_ns": np.zeros(0, np.int64)})
        with_times.append(replace(part, run=run))
    seen = functools.reduce(stage.combine, map(stage.summarize, with_times))
    resolved = stage.resolve(seen, run)
    found = stage.results(resolved)
    for name, table in found.items():
        assert table.schema.equals(make_table(STAGE_TABLES[name], []).schema), name
    rows = [found[name].to_pylist() for name in ("barriers", "barrier_arrivals")]
    return rows[0], rows[1], dict(stage.account(resolved)), list(stage.lines(resolved, run))


def columns(name: str, rows: list[Row]) -> dict[str, Any]:
    names = (
        ("proc", "name", "kind", "t_ns") if name == "marks" else ("proc", "channel", "op", "t_ns")
    )
    dtypes = {"proc": np.int32, "name": np.uint32, "channel": np.uint32, "t_ns": np.int64}
    return {x: np.array([row[x] for row in rows], dtypes.get(x, np.uint8)) for x in names}


def region(proc: int, begin: int | None, end: int | None, text: str = "MPI_Barrier") -> list[Row]:
    number = next(x["name"] for x in NAMES if x["proc"] == proc and x["text"] == text)
    return [
        {"proc": proc, "name": number, "kind": kind, "t_ns": START_NS + t}
        for kind, t in ((MarkKind.BEGIN, begin), (MarkKind.END, end))
        if t is not None
    ]


def order(arrivals: list[Row]) -> dict[int, list[tuple[int, int]]]:
    """Process and time of arrival, by barrier."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in arrivals:
        own = found.setdefault(row["barrier"], [])
        assert row["position"] == len(own)
        own.append((row["proc"], row["arrival_ns"] - START_NS))
        assert row["late_ns"] == row["arrival_ns"] - START_NS - own[0][1]
    return found


gaps = st.lists(st.tuples(*[st.integers(0, 50)] * PROCS), min_size=1, max_size=6)


@given(gaps, st.integers(1, 3))
def test_regions_are_the_barriers_that_were_put_in(late: list[tuple[int, ...]], parts: int) -> None:
    rows, want, now = [], {}, 0
    for k, each in enumerate(late):
        release = now + max(each) + 5
        for proc, gap in enumerate(each):
            rows += [region(proc, now + gap, release)]
        want[k] = sorted(((p, now + gap) for p, gap in enumerate(each)), key=lambda x: (x[1], x[0]))
        now = release + 1
    rows.reverse()  # whatever the order
    tables = [{"marks": list(itertools.chain(*rows[k::parts]))} for k in range(parts)]
    found, arrivals, account, lines = barriers(make(), *tables)
    assert order(arrivals) == want
    for row, each in zip(found, want.values(), strict=True):
        assert (row["kind"], row["name"], row["members"]) == ("region", "MPI_Barrier", PROCS)
        assert (row["first_proc"], row["last_proc"]) == (each[0][0], each[-1][0])
        assert row["spread_ns"] == each[-1][1] - each[0][1] == row["last_ns"] - row["first_ns"]
    assert account["region_begins_and_ends"] == 2 * PROCS * len(late)
    assert account["not_all_took_part"] == account["left_before_all_came"] == 0
    assert len(lines) == 1


def three(begin: int) -> list[Row]:
    return [row for proc in range(PROCS) for row in region(proc, begin + proc, begin + 9)]


def test_names_are_told_apart_and_others_do_not_count() -> None:
    marks = [*three(100), *three(200)]
    for proc in range(PROCS):
        marks += region(proc, 50 - proc, 70, "end barrier") + region(proc, 300, 400, "solve")
    found, _, _, _ = barriers(make(), {"marks": marks})
    assert [(row["name"], row["first_proc"]) for row in found] == [
        ("end barrier", 2), ("MPI_Barrier", 0), ("MPI_Barrier", 0),
    ]  # fmt: skip
    found, _, _, _ = barriers(make(), {"marks": marks}, region="SOLVE")
    assert [(row["name"], row["spread_ns"]) for row in found] == [("solve", 0)]


def test_a_barrier_that_not_all_reached_is_left_out_and_counted() -> None:
    marks = [*three(100), *three(200), *region(0, 300, None), *region(1, 310, None)]
    found, _, account, lines = barriers(make(), {"marks": marks})
    assert len(found) == 2 and account["not_all_took_part"] == 1
    assert lines[-1].endswith("1 barrier not reached by all members: left out")


def test_a_barrier_that_one_left_before_the_last_came_is_none() -> None:
    marks = [*three(100), *region(0, 200, 205), *region(1, 201, 205), *region(2, 230, 240)]
    found, _, account, _ = barriers(make(), {"marks": marks})
    assert len(found) == 1 and account["left_before_all_came"] == 1
    found, _, account, _ = barriers(make(error_ns=12.5), {"marks": marks})  # clocks may err so much
    assert len(found) == 2 and account["left_before_all_came"] == 0


@pytest.mark.parametrize(
    ("hosts", "error_ns", "uncertain"),
    [
        (("a", "a", "b"), 20.0, [True, False]),  # two clocks, 40 ns off each other
        (("a", "a", "b"), 19.5, [False, False]),
        (("a", "b", "c"), float("inf"), [True, True]),
        (("a", "a", "a"), 20.0, [False, False]),  # one clock
        (("a", "a", "b"), 0.0, [False, False]),
    ],
)
def test_who_came_last_is_not_sure_where_clocks_may_be_off_by_as_much(
    hosts: tuple[str, ...], error_ns: float, uncertain: list[bool]
) -> None:
    marks = [
        row
        for begin, late in ((100, 40), (1000, 41))
        for proc, came in enumerate((begin, begin + 1, begin + late))
        for row in region(proc, came, begin + 50)
    ]
    found, _, account, lines = barriers(make(error_ns, hosts), {"marks": marks})
    assert [row["uncertain"] for row in found] == uncertain
    assert account["uncertain"] == sum(uncertain)
    assert any("who came last is not sure" in line for line in lines) == any(uncertain)
    off = "40 ns" if np.isfinite(error_ns) else "nobody knows by how much"
    assert not any(uncertain) or f"may be off ({off})" in lines[-1]


@pytest.mark.parametrize(
    ("before", "left_out"),
    [
        # Process 2 was there when the window begins, the others came in it.
        (region(0, 12, 20) + region(1, 11, 20) + region(2, None, 21), 1),
        # All were there.
        (region(0, None, 20) + region(1, None, 22) + region(2, None, 21), 0),
        # All were there, and processes 0 and 1 had left.
        (region(2, None, 1), 0),
    ],
)
def test_a_window_that_cuts_a_barrier_does_not_shift_the_others(
    before: list[Row], left_out: int
) -> None:
    marks = [*before, *three(100), *three(200)]
    _, arrivals, account, _ = barriers(make(), {"marks": marks})
    assert list(order(arrivals).values()) == [
        [(proc, begin + proc) for proc in range(PROCS)] for begin in (100, 200)
    ]
    assert account["not_all_took_part"] == left_out and account["left_before_all_came"] == 0


def test_regions_of_one_process_are_no_barriers() -> None:
    found, _, account, lines = barriers(make(), {"marks": region(0, 1, 2) + region(0, 3, 4)})
    assert (found, lines, account["region_names_of_one_process"]) == ([], [], 1)


def operation(proc: int, queue: int, op: Op, t_ns: int) -> Row:
    return {"proc": proc, "channel": 3 * proc + queue, "op": op, "t_ns": START_NS + t_ns}


def test_bursts_of_atomics_are_the_barriers_of_gpus() -> None:
    """Each process has two GPUs; atomics of other layers, and what is no atomic, do not count."""
    ops, want = [], []
    for k in range(4):
        came = {(proc, gpu): 2_000_000 * k + 90_000 * ((proc + k) % 3) + 7000 * gpu
                for proc in range(PROCS) for gpu in range(2)}  # fmt: skip
        for (proc, gpu), t in came.items():
            ops += [operation(proc, gpu, Op.ATOMIC_FETCH, t + 200 * n) for n in range(5)]
            ops += [operation(proc, gpu, Op.PUT, t - 50_000), operation(proc, 2, Op.ATOMIC, t // 2)]
        want.append(sorted((t, proc, 2 + gpu) for (proc, gpu), t in came.items()))
    found, arrivals, account, lines = barriers(make(), {"ops": ops[::2]}, {"ops": ops[1::2]})
    rows = [(row["arrival_ns"] - START_NS, row["proc"], row["gpu"]) for row in arrivals]
    assert rows == list(itertools.chain(*want))
    assert {(row["kind"], row["members"]) for row in found} == {("doorbell", 6)}
    assert account["by_kind"] == {"region": 0, "doorbell": 4, "phase": 0}
    assert lines[0].startswith("barriers   4 barriers (by GPU doorbells)")


def test_phases_count_where_there_is_nothing_else() -> None:
    ops = [
        operation(proc, 2, op, 2_000_000 * k + 100_000 * proc + 1000 * n)
        for k in range(4)
        for proc in range(PROCS)
        for n, op in enumerate((Op.SEND, Op.PUT, Op.GET, Op.RECV))
    ]
    found, arrivals, _, _ = barriers(make(), {"ops": ops})
    assert [row["kind"] for row in found] == ["phase"] * 4
    assert order(arrivals) == {  # a RECV is no end of a phase: it may well be waited for
        k: [(proc, 2_000_000 * k + 100_000 * proc + 2000) for proc in range(PROCS)]
        for k in range(4)
    }
    found, _, account, _ = barriers(make(), {"ops": ops, "marks": three(5)})
    assert [row["kind"] for row in found] == ["region"] and account["by_kind"]["phase"] == 0


def test_in_a_window_pauses_are_told_apart_that_are_short_for_the_run() -> None:
    ops = [
        operation(proc, 2, Op.SEND, 20_000 * k + 500 * proc)
        for k in range(5)
        for proc in range(PROCS)
    ]
    far = {"last_ns": START_NS + 10**12}
    assert barriers(make(**far), {"ops": ops})[0] == []
    window = {"window_ns": (START_NS, START_NS + 100_000)}
    assert len(barriers(make(**far, **window), {"ops": ops})[0]) == 5


def test_request_and_response_are_no_barrier() -> None:
    """Of two processes; a third one that comes together with them makes it one."""
    ops = [
        operation(proc, 2, op, 100_000 * k + 50_000 * proc)
        for k in range(4)
        for proc in range(2)
        for op in (Op.SEND, Op.RECV)
    ]
    found, _, account, lines = barriers(make(), {"ops": ops})
    assert (found, lines, account["phase_bursts_that_do_not_fit"]) == ([], [], 8)
    ops += [operation(2, 2, Op.SEND, 100_000 * k + 20_000) for k in range(4)]
    assert [row["members"] for row in barriers(make(), {"ops": ops})[0]] == [3] * 4


def test_bursts_that_do_not_fit_are_counted() -> None:
    """Process 0 sends twice, process 1 once: there is no barrier that both could have come to."""
    ops = [operation(0, 2, Op.SEND, t) for t in (0, 2_000_000)] + [operation(1, 2, Op.SEND, 0)]
    found, _, account, _ = barriers(make(), {"ops": ops})
    assert (found, account["phase_bursts_that_do_not_fit"]) == ([], 3)
    _, _, account, _ = barriers(make(), {"ops": ops, "marks": three(5)})
    assert account["phase_bursts_that_do_not_fit"] == 0  # nobody looked for them


def test_of_nothing_there_is_no_barrier() -> None:
    found, arrivals, account, lines = barriers(make(), {})
    assert (found, arrivals, lines, account["barriers"]) == ([], [], [], 0)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="every region"):
        Barriers("")
