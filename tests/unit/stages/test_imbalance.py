"""How uneven members are, against plain sums."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.imbalance import Imbalance, ratio
from sigmatrace.trace_format import Layer
from tests.factories import make_table
from tests.unit.stages.devices_run import devices_run

Row = dict[str, Any]
RANKS = [f"rank {n}" for n in range(4)]


def imbalance(rows: list[Row], of: Run | None = None) -> tuple[list[Row], Row, list[str]]:
    stage = Imbalance()
    whole = [{"level": "rank", "layer": Layer.VERBS, "operations": 1, **row} for row in rows]
    table = make_table(STAGE_TABLES["communication"], whole)
    run = (of or devices_run()).with_results({"communication": table})
    resolved = stage.survey(run)
    made = stage.results(resolved)["imbalance"]
    assert made.schema.equals(make_table(STAGE_TABLES["imbalance"], []).schema)
    return made.to_pylist(), dict(stage.account(resolved)), list(stage.lines(resolved, run))


ends = st.sampled_from([*RANKS, ""])
pairs = st.dictionaries(st.tuples(ends, ends), st.integers(0, 2**62), min_size=1, max_size=20)


@given(pairs)
def test_numbers_are_those_of_plain_sums(amounts: dict[tuple[str, str], int]) -> None:
    rows = [{"src": s, "dst": d, "size_bytes": n} for (s, d), n in amounts.items()]
    (row,), account, _ = imbalance(rows)
    assert row["members"] == 4
    for way, at in (("egress", 0), ("ingress", 1)):
        sums = Counter(dict.fromkeys(RANKS, 0))
        for ends_of, n in amounts.items():
            if ends_of[0] != ends_of[1] and ends_of[at]:
                sums[ends_of[at]] += n
        most, least = min(max(sums.values()), 2**64 - 1), min(sums.values())
        assert (row[f"{way}_max_bytes"], row[f"{way}_min_bytes"]) == (most, least)
        assert sums[row[f"{way}_max"]] >= most and sums[row[f"{way}_min"]] == least
        want = 1.0 if most == least else most / least if least else float("inf")
        assert row[f"{way}_ratio"] == pytest.approx(want)
    between = {k: n for k, n in amounts.items() if n and all(k) and k[0] != k[1]}
    if between:
        mean = Fraction(sum(between.values()), len(between))
        heaviest = max(between.values())
        assert between[row["pair_src"], row["pair_dst"]] == row["pair_max_bytes"] == heaviest
        assert row["pair_mean_bytes"] == pytest.approx(float(mean))
        assert row["pair_ratio"] == pytest.approx(float(heaviest / mean))
    else:
        assert (row["pair_src"], row["pair_max_bytes"], row["pair_ratio"]) == ("", 0, 1.0)
    told = account["levels"]["rank"]
    assert sum(told.values()) == sum(amounts.values())
    assert told["own_bytes"] == sum(n for (s, d), n in amounts.items() if s == d and s)


def test_who_could_have_had_traffic_and_had_none_counts() -> None:
    rows = [
        {"level": "nic", "src": "m0 port 1 (a)", "dst": "m1 port 2 (a)", "size_bytes": 5},
        {"level": "node", "src": "a", "dst": "b", "size_bytes": 5},
        {"level": "qp", "src": "rank 0 QP 0x11", "dst": "rank 1 QP 0x22", "size_bytes": 5},
        {"level": "gpu", "src": "rank 0 GPU 3 (H)", "dst": "", "size_bytes": 5},
    ]
    table, _, _ = imbalance(rows)
    members = {row["level"]: row["members"] for row in table}
    assert members == {"qp": 2, "gpu": 5, "nic": 2, "node": 3}
    node = next(row for row in table if row["level"] == "node")
    assert (node["egress_min"], node["egress_min_bytes"]) == ("b", 0)
    assert node["egress_ratio"] == node["ingress_ratio"] == float("inf")


@pytest.mark.parametrize(("ranks", "members"), [((0, 1, -1, -1), 3), ((-1,) * 4, 4)])
def test_a_process_without_a_rank_is_a_member_if_it_had_traffic_or_none_has_one(
    ranks: tuple[int, ...], members: int
) -> None:
    of = devices_run()
    at = of.tables["processes"].column_names.index("rank")
    processes = of.tables["processes"].set_column(at, "rank", pa.array(ranks, pa.int32()))
    rows = [{"src": "rank 2", "dst": "rank 0", "size_bytes": 3}]
    ((row,), _, _) = imbalance(rows, of.with_results({"processes": processes}))
    assert row["members"] == members and row["egress_max"] == "rank 2"


def test_processes_of_which_none_has_a_rank_are_not_called_ranks() -> None:
    of = devices_run()
    at = of.tables["processes"].column_names.index("rank")
    none = of.tables["processes"].set_column(at, "rank", pa.array([-1] * 4, pa.int32()))
    rows = [{"src": "rank 2", "dst": "rank 0", "size_bytes": 3}]
    (line,) = imbalance(rows, of.with_results({"processes": none}))[2]
    assert line.startswith("imbalance  verbs, 4 processes: ")


def test_layers_are_apart_and_levels_in_their_order() -> None:
    rows = [
        {"level": level, "layer": layer, "src": "x", "dst": "y", "size_bytes": 2 + layer}
        for layer in (Layer.OFI, Layer.VERBS)
        for level in ("node", "qp")
    ]
    table, account, _ = imbalance(rows)
    keys = [(row["level"], row["layer"], row["pair_max_bytes"]) for row in table]
    assert keys == [("qp", 1, 3), ("qp", 4, 6), ("node", 1, 3), ("node", 4, 6)]
    assert account["levels"]["node"]["between_bytes"] == 9


def test_the_summary_tells_of_ranks_and_nodes() -> None:
    rows = [
        {"src": RANKS[k], "dst": RANKS[(k + 1) % 4], "size_bytes": n << 20}
        for k, n in enumerate((30, 10, 10, 10))
    ]
    _, _, lines = imbalance(rows)
    assert lines == [
        "imbalance  verbs, 4 ranks: sent 3 to 1 (rank 0 30 MiB, rank 1 10 MiB); "
        "rank 0 -> rank 1 2 times the mean pair"
    ]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((10, 10, 10, 10), "all sent 10 MiB"),
        ((10240, 10240, 10240, 10239), "all sent about 10 GiB"),
        ((10, 10, 10, 0), "sent unevenly (rank 0 10 MiB, rank 3 nothing)"),
        ((10, 10, 10, 5), "sent 2 to 1 (rank 0 10 MiB, rank 3 5 MiB); rank 0 -> rank 1 1.14 times"),
    ],
)
def test_the_summary_says_no_more_than_there_is(sizes: tuple[int, ...], said: str) -> None:
    rows = [
        {"src": RANKS[k], "dst": RANKS[(k + 1) % 4], "size_bytes": n << 20}
        for k, n in enumerate(sizes)
        if n
    ]
    (line,) = imbalance(rows)[2]
    assert line.removesuffix(" the mean pair") == f"imbalance  verbs, 4 ranks: {said}"


def test_the_summary_names_no_pair_where_none_is_known() -> None:
    rows = [{"src": RANKS[k], "dst": "", "size_bytes": 10 << 20} for k in range(4)]
    assert imbalance(rows)[2] == [
        "imbalance  verbs, 4 ranks: all sent 10 MiB; to ends that are not known"
    ]


def test_no_traffic_is_no_imbalance() -> None:
    assert imbalance([])[0] == []
    assert [ratio(0, 0), ratio(3, 0), ratio(3, 2)] == [1.0, float("inf"), 1.5]
