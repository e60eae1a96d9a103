"""Objects of rows against plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.lookup import find_objects

objects = st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 2, 7, 2**31, 2**32 - 1]))


@settings(deadline=None)  # the first call loads a kernel
@given(st.sets(objects), st.lists(objects, max_size=50))
def test_objects_are_found_as_a_dict_finds_them(known, rows):
    keys = sorted(proc << 32 | thing for proc, thing in known)
    proc = np.array([row[0] for row in rows], np.int32)
    thing = np.array([row[1] for row in rows], np.uint32)
    places = {key: at for at, key in enumerate(keys)}
    found = find_objects(np.array(keys, np.int64), proc, thing)
    assert found.tolist() == [places.get(p << 32 | t, -1) for p, t in rows]
