from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.stages.sums import add_all, sums_of

VALUE = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**32 - 1, 2**32]))
ROWS = st.lists(st.tuples(st.one_of(st.integers(0, 9), VALUE), st.integers(1, 9), VALUE))


def made(rows):
    key = np.array([row[0] for row in rows], np.uint64)
    low = np.array([row[2] & 2**32 - 1 for row in rows], np.uint64)
    high = np.array([row[2] >> 32 for row in rows], np.uint64)
    count = np.array([row[1] for row in rows], np.uint64)
    return sums_of(key, np.stack([count, low, high, count], axis=1))


@settings(deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=9), st.booleans())
def test_sums_over_parts_are_those_of_a_dict(parts, are_apart):
    """Apart: the keys of each part lie behind those of the part before it."""
    if are_apart:
        parts = [[(at * 16 + key % 16, *x) for key, *x in part] for at, part in enumerate(parts)]
    total = add_all([made(part) for part in parts])
    counts, values = Counter(), Counter()
    for key, count, value in (row for part in parts for row in part):
        counts[key] += count
        values[key] += value
    assert total.key.tolist() == sorted(counts)
    for key, (count, low, high, more) in zip(total.key.tolist(), total.sums.tolist(), strict=True):
        assert count == more == counts[key]
        assert low < 2**32
        assert high * 2**32 + low == values[key]
