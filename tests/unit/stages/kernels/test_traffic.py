from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.stages.kernels.traffic import bin_kernel, pair_kernel
from sigmatrace.stages.traffic import accumulate

SIZES = st.sampled_from([0, 1, 4096, 2**32 - 1, 2**63 - 1, 2**64 - 1])
PROC = st.sampled_from([-1, 0, 1, 2**25 - 3])


def value(sums: np.ndarray) -> int:
    return int(sums[2]) * 2**32 + int(sums[1])


@given(
    st.lists(
        st.tuples(
            PROC,
            PROC,
            st.integers(0, 3),
            st.integers(0, 9),
            st.integers(0, 2),
            st.integers(0, 31),
            SIZES,
        ),
        max_size=80,
    ),
    st.sampled_from([1, 4, 256]),
)
def test_pairs_match_a_dict_also_when_room_runs_out(rows, cells):
    dtypes = (np.int32, np.int32, np.uint8, np.uint8, np.uint8, np.uint8, np.uint64)
    arrays = tuple(np.array([row[i] for row in rows], d) for i, d in enumerate(dtypes))
    got = accumulate(pair_kernel, arrays, cells)
    want = defaultdict(lambda: [0, 0, 0])
    for src, dst, layer, op, depth, flags, size in rows:
        key = (src + 1) << 38 | (dst + 1) << 13 | layer << 9 | op << 1 | (depth > 0)
        want[key][0] += 1
        want[key][1] += size
        want[key][2] += flags & 1
    assert got.key.tolist() == sorted(want)
    for key, sums in zip(got.key.tolist(), got.sums, strict=True):
        assert [int(sums[0]), value(sums), int(sums[3])] == want[key]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 9),
            st.sampled_from([0, 1, 16, 31, 32, 33, 63]),
            SIZES,
        ),
        max_size=80,
    ),
    st.integers(10, 14),
)
def test_bins_match_a_dict(rows, shift):
    base = 1_800_000_000 * 10**9
    dtypes = (np.int64, np.int32, np.uint8, np.uint8, np.uint8, np.uint64)
    moved = [(base + row[0], *row[1:]) for row in rows]
    t_ns, *rest = (np.array([row[i] for row in moved], d) for i, d in enumerate(dtypes))
    got = accumulate(bin_kernel, (t_ns, base >> shift, shift, *rest), 2)
    want = defaultdict(lambda: [0, 0])
    for t, proc, layer, op, flags, size in moved:
        if flags < 32:
            key = ((t >> shift) - (base >> shift)) << 37 | (proc + 1) << 12 | layer << 8 | op
            want[key][0] += 1
            want[key][1] += size
    assert got.key.tolist() == sorted(want)
    assert [[int(s[0]), value(s)] for s in got.sums] == [want[key] for key in sorted(want)]
