from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.schema import NO_GROUP
from sigmatrace.stages.kernels.rows import number_rows_kernel
from sigmatrace.stages.kernels.topology import ends_kernel, fate_kernel, transport_kernel
from sigmatrace.trace_format import OP_CLASS

SMALL = st.sampled_from([0, 1, 2, 2**32, 2**63, 2**64 - 1])


@given(st.lists(st.tuples(SMALL, SMALL, SMALL), max_size=60))
def test_number_rows_matches_a_dict(rows):
    keys = np.array(rows, np.uint64).reshape(len(rows), 3)
    out = np.empty(len(rows), np.int64)
    count = number_rows_kernel(keys, np.full(128, -1, np.int64), out)
    seen: dict[tuple[int, ...], int] = {}
    want = [seen.setdefault(row, len(seen)) for row in rows]
    assert out.tolist() == want
    assert count == len(seen)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 3)), max_size=40))
def test_route_matches_python(rows):
    channels = [(0, 1, 5, 0, 2, 1), (1, -1, NO_GROUP, 4, 3, 0), (2, 0, NO_GROUP, 1, 1, 1)]
    dtypes = (np.int32, np.int32, np.uint32, np.uint8, np.uint8, np.uint8)
    per = [np.array([c[i] for c in channels], dtype) for i, dtype in enumerate(dtypes)]
    channel, op, proc = (
        np.array([row[i] for row in rows], dtype)
        for i, dtype in enumerate((np.uint32, np.uint8, np.int32))
    )
    out = [np.empty(len(rows), dtype) for dtype in dtypes]
    ends_kernel(channel, op, proc, OP_CLASS, *per[:2], *out[:2])
    fate_kernel(channel, op, OP_CLASS, *per[2:4], *out[2:4])
    transport_kernel(channel, *per[4:], *out[4:])
    for row, got in zip(rows, zip(*(o.tolist() for o in out), strict=True), strict=True):
        c, o, p = row
        if c < 3:
            src, dst, group, fate, layer, lossy = channels[c]
        else:
            src, dst = (-1, p) if o == 2 else (p, -1)
            group, fate, layer, lossy = NO_GROUP, 3, 0, 0
        fate = fate if o in (1, 2, 10) else 1 if o in (3, 4, 5, 6) else 2
        assert got == (src, dst, group if fate == 0 else NO_GROUP, fate, layer, lossy)
