"""Latencies by pair and size, against plain sorted lists."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from sigmatrace.stages.latency import CHANCE, Latency
from tests.unit.stages.message_run import Row, balances, message, messages, run_of, tables


def percentile(ordered: list[int], percent: int) -> int:
    """The least one that so many per cent do not exceed."""
    return next(
        value
        for value in ordered
        if sum(one <= value for one in ordered) * 100 >= percent * len(ordered)
    )


def key_of(row: Row) -> tuple[int, int, int]:
    return row["src_proc"], row["dst_proc"], row["layer"]


def least_median(ordered: list[int], pairs: int) -> int | None:
    """The largest value at or below which there are by chance so few, as often as is allowed."""
    half = len(ordered) / 2
    fits = [k for k in range(len(ordered)) if k <= half]
    fits = [k for k in fits if pairs * math.exp(-2 * (half - k) ** 2 / len(ordered)) <= CHANCE]
    return ordered[fits[-1]] if fits else None


@given(messages)
def test_pairs_are_those_of_sorted_lists(rows: list[Row]) -> None:
    found, account, _ = tables(Latency(), run_of(rows))
    of_pair: dict[tuple[int, ...], list[Row]] = defaultdict(list)
    for row in rows:
        of_pair[key_of(row)].append(row)
    want = []
    for key, own in sorted(of_pair.items()):
        there = [row for row in own if row["latency_ns"] >= 0]
        latency = sorted(row["latency_ns"] for row in there)
        counts = len(there), len(own) - len(there), sum(row["uncertain"] for row in there)
        found_of: tuple[Any, ...] = (None,) * 6
        sizes = [row["size_bytes"] for row in there if row["sizes_known"]]
        mean = pytest.approx(float(Fraction(sum(sizes), len(sizes)))) if sizes else None
        if latency:
            least = least_median(latency, len({key_of(row) for row in rows}))
            edges = latency[0], percentile(latency, 50), least, percentile(latency, 99), latency[-1]
            found_of = (*edges, pytest.approx(float(Fraction(sum(latency), len(latency)))))
        want.append((*key, *counts, *found_of, mean))
    assert [tuple(row.values()) for row in found["message_latency"]] == want
    assert balances(account, len(rows))
    assert account["backwards"] == sum(row["latency_ns"] < 0 for row in rows)


@pytest.mark.parametrize("count", [1, 2, 3, 98, 99, 100, 101, 199, 200])
def test_percentiles_of_many(count: int) -> None:
    rows = [message(0, 1, 0, k) for k in range(1, count + 1)]
    (row,) = tables(Latency(), run_of(rows))[0]["message_latency"]
    want = [percentile(list(range(1, count + 1)), percent) for percent in (50, 99)]
    assert [row["p50_ns"], row["p99_ns"]] == want


@pytest.mark.parametrize("seed", range(20))
def test_the_least_median_of_pairs_that_are_alike_is_not_above_theirs(seed: int) -> None:
    """Half of the pairs' medians are: of so many, one is far above."""
    drawn = np.random.default_rng(seed).lognormal(10, 1, (12, 40)).astype(int).tolist()
    rows = [message(k // 4, k % 4, 0, ns) for k, of in enumerate(drawn) for ns in of]
    table = tables(Latency(), run_of(rows))[0]["message_latency"]
    assert (
        max(row["p50_ns"] for row in table)
        > math.exp(10)
        >= max(row["p50_least_ns"] for row in table)
    )


def limits(value: int) -> tuple[int, int]:
    """The powers of two between which a number lies, as in the table ``sizes``."""
    return (2 ** (value.bit_length() - 1), 2 ** value.bit_length() - 1) if value else (0, 0)


@given(messages)
def test_histogram_is_a_plain_counter(rows: list[Row]) -> None:
    found, _, _ = tables(Latency(), run_of(rows))
    want: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        size = limits(row["size_bytes"]) if row["sizes_known"] else (0, 2**64 - 1)
        time = limits(row["latency_ns"]) if row["latency_ns"] >= 0 else (-1, -1)
        want[row["layer"], *size, *time] += 1
    histogram = [tuple(row.values()) for row in found["latency_histogram"]]
    assert len(histogram) == len(want)
    assert {row[:-1]: row[-1] for row in histogram} == want


def test_means_of_latencies_that_have_no_sum_in_64_bits() -> None:
    far = {"latency_ns": 2**62 + 1, "receive_ns": 0}
    found, _, _ = tables(Latency(), run_of([message(0, 1, 0, 1, **far) for _ in range(5)]))
    (row,) = found["message_latency"]
    assert row["mean_ns"] == pytest.approx(2**62) and row["p50_ns"] == 2**62 + 1
    assert {row["most_ns"] for row in found["latency_histogram"]} == {2**63 - 1}


def test_lines_name_the_quickest_and_the_slowest_pair() -> None:
    rows = [message(0, 1, 0, 2000), message(1, 2, 0, 70_000), message(1, 2, 5, 3_000_005)]
    rows += [message(2, 0, 5, 4), message(1, 2, 5, 0)]  # clocks: these have no latency
    _, _, lines = tables(Latency(), run_of(rows))
    assert lines == [
        "latency    ofi, 2 pairs: median 2 us (rank 0 -> rank 1) to 70 us (rank 1 -> rank 2)"
    ]
    assert tables(Latency(), run_of([]))[2] == []
