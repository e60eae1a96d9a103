"""Look-ups of rows in tables of several columns."""

from __future__ import annotations

import numpy as np

from sigmatrace.stages.topology_names import find, one_of


def test_find_and_one_of():
    table = (np.array([1, 2, 1]), np.array([5, 6, 5]))
    assert find(table, (np.array([1, 2, 2]), np.array([5, 5, 6]))).tolist() == [0, -1, 1]
    assert one_of(np.array([0, 0, 2, 2]), 4, np.array([3, 3, 1, 2])).tolist() == [3, -1, -2, -1]
