from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.stages import traffic_sums
from sigmatrace.stages.traffic_sums import bin_shift, sum_operations
from sigmatrace.trace_format import SIZE_BITS_UNKNOWN, Layer, OpFlag
from tests.factories import START_NS, make_partition, make_run

CHANNELS = [(0, Layer.UCP), (0, Layer.UCT), (1, Layer.UCP), (1, Layer.UCP), (2, 200)]
NARROW = st.sampled_from([0, 1, 2, 3, 4096, 2**32 - 1])
WIDE = st.one_of(NARROW, st.sampled_from([2**32, 2**64 - 1]))


def rows(sizes):
    """Rows: time, channel (the last one is not known), operation, flags, size."""
    row = st.tuples(
        st.one_of(st.integers(0, 5000), st.integers(0, 10**9)),
        st.integers(0, len(CHANNELS)),
        st.sampled_from([1, 2, 3, 9, 255]),
        st.sampled_from([0, 1, 16, 32, 33, 64]),
        sizes,
    )
    return st.lists(row, min_size=1, max_size=40)


def part_of(rows):
    t, channel, op, flags, size = zip(*rows, strict=True)
    ops = {
        "t_ns": np.array([START_NS + x for x in t]),
        "channel": np.array([99 if c == len(CHANNELS) else c for c in channel], np.uint32),
        "op": np.array(op, np.uint8),
        "flags": np.array(flags, np.uint8),
        "size_bytes": np.array(size, np.uint64),
    }
    run = make_run(channels=[{"proc": proc, "layer": layer} for proc, layer in CHANNELS])
    return replace(make_partition(0, ops=ops), run=run)


def shown(sums):
    numbers = [(int(s[0]), int(s[2]) * 2**32 + int(s[1])) for s in sums.sums]
    assert sums.key.tolist() == sorted(set(sums.key.tolist()))
    assert (sums.sums[:, 1] < 2**32).all()
    return dict(zip(sums.key.tolist(), numbers, strict=True))


def expected(rows):
    times = [START_NS + row[0] for row in rows]
    shift = bin_shift(min(times), max(times))
    sizes, bins = defaultdict(lambda: (0, 0)), defaultdict(lambda: (0, 0))
    for t, (_, channel, op, flags, size) in zip(times, rows, strict=True):
        proc, layer = CHANNELS[channel] if channel < len(CHANNELS) else (-1, 0)
        bits = SIZE_BITS_UNKNOWN if flags & OpFlag.SIZE_UNKNOWN else size.bit_length()
        key = channel << 17 | bits << 9 | op << 1 | (flags & OpFlag.NESTED > 0)
        sizes[key] = sizes[key][0] + 1, sizes[key][1] + size
        if not flags & OpFlag.NESTED:
            layer = layer if layer in list(Layer) else 0
            key = (proc + 1) << 39 | layer << 35 | op << 27
            key |= (t >> shift) - (min(times) >> shift)
            bins[key] = bins[key][0] + 1, bins[key][1] + size
    return sizes, bins, (shift, min(times) >> shift, max(times) >> shift)


@settings(deadline=None)
@given(st.one_of(rows(NARROW), rows(WIDE)), st.sampled_from([0, 1 << 18]))
def test_sums_equal_python_with_a_place_for_each_combination_and_without(rows, cells_max):
    operations, bins, *when = sum_operations(part_of(rows), cells_max)
    assert (shown(operations), shown(bins), tuple(when)) == expected(rows)


def test_many_operations_take_the_fast_way(monkeypatch):
    """More than one block of the kernel; the other way would be refused."""
    rows = [(k * 37, k % 6, 1 + k % 2, 32 * (k % 7 == 0), k % 5000) for k in range(3000)]
    monkeypatch.setattr(traffic_sums, "_by_hash", None)
    operations, bins, *when = sum_operations(part_of(rows))
    assert (shown(operations), shown(bins), tuple(when)) == expected(rows)
