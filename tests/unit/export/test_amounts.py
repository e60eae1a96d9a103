"""Sums of amounts by place, against plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.export.amounts import added

AMOUNTS = st.integers(0, 2**64 - 1) | st.sampled_from([2**32 - 1, 2**32, 2**63, 2**64 - 1])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), AMOUNTS)))
def test_sums_are_exact_up_to_the_most_of_64_bits(rows: list[tuple[int, int, int]]) -> None:
    one, other = (np.array([row[k] for row in rows], np.int64) for k in (0, 1))
    found = added((3, 2), (one, other), np.array([row[2] for row in rows], np.uint64))
    assert found.dtype == np.uint64
    for place, value in np.ndenumerate(found):
        whole = sum(amount for row, column, amount in rows if (row, column) == place)
        assert int(value) == min(whole, 2**64 - 1)
