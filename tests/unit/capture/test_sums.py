"""Sums over chunks against plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.capture.index import CHUNK
from sigmatrace.capture.sums import SCHEMAS, gaps, numbered, records

ROWS = st.tuples(
    st.integers(0, 3),
    st.integers(1, 3) | st.just(255),
    st.sampled_from([0, 7, 2**32 - 1]),
    st.integers(0, 5) | st.sampled_from([2**63, 2**64 - 1]),
    st.integers(0, 2**32 - 1),
)
"""Process, schema, thread, number and records of a chunk."""


def chunks_of(rows: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    chunks = np.zeros(len(rows), CHUNK)
    for at, name in enumerate(("schema", "thread", "seq", "count"), 1):
        chunks[name] = [row[at] for row in rows]
    return np.array([row[0] for row in rows], np.int32), chunks


@given(st.lists(ROWS, max_size=30))
def test_records_are_added_up(rows: list[tuple[int, ...]]) -> None:
    want = Counter[tuple[int, int]]()
    for proc, schema, _, _, count in rows:
        want[proc, schema] += count
    found = records(*chunks_of(rows), 4)
    assert found.shape == (4, SCHEMAS)
    there = {(proc, schema): int(found[proc, schema]) for proc, schema in np.argwhere(found)}
    assert there == +want


@given(st.lists(ROWS, max_size=30))
def test_gaps_are_the_numbers_below_the_largest_that_are_not_there(
    rows: list[tuple[int, ...]],
) -> None:
    seqs: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for proc, schema, thread, seq, _ in rows:
        seqs[proc, schema, thread].add(seq)
    want = Counter[int]()
    for (_, schema, _), found in seqs.items():
        want[schema] += max(found) + 1 - len(found)
    assert gaps(*chunks_of(rows)) == +want


def test_rows_know_their_part() -> None:
    parts = [np.zeros(count, CHUNK) for count in (2, 0, 3)]
    parts[2]["count"] = [5, 6, 7]
    numbers, rows = numbered(parts)
    assert numbers.tolist() == [0, 0, 2, 2, 2]
    assert rows["count"].tolist() == [0, 0, 5, 6, 7]
    assert rows.dtype == CHUNK
