"""The kernels that put rows into order against plain Python."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.export.kernels.order import end_range, group_rows, pair_regions, sort_rows
from sigmatrace.trace_format import MarkKind


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=200))
def test_rows_are_sorted_as_python_sorts_them(rows):
    begin, length, depth = (np.array([r[k] for r in rows], np.int64) for k in range(3))
    order = np.arange(len(rows), dtype=np.uint32)
    sort_rows(order, begin, length, depth.astype(np.uint8))
    expected = sorted(range(len(rows)), key=lambda k: (rows[k][0], -rows[k][1], rows[k][2]))
    assert order.tolist() == expected


def test_a_long_nearly_sorted_track_is_sorted():
    random.seed(5)
    begin = np.arange(10_000) + np.array([random.randrange(50) for _ in range(10_000)])
    order = np.arange(begin.size, dtype=np.uint32)
    sort_rows(order, begin, np.zeros_like(begin), np.zeros(begin.size, np.uint8))
    assert order.tolist() == np.argsort(begin, kind="stable").tolist()


@given(st.lists(st.integers(0, 6)), st.booleans(), st.sampled_from([0, 3, 2**32 - 7]))
def test_grouping_keeps_the_order_within_a_group(keys, is_ascending, first):
    keys = sorted(keys) if is_ascending else keys
    order, starts = group_rows(np.array(keys, np.uint32) + np.uint32(first), first, 7)
    assert (len(starts), starts[0], starts[-1]) == (8, 0, len(keys))
    for key in range(7):
        mine = order[starts[key] : starts[key + 1]].tolist()
        assert mine == [row for row, k in enumerate(keys) if k == key]


def test_end_range_counts_slices_alone():
    order = np.arange(3, dtype=np.uint32)
    begin, length = np.array([5, 1, 90]), np.array([10, 8, 0])
    assert end_range(order, begin, length) == (9, 15)
    assert end_range(order[2:], begin, length) == (2**63 - 1, -(2**63))


def test_regions_pair_by_name_innermost_first():
    marks = [
        (MarkKind.END, 9), (MarkKind.BEGIN, 1), (MarkKind.BEGIN, 2), (MarkKind.BEGIN, 1),
        (MarkKind.END, 1), (MarkKind.END, 1), (MarkKind.END, 2), (MarkKind.BEGIN, 3),
    ]  # fmt: skip
    kind, name = (np.array([m[k] for m in marks]) for k in range(2))
    ends, strays = pair_regions(
        np.arange(len(marks), dtype=np.uint32),
        kind.astype(np.uint8),
        name.astype(np.uint32),
        MarkKind.BEGIN,
        MarkKind.END,
    )
    assert ends.tolist() == [-1, 5, 6, 4, -1, -1, -1, -1]
    assert strays == 1
