"""Who sent how much to whom at each level, against sums by plain dicts."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.communication import Communication
from sigmatrace.trace_format import Layer, Op
from tests.factories import make_run, make_table, queue_pair
from tests.unit.stages.devices_run import ENDS, GPU_QP, HOSTS, devices_run

LEVELS = ("qp", "gpu", "nic", "rank", "node")
Row = dict[str, Any]


def communication(run: Run, sizes: list[Row]) -> tuple[list[Row], Row]:
    stage = Communication()
    resolved = stage.survey(run.with_results({"sizes": make_table(STAGE_TABLES["sizes"], sizes)}))
    table = stage.results(resolved)["communication"]
    assert table.schema.equals(make_table(STAGE_TABLES["communication"], []).schema)
    return table.to_pylist(), dict(stage.account(resolved))


def holds(account: Row, operations: int, size_bytes: int) -> bool:
    """Whether the equations hold, with what the stage traffic would say."""
    traffic = {"operations": operations, "aggregated_operations": 0, "size_bytes": size_bytes}

    def value(side: Any) -> int:
        parts = side if isinstance(side, list) else [side]
        return sum(traffic[x.split(".")[-1]] if isinstance(x, str) else x for x in parts)

    assert len(account["balance"]) == 2 * len(LEVELS)
    return all(value(one["left"]) == value(one["right"]) for one in account["balance"])


# How much is told of the other end.
WHOLE, PROCESS, NAME, NOTHING = range(4)
OTHERS = {0: [1], 1: [0], 2: [3], 3: [2], 4: [5, 6, 4], 5: [4, 6], 6: [4, 5]}
rows = st.integers(0, len(ENDS) - 1).flatmap(
    lambda own: st.tuples(
        st.just(own),
        st.sampled_from(OTHERS[own]),
        st.sampled_from([WHOLE, WHOLE, PROCESS, NAME, NOTHING]),
        st.sampled_from([Op.SEND, Op.PUT, Op.GET, Op.ATOMIC, Op.RECV, Op.FLUSH]),
        st.booleans(),
        st.sampled_from([(0, 0), (4, 7), (2**40, 2**41 - 1), (0, 2**64 - 1)]),
        st.integers(1, 5),
    )
)


def size_row(own: int, other: int, told: int, op: Op, nested: bool, limits: Any, n: int) -> Row:
    here, there = ENDS[own], ENDS[other]
    ends = [
        (here.proc, here.name),
        (
            there.proc if told in (WHOLE, PROCESS) else -1,
            there.name if told in (WHOLE, NAME) else "",
        ),
    ]
    (src, src_name), (dst, dst_name) = ends[::-1] if op == Op.GET else ends
    return {
        "proc": here.proc, "object": here.object, "layer": here.layer, "op": op,
        "src_proc": src, "dst_proc": dst, "src_name": src_name, "dst_name": dst_name,
        "nested": int(nested), "least_bytes": limits[0], "most_bytes": limits[1],
        "count": n, "size_bytes": n * limits[0],
    }  # fmt: skip


def names(end: int, told: int, level: str) -> str:
    """What the end is called at a level, if so much is told of it."""
    one = ENDS[end]
    process = told in (WHOLE, PROCESS)
    if level == "rank":
        return f"rank {one.proc}" if process else ""
    if level == "node":
        return HOSTS[one.proc] if process else ""
    if told == WHOLE and not (level == "qp" and not one.name):
        return str(getattr(one, level))
    alone = ENDS[0].gpu if one.proc == 0 and process else ""
    text = f"rank {one.proc} " * process + one.name * (told != NOTHING and told != PROCESS)
    return {"qp": text.strip(), "gpu": alone, "nic": ""}[level]


@given(st.lists(rows, max_size=30))
def test_sums_are_those_of_plain_dicts(drawn: list[Any]) -> None:
    table, account = communication(devices_run(), [size_row(*one) for one in drawn])
    want: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    known: set[tuple[str, Layer]] = set()
    for own, other, told, op, nested, limits, n in drawn:
        if nested or op in (Op.RECV, Op.FLUSH):
            continue
        for level in LEVELS:
            own_name = ENDS[own].qp if level == "qp" else names(own, WHOLE, level)
            pair = [own_name, names(other, told, level)]
            key = (level, ENDS[own].layer, *(pair[::-1] if op == Op.GET else pair))
            unknown = limits == (0, 2**64 - 1)
            for at, amount in enumerate((n, n * limits[0], n * unknown)):
                want[key][at] += amount
            known |= {key[:2]} if any(pair) else set()
    want = {key: amounts for key, amounts in want.items() if key[:2] in known}
    found = {
        (row["level"], row["layer"], row["src"], row["dst"]): [
            row[x] for x in ("operations", "size_bytes", "size_unknown")
        ]
        for row in table
    }
    assert found == want and len(found) == len(table)
    for row in table:
        told = row["operations"] - row["size_unknown"]
        assert row["mean_bytes"] == (pytest.approx(row["size_bytes"] / told) if told else None)
    assert holds(account, sum(x[-1] for x in drawn), sum(x[-1] * x[5][0] for x in drawn))


def test_levels_and_ends_follow_each_other_in_their_order() -> None:
    drawn = [(0, 1, WHOLE), (1, 0, WHOLE), (0, 1, NOTHING), (2, 3, WHOLE)]
    given_rows = [size_row(*one, Op.SEND, False, (8, 8), 1) for one in reversed(drawn)]
    table, account = communication(devices_run(), given_rows)
    levels = [row["level"] for row in table]
    assert list(dict.fromkeys(levels)) == list(LEVELS)
    ranks = [(r["layer"], r["src"], r["dst"]) for r in table if r["level"] == "rank"]
    verbs, gpu = Layer.VERBS, Layer.MLX5DV
    assert ranks == [
        (verbs, "rank 0", "rank 1"),
        (verbs, "rank 0", ""),
        (verbs, "rank 1", "rank 0"),
        (gpu, "rank 0", "rank 2"),
    ]
    assert account["levels"]["rank"]["unknown_end_operations"] == 1


def test_a_level_of_which_nothing_is_known_is_left_out_and_counted() -> None:
    table, account = communication(
        devices_run(), [size_row(4, 5, WHOLE, Op.SEND, False, (64, 127), 3)]
    )
    assert [row["level"] for row in table] == ["qp", "rank", "node"]
    assert account["levels"]["nic"]["left_out_operations"] == 3
    assert account["levels"]["gpu"]["left_out_size_bytes"] == 192
    assert holds(account, 3, 192)


def test_nothing_took_place() -> None:
    table, account = communication(devices_run(), [])
    assert table == [] and holds(account, 0, 0)
    assert communication(make_run(), [])[0] == []


def ends_of(endpoints: list[Row], *sizes: Row) -> list[tuple[str, str]]:
    run = make_run(processes=[{}, {}], endpoints=endpoints)
    filled = [{"layer": Layer.VERBS, "op": Op.SEND, "count": 1, **row} for row in sizes]
    table, _ = communication(run, filled)
    return [(row["src"], row["dst"]) for row in table if row["level"] == "qp"]


def test_a_connection_that_is_made_again_reaches_the_one_that_is_made_again() -> None:
    endpoints = [
        queue_pair(0, 1, "aa:11", "bb:22"),
        queue_pair(0, 2, "aa:11", "bb:22", life=1),
        queue_pair(1, 5, "bb:22", "aa:11"),
        queue_pair(1, 6, "bb:22", "aa:11", life=1),
    ]
    there = {"src_proc": 0, "dst_proc": 1, "src_name": "ib:aa:11", "dst_name": "ib:bb:22"}
    found = ends_of(endpoints, {"object": 1, **there}, {"object": 2, **there})
    again = " (connection 2)"
    assert found == [
        ("rank 0 QP 0x11", "rank 1 QP 0x22"),
        (f"rank 0 QP 0x11{again}", f"rank 1 QP 0x22{again}"),
    ]


def test_the_other_end_may_be_of_another_layer_or_unconnected() -> None:
    endpoints = [
        queue_pair(0, 1, "aa:11", "bb:22", **GPU_QP),
        queue_pair(1, 5, "bb:22", "aa:11"),
        queue_pair(0, 2, "aa:12", life=3),
        queue_pair(1, 6, "bb:23"),
        queue_pair(1, 7, "bb:24"),
        queue_pair(1, 8, "bb:24", life=1),
    ]
    sizes = [
        {"object": 1, "layer": Layer.MLX5DV, "src_name": "ib:aa:11", "dst_name": "ib:bb:22"},
        {"object": 2, "src_name": "ib:aa:12", "dst_name": "ib:bb:23"},
        {"object": 2, "src_name": "ib:aa:12", "dst_name": "ib:bb:24"},  # which one is not certain
    ]
    found = ends_of(endpoints, *({"src_proc": 0, "dst_proc": 1, **row} for row in sizes))
    assert sorted(found) == [
        ("rank 0 QP 0x11", "rank 1 QP 0x22"),
        ("rank 0 QP 0x12 (connection 4)", "rank 1 QP 0x23"),
        ("rank 0 QP 0x12 (connection 4)", "rank 1 ib:bb:24"),
    ]


def test_queue_pairs_of_one_number_on_two_nics_are_told_apart() -> None:
    endpoints = [queue_pair(0, 1, "aa:11", "bb:22"), queue_pair(0, 2, "cc:11", "bb:23")]
    rows = [
        {"object": thing, "src_proc": 0, "dst_proc": -1, "src_name": f"ib:{place}:11"}
        for thing, place in ((1, "aa"), (2, "cc"))
    ]
    assert ends_of(endpoints, *rows) == [
        ("rank 0 QP 0x11 (object 1)", ""),
        ("rank 0 QP 0x11 (object 2)", ""),
    ]


def test_sums_beyond_64_bits_are_not_judged() -> None:
    row = size_row(0, 1, WHOLE, Op.SEND, False, (2**63, 2**64 - 1), 1)
    table, account = communication(devices_run(), [row, {**row, "op": Op.PUT}])
    assert {r["size_bytes"] for r in table} == {2**64 - 1}
    assert account["byte_sums_beyond_u64"] == len(LEVELS) and len(account["balance"]) == len(LEVELS)
