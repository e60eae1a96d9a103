"""Findings: each is told where its table calls for it, and not where all is as usual."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.findings import MINOR, OF_A_KIND, Findings
from tests.factories import START_NS, make_run, make_table
from tests.unit.stages.message_run import tables

SECOND = 10**9
RANKS = 8
READ = tuple(name for name in Findings.requires if name != "processes")


def run_of(ranks: int = RANKS, facts: dict[str, object] | None = None, **given: Any) -> Run:
    """A run of 10 s."""
    times = {"base_ns": START_NS, "last_ns": START_NS + 10 * SECOND, **(facts or {})}
    run = make_run(times, processes=[{"host": f"node{k // 2}"} for k in range(ranks)])
    members = [{"proc": row["proc"]} for row in given.get("stragglers", [])]
    given = {"clock_quality": [{}] * ranks, "barrier_arrivals": members, **given}
    return run.with_results({n: make_table(STAGE_TABLES[n], given.get(n, [])) for n in READ})


def found(run: Run) -> list[tuple[str, str, float]]:
    rows = tables(Findings(), run)[0]["findings"]
    assert [row["position"] for row in rows] == list(range(len(rows)))
    weights = [row["weight"] for row in rows]
    assert weights == sorted(weights, reverse=True) and all(0 <= x <= 1 for x in weights)
    assert all(row["evidence"].split(" where ")[0] in (*READ, "wire_flows") for row in rows)
    return [(row["kind"], row["text"], pytest.approx(row["weight"])) for row in rows]


def shares(run: Run) -> list[float | None]:
    return [row["share"] for row in tables(Findings(), run)[0]["findings"]]


def stragglers(*last: tuple[int, int], barriers: int = 42, late_sender_ns: int = 0) -> list[Any]:
    return [
        {
            **{"proc": proc, "barriers": barriers, "last": count, "caused_ns": caused},
            "late_sender_ns": late_sender_ns,
        }
        for proc, (count, caused) in enumerate(last)
    ]


def test_who_comes_last() -> None:
    rows = stragglers((1, 10**6), (0, 0), (0, 0), (41, 7 * SECOND), *[(0, 0)] * 4)
    assert found(run_of(stragglers=rows, barriers=[{}] * 42)) == [
        (
            "straggler",
            "rank 3 came last at 41 of 42 barriers; the others waited 7 s for it together "
            "(10 % of their time)",
            0.1,
        )
    ]


def test_nobody_waits_for_more_than_all_the_time() -> None:
    rows = stragglers((42, 200 * SECOND), *[(0, 0)] * 7)
    ((_, text, weight),) = found(run_of(stragglers=rows, barriers=[{}] * 42))
    assert "(100 % of their time)" in text and weight == 1


def test_who_comes_last_seldom_but_by_far() -> None:
    rows = stragglers((5, 20 * SECOND), *[(5, SECOND // 10)] * 7, barriers=40)
    ((kind, text, _),) = found(run_of(stragglers=rows, barriers=[{}] * 40))
    assert kind == "straggler" and text.startswith("rank 0 came last at 5 of 40 barriers")


def test_barriers_where_all_take_turns() -> None:
    rows = stragglers(*[(5, 2 * SECOND)] * 8, barriers=40)
    spread = [{"spread_ns": 10**6 * k} for k in range(1, 41)]
    ((kind, text, weight),) = found(run_of(stragglers=rows, barriers=spread))
    assert (kind, weight) == ("barriers", 0.2)
    assert text.startswith("processes waited 20 % of their time at 40 barriers")
    assert "at most 40 ms" in text


def test_a_window_is_the_whole() -> None:
    rows = stragglers((42, 7 * SECOND), *[(0, 0)] * 7)
    window = {"window_ns": (START_NS + SECOND, START_NS + 3 * SECOND)}
    ((_, text, weight),) = found(run_of(stragglers=rows, barriers=[{}] * 42, facts=window))
    assert weight == 0.5 and "50 % of their time" in text


def test_gpus_of_a_process_wait_each_by_itself() -> None:
    """Of 8 processes with 2 GPUs each 15 wait for the last one, for as long as the run at most."""
    rows = stragglers((42, 120 * SECOND), *[(0, 0)] * 7)
    members = [{"proc": k // 2, "gpu": k % 2} for k in range(16)] * 3
    run = run_of(stragglers=rows, barriers=[{}] * 42, barrier_arrivals=members)
    ((_, text, weight),) = found(run)
    assert weight == 0.8 and "120 s for it together (80 % of their time)" in text
    rows[0]["caused_ns"] *= 2  # by a clock that nobody read at the end
    run = run_of(stragglers=rows, barriers=[{}] * 42, barrier_arrivals=members)
    ((_, text, weight),) = found(run)
    assert weight == 1.0 and "(100 % of their time)" in text


def test_a_late_sender_is_one_that_is_later_than_others() -> None:
    rows = stragglers(*[(0, 0)] * 8, barriers=0, late_sender_ns=SECOND)
    assert found(run_of(stragglers=rows)) == []
    rows[5]["late_sender_ns"] = 14 * SECOND
    ((kind, text, weight),) = found(run_of(stragglers=rows))
    assert (kind, weight) == ("late sender", 0.2)
    assert text == "receivers waited at most 14 s until rank 5 sent (20 % of the others' time)"


def pairs(**slow: Any) -> dict[str, list[dict[str, Any]]]:
    """A ring of 8 links, that from 2 to 3 as given; messages of 1000 bytes."""
    made: dict[str, list[dict[str, Any]]] = {"message_latency": [], "waits": [], "links": []}
    for src in range(RANKS):
        ends = {"src_proc": src, "dst_proc": (src + 1) % RANKS, "layer": 1}
        own = slow if src == 2 else {}
        count = own.get("messages", 100)
        size = own.get("size_bytes", 1000)
        median = own.get("p50_ns", 20_000)
        latency = {"messages": count, "p50_ns": median, "mean_ns": 20_000.0}
        latency["p50_least_ns"] = own.get("p50_least_ns", median)
        mean = float(size) if size else None
        made["message_latency"].append({**ends, **latency, "mean_bytes": mean})
        late = own.get("late_receiver_ns", 100)
        made["waits"].append({**ends, "transfer_ns": 2 * SECOND, "late_receiver_ns": late})
        times = {"first_ns": START_NS, "last_ns": START_NS + SECOND}
        made["links"].append({**ends, "operations": count, "size_bytes": count * size, **times})
    return made


def test_a_slow_link() -> None:
    assert found(run_of(**pairs())) == []
    ((kind, text, weight),) = found(run_of(**pairs(p50_ns=80_000)))
    assert (kind, weight) == ("slow link", 0.2)
    assert text == (
        "messages from rank 2 to rank 3 took 80 us in the median, 4 times as long as those of "
        "other pairs of about the same mean size (ofi); the receiver waited at most 2 s for them "
        "(20 % of the run)"
    )


def test_tables_of_pairs_may_be_in_any_order_and_have_other_pairs() -> None:
    want = found(run_of(**pairs(p50_ns=80_000)))
    made = pairs(p50_ns=80_000)
    del made["waits"][0]  # of another pair than the slow one
    made["waits"].reverse()
    made["waits"].append({"src_proc": 7, "dst_proc": 1, "layer": 1, "transfer_ns": 9 * SECOND})
    assert found(run_of(**made)) == want
    (slow,) = (row for row in made["message_latency"] if row["src_proc"] == 2)
    slow["layer"] = 4  # where there is no other pair
    assert found(run_of(**made)) == []


def test_pairs_whose_sizes_are_not_known_are_held_against_each_other() -> None:
    made = pairs(p50_ns=80_000)
    for row in made["message_latency"]:
        row["mean_bytes"] = None
    ((_, text, _),) = found(run_of(**made))
    assert "4 times as long as those of other pairs of unknown size (ofi)" in text


@pytest.mark.parametrize(
    "more",
    [{"size_bytes": 100_000}, {"size_bytes": 0}, {"p50_least_ns": 39_999}, {"p50_least_ns": None}],
)
def test_a_link_is_not_slow_whose_messages_are_large_or_unknown_or_slow_by_chance(
    more: dict[str, Any],
) -> None:
    assert found(run_of(**pairs(p50_ns=80_000, **more))) == []


def test_a_late_receiver() -> None:
    ((kind, text, weight),) = found(run_of(**pairs(late_receiver_ns=8 * 10**6)))
    assert (kind, weight) == ("late receiver", 0.5)
    assert "8 ms for rank 3 to receive them (50 % of the time of all messages, ofi)" in text


def test_a_pair_of_which_clocks_say_nothing_has_no_part_in_shares() -> None:
    made = pairs(late_receiver_ns=8 * 10**6)
    clocks = {"messages": 0, "backwards": 0, "p50_ns": None, "mean_ns": None, "p50_least_ns": None}
    made["message_latency"].append({"src_proc": 0, "dst_proc": 2, "layer": 1, **clocks})
    assert found(run_of(**made)) == found(run_of(**pairs(late_receiver_ns=8 * 10**6)))


def test_idle_links_are_told_of_where_others_are_busy() -> None:
    made = pairs()
    for row in made["links"]:
        row |= {"idle_ns": 6 * SECOND // 10, "longest_idle_ns": SECOND // 10}
    assert found(run_of(**made)) == []
    for row in made["links"][2:]:
        row["idle_ns"] = SECOND // 4
    run = run_of(**made)
    ((kind, text, weight),) = found(run)
    assert (kind, weight) == ("idle links", 0.06)
    assert text == (
        "2 of 8 links idle for 60 % or more of the time between their first and last operation, "
        "half of all for at most 25 %; the longest pause was 100 ms"
    )
    assert shares(run) == [None]


def step(kind: str, src: int, dst: int, ns: int) -> dict[str, Any]:
    return {"kind": kind, "from_proc": src, "proc": dst, "begin_ns": 0, "end_ns": ns}


def test_who_is_on_the_critical_path() -> None:
    path = [step("local", k, k, SECOND // 4) for k in range(8)]
    assert found(run_of(critical_path=path)) == []
    path += [step("local", 6, 6, 5 * SECOND), step("message", 1, 2, 3 * SECOND)]
    assert [(kind, weight) for kind, _, weight in found(run_of(critical_path=path))] == [
        ("critical path", 0.525),
        ("critical path", 0.3),
    ]
    texts = [text for _, text, _ in found(run_of(critical_path=path))]
    assert texts[0].endswith("is in rank 6")
    assert texts[1].endswith("is under way: messages from rank 1 to rank 2")


IMBALANCE = {
    **{"layer": 4, "members": 4, "egress_max": "a", "egress_min": "b", "ingress_max": "c"},
    **{"ingress_min": "d", "pair_src": "a", "pair_dst": "c", "egress_ratio": 1.0},
    **{"ingress_ratio": 1.0, "pair_ratio": 1.0},
}


def traffic(level: str, *amounts: int) -> list[dict[str, Any]]:
    return [
        {"level": level, "layer": 4, "src": f"x{k}", "dst": "y", "size_bytes": size}
        for k, size in enumerate(amounts)
    ] + [{"level": level, "layer": 4, "src": "y", "dst": "y", "size_bytes": 2**40}]


def test_uneven_traffic() -> None:
    uneven = {"egress_ratio": 3.0, "egress_max_bytes": 3 * 2**30, "egress_min_bytes": 2**30}
    rows = [{**IMBALANCE, "level": level, **uneven} for level in ("node", "rank")]
    between = [*traffic("node", 3 * 2**30, 2**30, 2**30, 2**30), *traffic("rank", 6 * 2**30)]
    # Ranks are as many as nodes, one on each: nothing new.
    assert found(run_of(imbalance=rows, communication=between)) == [
        ("imbalance", "a sent 3 GiB, 3 times as much as b (1 GiB)", 0.25)
    ]
    rows[1] |= {"members": 8, "egress_ratio": float("inf"), "egress_min_bytes": 0}
    texts = [text for _, text, _ in found(run_of(imbalance=rows, communication=between))]
    assert texts == ["a sent 3 GiB, and b (nothing)", "a sent 3 GiB, 3 times as much as b (1 GiB)"]


def test_a_heavy_pair() -> None:
    heavy = {"pair_ratio": 2.15, "pair_max_bytes": 1000, "pair_mean_bytes": 500.0}
    row = {**IMBALANCE, "level": "node", **heavy}
    assert found(run_of(imbalance=[row], communication=traffic("node", 2500, 2500))) == [
        ("heavy pair", "a sent 1000 B to c, 2.15 times as much as the mean pair of nodes", 0.1)
    ]


def test_processes_of_which_none_has_a_rank_are_no_ranks() -> None:
    heavy = {"pair_ratio": 2.15, "pair_max_bytes": 1000, "pair_mean_bytes": 500.0}
    row = {**IMBALANCE, "level": "rank", **heavy}
    run = run_of(imbalance=[row], communication=traffic("rank", 2500, 2500))
    processes = run.tables["processes"]
    at, none = processes.column_names.index("rank"), pa.array([-1] * RANKS, pa.int32())
    run = run.with_results({"processes": processes.set_column(at, "rank", none)})
    ((_, text, _),) = found(run)
    assert text.endswith("as much as the mean pair of processes")


def test_errors_come_first() -> None:
    errors = [
        {"proc": 2, "object": 1, "kind": "work completion", "status": 12, "count": 3},
        {"proc": 3, "object": 1, "kind": "work completion", "status": 5, "count": 1},
        {"proc": 4, "object": 1, "kind": "failed operation", "count": 1},
    ]
    rows = stragglers((42, 69 * SECOND), *[(0, 0)] * 7)
    told = found(run_of(errors=errors, stragglers=rows, barriers=[{}] * 42))
    assert [text for _, text, _ in told[:2]] == [
        "1 failed operation, most in rank 4 (1)",
        "4 work completions with an error, most in rank 2 (3 with status 12)",
    ]
    assert [kind for kind, _, _ in told] == ["errors", "errors", "straggler"]
    run = run_of(errors=errors, stragglers=rows, barriers=[{}] * 42)
    assert shares(run) == [None, None, pytest.approx(69 / 70)]


def test_packets_that_were_sent_again() -> None:
    flows = make_table(STAGE_TABLES["wire_flows"], [{"repeated": 2}, {}, {"repeated": 1}])
    ((kind, text, _),) = found(run_of().with_results({"wire_flows": flows}))
    assert (kind, text) == ("sent again", "3 packets sent again, in 2 flows of the capture")


def test_doubtful_messages() -> None:
    rows = [{"messages": 90, "backwards": 10, "uncertain": 40, "mean_ns": 1.0}]
    told = found(run_of(message_latency=rows))
    assert [(kind, weight) for kind, _, weight in told] == [("order", 0.4), ("clocks", 0.1)]
    assert told[1][1].startswith("10 of 100 messages were received before they were sent")


@pytest.mark.parametrize(
    ("error_ns", "weight"),
    [
        (10_000.0, 0.5),  # 20 us in all, as long as messages take; half of the ring is in a node
        (9999.0, None),
        (float("inf"), 0.5),
    ],
)
def test_latencies_of_which_clocks_do_not_tell(error_ns: float, weight: float | None) -> None:
    quality = [{"error_ns": error_ns}] * RANKS
    told = found(run_of(**pairs(), clock_quality=quality))
    assert [(kind, share) for kind, _, share in told] == ([("clocks", weight)] if weight else [])
    off = "by up to 20 us" if error_ns < float("inf") else "nobody knows by how much"
    assert all(
        text.startswith("between 4 of 8 pairs of processes half of the messages took no longer")
        and f"may be off each other ({off})" in text
        for _, text, _ in told
    )


def test_barriers_at_which_clocks_do_not_tell_who_came_last() -> None:
    rows = stragglers((0, 0), (10, 7 * SECOND), *[(0, 0)] * 6, barriers=10)
    barriers = [{"uncertain": k < 4} for k in range(10)]
    told = found(run_of(stragglers=rows, barriers=barriers))
    assert [(kind, weight) for kind, _, weight in told] == [("clocks", 0.4), ("straggler", 0.1)]
    assert "as much as 4 of 10 barriers lasted" in told[0][1]


def test_what_is_minor_or_more_of_the_same_is_counted() -> None:
    share = [0.2, 0.19, 0.18, 0.17, MINOR / 2]
    caused = [int(x * 70 * SECOND) for x in share]
    rows = stragglers(*((8, ns) for ns in caused), (0, 0), (0, 0), (0, 0), barriers=30)
    resolved, account, lines = tables(Findings(), run_of(stragglers=rows, barriers=[{}] * 30))
    kinds = [row["kind"] for row in resolved["findings"]]
    assert kinds.count("straggler") == OF_A_KIND
    assert (account["minor"], account["more_alike"]) == (1 + 2, 1)  # no doubtful messages, too
    assert lines[0].startswith("finding    ") and lines[-1].endswith("more in the table findings")


def test_of_nothing_there_is_nothing_to_find() -> None:
    for ranks in (0, 1, 8):
        assert found(run_of(ranks)) == []
