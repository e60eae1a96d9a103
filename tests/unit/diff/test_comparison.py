"""Two sides of tables by hand: who is who, what changed, and by how much."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from sigmatrace.diff.comparison import Comparison, compare
from sigmatrace.diff.identity import ordinals, packed
from sigmatrace.diff.quality import attention, noise_text, side_text
from sigmatrace.diff.words import relative_text, sentence
from sigmatrace.errors import QueryError
from tests.diff_runs import BOOK, made

VERBS = 4
THRESHOLD = 0.05


def sent(src: str, dst: str, size: int, level: str = "rank", count: int = 1) -> dict[str, Any]:
    return {"level": level, "layer": VERBS, "src": src, "dst": dst, "operations": count,
            "size_bytes": size}  # fmt: skip


def rows(found: Comparison, kind: str, measure: str, **options: bool) -> dict[str, Any]:
    return {
        row["name"]: row
        for row in found.rows(**options)
        if (row["kind"], row["measure"]) == (kind, measure)
    }


def amounts(found: Comparison, kind: str, measure: str) -> dict[str, tuple[Any, Any]]:
    every = rows(found, kind, measure, every=True)
    return {name: (row["a"], row["b"]) for name, row in every.items()}


def test_a_pair_with_more_bytes() -> None:
    a = made(communication=[sent("rank 0", "rank 1", 1000), sent("rank 1", "rank 2", 500)])
    b = made(communication=[sent("rank 1", "rank 2", 500), sent("rank 0", "rank 1", 1300)])
    found = compare([a], [b], THRESHOLD)
    (row,) = rows(found, "rank_pair", "size_bytes").values()
    assert (row["name"], row["layer"], row["unit"]) == ("rank 0 -> rank 1", "verbs", "bytes")
    assert (row["a"], row["b"], row["change"]) == (1000, 1300, 300)
    assert row["relative"] == pytest.approx(0.3) and row["weight"] == pytest.approx(300 / 1800)
    assert row["status"] == "changed" and row["verdict"] == "" and row["p"] is None
    assert amounts(found, "rank", "sent_size_bytes")["rank 0"] == (1000, 1300)
    assert amounts(found, "rank", "received_size_bytes")["rank 1"] == (1000, 1300)
    assert amounts(found, "run", "size_bytes") == {"": (1500, 1800)}
    assert not rows(found, "rank_pair", "operations")


def test_the_threshold_is_reached_or_not() -> None:
    a, b = (made(communication=[sent("rank 0", "rank 1", size)]) for size in (1000, 1050))
    assert compare([a], [b], 0.05).count() > 0
    assert compare([a], [b], 0.0501).count() == 0
    assert compare([a], [a], 0.0).count() == 0


def test_what_only_one_side_has() -> None:
    a = made(communication=[sent("rank 0", "rank 1", 10)])
    b = made(communication=[sent("rank 1", "rank 0", 20)])
    found = rows(compare([a], [b], THRESHOLD), "rank_pair", "size_bytes")
    assert {name: row["status"] for name, row in found.items()} == {
        "rank 0 -> rank 1": "disappeared",
        "rank 1 -> rank 0": "appeared",
    }
    gone, new = found["rank 0 -> rank 1"], found["rank 1 -> rank 0"]
    assert (gone["b"], gone["relative"]) == (0, -1) and np.isinf(new["relative"])
    assert relative_text(new) == "from 0"


def test_latency_of_a_pair_that_one_side_lacks_is_not_compared() -> None:
    row = {"layer": VERBS, "src_proc": 0, "dst_proc": 1, "messages": 1, "p50_ns": 9, "p99_ns": 9}
    found = compare([made(message_latency=[row])], [made()], THRESHOLD)
    (one,) = rows(found, "latency", "p50_ns", every=True).values()
    assert (one["status"], one["a"], one["b"], one["change"]) == ("only a", 9, None, None)
    assert found.one_sided >= 2 and not rows(found, "latency", "p50_ns")


def test_queue_pairs_by_their_place_among_those_of_a_pair() -> None:
    numbers = [(0x9, 0x21), (0x10A, 0x22), (0x10B, 0x20)]

    def run(offset: int, sizes: list[int], order: list[int]) -> Any:
        qps = [
            sent(f"rank 0 QP 0x{src + offset:x}", f"rank 1 QP 0x{dst + offset:x}", size, "qp")
            for (src, dst), size in zip(numbers, sizes, strict=True)
        ]
        return made(communication=[qps[at] for at in order])

    found = compare([run(0, [1, 2, 3], [2, 0, 1])], [run(0x40, [1, 2, 9], [0, 1, 2])], THRESHOLD)
    assert amounts(found, "queue_pair", "size_bytes") == {
        "rank 0 -> rank 1, number 1": (1, 1),
        "rank 0 -> rank 1, number 2": (2, 2),
        "rank 0 -> rank 1, number 3": (3, 9),
    }


def test_endpoints_and_ends_that_are_not_known() -> None:
    def run(port: int) -> Any:
        name = f"ofi:tcp/rdm:10.0.0.0:{port}"
        return made(
            processes=[{}, {"label": "pid 7 @h", "rank": -1}],
            communication=[
                sent(f"rank 0 {name}", "", 5, "qp"),
                sent(f"pid 7 @h {name}", f"rank 0 {name}", 6, "qp"),
                sent("", "rank 0", 7),
            ],
        )

    found = compare([run(1024)], [run(40_000)], THRESHOLD)
    assert found.count() == 0
    assert amounts(found, "queue_pair", "size_bytes") == {
        "rank 0 -> unknown, number 1": (5, 5),
        "process 1 without a rank -> rank 0, number 1": (6, 6),
    }
    assert amounts(found, "rank_pair", "size_bytes") == {"unknown -> rank 0": (7, 7)}


def test_hosts_by_their_lowest_rank_where_they_differ() -> None:
    def run(first: str, second: str, size: int) -> Any:
        hosts = [{"host": first}, {"host": second}, {"host": second}]
        return made(processes=hosts, communication=[sent(first, second, size, "node")])

    a, b = run("n1", "n2", 10), run("n8", "n1", 30)
    found = compare([a], [b], THRESHOLD)
    name = "host of rank 0 -> host of rank 1"
    assert amounts(found, "host_pair", "size_bytes") == {name: (10, 30)}
    assert any("hosts differ" in text for text in attention([a], [b]))
    same = compare([a], [run("n1", "n2", 30)], THRESHOLD)
    assert amounts(same, "host_pair", "size_bytes") == {"n1 -> n2": (10, 30)}


def test_an_operation_that_changed_and_sizes() -> None:
    def run(op: int) -> Any:
        row = {"layer": VERBS, "op": op, "count": 8, "size_bytes": 800}
        nested = {**row, "nested": 1, "count": 99}
        sizes = [{**row, "least_bytes": 64, "most_bytes": 127},
                 {**row, "least_bytes": 0, "most_bytes": 2**64 - 1, "count": 1},
                 {**row, "least_bytes": 2**63, "most_bytes": 2**64 - 1, "count": 2},
                 {**row, "least_bytes": 0, "most_bytes": 0, "count": 3}]  # fmt: skip
        traffic = [{key: one[key] for key in one} for one in (row, nested)]
        return made(traffic=traffic, sizes=sizes)

    found = compare([run(1)], [run(3)], THRESHOLD)
    assert amounts(found, "operation", "operations") == {"send": (8, 0), "put": (0, 8)}
    assert amounts(found, "size", "operations") == {
        f"{op} of {size}": (count, 0) if op == "send" else (0, count)
        for op in ("send", "put")
        for size, count in (
            ("64 B to below 128 B", 8), ("unknown size", 1), ("8 EiB to below 16 EiB", 2),
            ("0 B", 3),
        )
    }  # fmt: skip


def test_barriers_by_name_and_order_and_who_came_last() -> None:
    def run(spreads: list[int], last: list[int]) -> Any:
        barriers = [
            {"barrier": n, "kind": "region", "name": "barrier", "first_ns": 100 * n,
             "spread_ns": spread, "last_proc": proc}
            for n, (spread, proc) in enumerate(zip(spreads, last, strict=True))
        ]  # fmt: skip
        phase = {"kind": "phase", "first_ns": 5, "spread_ns": 1, "last_proc": 0}
        times = [{"proc": n, "last": last.count(n)} for n in range(4)]
        return made(barriers=[*reversed(barriers), phase], stragglers=times)

    found = compare([run([10, 20, 30], [1, 1, 1])], [run([10, 20, 90, 5], [1, 1, 3, 3])], THRESHOLD)
    row = rows(found, "barrier", "spread_ns")["barrier, number 3"]
    assert (row["a"], row["b"], row["verdict"]) == (30, 90, "worse")
    assert (row["last_a"], row["last_b"]) == ("rank 1", "rank 3")
    assert amounts(found, "barrier", "barriers")["barrier"] == (3, 4)
    assert amounts(found, "barrier", "mean_spread_ns")["phases of traffic"] == (1, 1)
    assert amounts(found, "rank", "last")["rank 3"] == (0, 2)
    part = next(one for one in found.parts if one.measure.name == "spread_ns")
    text = "barrier, number 3: spread 30 ns -> 90 ns (+200 %, worse, last rank 3, was rank 1)"
    assert sentence(part.measure, row) == text


def test_barriers_that_clocks_do_not_order() -> None:
    row = {"kind": "region", "name": "barrier", "spread_ns": 9, "last_proc": 1, "uncertain": True}
    sure, unsure = made(barriers=[{**row, "uncertain": False}]), made(barriers=[row])
    text = "1 of 1 barrier: clocks do not tell who came first and last, and how far apart"
    assert attention([sure], [unsure]) == [f"B (run): {text}"]
    (one,) = rows(compare([sure], [unsure], 0), "barrier", "spread_ns", every=True).values()
    assert (one["last_a"], one["last_b"]) == ("rank 1", "")


def test_pairs_without_a_latency_do_not_count() -> None:
    row = {"layer": VERBS, "src_proc": 0, "dst_proc": 1, "messages": 2, "p50_ns": 8, "p99_ns": 9}
    none = {**dict.fromkeys(("p50_ns", "p99_ns", "mean_ns")), "layer": VERBS, "src_proc": 1}
    a = made(message_latency=[{**row, "mean_ns": 8.5}, {**none, "backwards": 3}])
    b = made(
        message_latency=[
            {**row, "mean_ns": 8.5},
            {**row, "src_proc": 1, "dst_proc": 0, "mean_ns": 6.5},
        ]
    )
    found = compare([a], [b], THRESHOLD)
    assert amounts(found, "run", "mean_ns") == {"": (8.5, 7.5)}
    latency = rows(found, "latency", "p50_ns", every=True)
    assert {name: one["status"] for name, one in latency.items()} == {
        "rank 0 -> rank 1": "same", "rank 1 -> rank 0": "only b"
    }  # fmt: skip
    assert rows(found, "latency", "p50_ns") == {}


def test_errors_are_worse() -> None:
    row = {"proc": 2, "layer": VERBS, "kind": "work completion", "status": 12, "count": 3}
    found = compare([made()], [made(errors=[row])], THRESHOLD)
    (one,) = found.rows()
    assert (one["name"], one["b"]) == ("rank 2: work completion, status 12", 3)
    assert one["verdict"] == "worse" and found.count(lambda part: part.worse) == 1
    assert compare([made(errors=[row])], [made()], THRESHOLD).count(lambda part: part.better) == 1


def test_several_runs_a_side() -> None:
    def side(sizes: list[int]) -> list[Any]:
        return [
            made(communication=[sent("rank 0", "rank 1", size), sent("rank 1", "rank 0", 7)])
            for size in sizes
        ]

    noisy = compare(side([100, 150, 80]), side([120, 160, 110]), THRESHOLD)
    assert noisy.count() == 0 and noisy.is_noise_known
    found = compare(side([100, 101, 102]), side([200, 201, 202]), THRESHOLD)
    row = rows(found, "rank_pair", "size_bytes")["rank 0 -> rank 1"]
    assert (row["a"], row["b"], row["spread"]) == (101, 201, 1) and row["p"] < 0.01
    assert "measured from 3 + 3 runs" in noise_text(found)
    few = compare(side([100, 101]), side([200]), THRESHOLD)
    assert "runs are few" in noise_text(few)


def test_what_speaks_against_comparing() -> None:
    lost = copy.deepcopy(BOOK)
    lost["lossless"] = False
    lost["capture"]["bytes"]["cut"] = 217
    lost["capture"]["files"] = [{"path": "x/y.msgpack", "cut": 217}]
    a = made("first", processes=[{"mode": "full"}] * 4)
    b = made("second", lost, processes=[{"mode": "simple"}] * 3)
    texts = attention([a], [b])
    assert texts[0] == "B (second): 217 bytes cut (y.msgpack)"
    assert "B (second) has 3 of 4 processes; missing: rank 3" in texts
    assert "the mode of processes differs: A full; B simple" in texts
    assert attention([a], [a]) == []
    assert side_text([b]) == "second: 1 run of 3 processes on 2 hosts"


def test_windows_of_unlike_length() -> None:
    def window(begin: int, end: int) -> Any:
        book = copy.deepcopy(BOOK)
        book["capture"]["window"] = {"begin_ns": begin, "end_ns": end}
        return made("run", book, chunk_times=[{"first_ns": 0, "last_ns": 10**9}],
                    communication=[sent("rank 0", "rank 1", 100)])  # fmt: skip

    a, b = window(0, 10**8), window(10**8, 2**62)
    assert (a.duration_ns, b.duration_ns) == (10**8, 9 * 10**8)
    assert "time that was looked at differs" in attention([a], [b])[0]
    found = compare([a], [b], THRESHOLD)
    assert amounts(found, "run", "bandwidth") == {"": (1000, pytest.approx(1000 / 9))}
    assert not amounts(found, "run", "duration_ns")
    assert attention([a], [window(10**8, 2 * 10**8)]) == []


def test_what_does_not_fit_into_a_key_is_refused() -> None:
    assert ordinals(np.array([5, 3, 5, 5]), np.array([9, 0, 1, 5])).tolist() == [2, 0, 0, 1]
    assert ordinals(np.zeros(0, np.int64), np.zeros(0, np.int64)).size == 0
    with pytest.raises(QueryError, match="more than 4"):
        packed((np.array([4]), 2))


def test_processes_of_one_rank_are_told_apart() -> None:
    twice = [{"label": "rank 0 pid 5", "rank": 0}, {"label": "rank 0 pid 6", "rank": 0}]
    again = [{"label": "rank 0 pid 8", "rank": 0}, {"label": "rank 0 pid 9", "rank": 0}]
    a = made(processes=twice, communication=[sent("rank 0 pid 5", "rank 0 pid 6", 3)])
    b = made(processes=again, communication=[sent("rank 0 pid 8", "rank 0 pid 9", 3)])
    found = compare([a], [b], THRESHOLD)
    assert amounts(found, "rank_pair", "size_bytes") == {"rank 0 -> rank 0 (process 2)": (3, 3)}


def test_what_is_said_of_clocks_points_to_nothing_that_is_not_there() -> None:
    named = {"count": 2, "first": ["node0", "node1"]}
    book = {**BOOK, "stages": {"clock": {"messages": {"not_checked": named}}}}
    (told,) = attention([made(book=book)], [made()])
    assert told.startswith("A (run): 2 clocks not compared with those of other hosts: times")
