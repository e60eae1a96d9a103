from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.stages.kernels.traffic import bin_kernel, size_kernel
from sigmatrace.stages.traffic_sums import accumulate
from sigmatrace.trace_format import SIZE_BITS_UNKNOWN, OpFlag

SIZES = st.one_of(
    st.sampled_from([0, 1, 4096, 2**32 - 1, 2**63 - 1, 2**64 - 1]), st.integers(0, 2**64 - 1)
)


def value(sums: np.ndarray) -> int:
    return int(sums[2]) * 2**32 + int(sums[1])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 2**32 - 1]),
            st.sampled_from([1, 2, 9, 255]),
            st.integers(0, 127),
            SIZES,
        ),
        max_size=80,
    ),
    st.sampled_from([2, 8, 256]),
)
def test_sizes_match_a_dict_also_when_room_runs_out(rows, cells):
    dtypes = (np.uint32, np.uint8, np.uint8, np.uint64)
    arrays = tuple(np.array([row[i] for row in rows], d) for i, d in enumerate(dtypes))
    got = accumulate(size_kernel, arrays, cells)
    want = defaultdict(lambda: [0, 0])
    for channel, op, flags, size in rows:
        bits = SIZE_BITS_UNKNOWN if flags & OpFlag.SIZE_UNKNOWN else size.bit_length()
        key = channel << 17 | bits << 9 | op << 1 | (flags & OpFlag.NESTED > 0)
        want[key][0] += 1
        want[key][1] += size
    assert got.key.tolist() == sorted(want)
    assert [[int(s[0]), value(s)] for s in got.sums] == [want[key] for key in sorted(want)]


def test_classes_begin_at_the_powers_of_two():
    powers = [2**k for k in range(64)]
    sizes = np.array([0, *(x - 1 for x in powers), *powers, 2**64 - 1], np.uint64)
    channel, zero = np.arange(sizes.size, dtype=np.uint32), np.zeros(sizes.size, np.uint8)
    got = accumulate(size_kernel, (channel, zero, zero, sizes))
    assert (got.key >> 9 & 255).tolist() == [size.bit_length() for size in sizes.tolist()]


@settings(deadline=None)
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
            key = (proc + 1) << 39 | layer << 35 | op << 27 | (t >> shift) - (base >> shift)
            want[key][0] += 1
            want[key][1] += size
    assert got.key.tolist() == sorted(want)
    assert [[int(s[0]), value(s)] for s in got.sums] == [want[key] for key in sorted(want)]
