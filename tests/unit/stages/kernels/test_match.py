from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.stages.kernels.match import (
    flow_kernel,
    inversion_kernel,
    runs_kernel,
    union_kernel,
)
from sigmatrace.trace_format import OP_CLASS, OpClass

U4 = st.integers(0, 2**32 - 1)


def columns(rows, *dtypes):
    return [np.array([row[i] for row in rows], dtype) for i, dtype in enumerate(dtypes)]


@given(
    st.integers(0, 2**32 - 1),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(0, 9), st.integers(0, 9)),
        max_size=30,
    ),
)
def test_inversion_finds_the_channels_python_finds(base, rows):
    """``base`` near 2^32 makes both counters wrap."""
    moved = [(c, o, (k + base) % 2**32, (a + base) % 2**32) for c, o, k, a in rows]
    channel, op, ordinal, aux = columns(moved, np.uint32, np.uint8, np.uint32, np.uint32)
    fate = np.array([0, 0, 0, 1], np.uint8)  # channel 3 cannot be matched: not looked at
    channel += np.uint32(100)
    state = np.zeros(8, np.uint8)
    last = np.zeros(8, np.uint32), np.zeros(8, np.uint32)
    count = inversion_kernel(channel, op, ordinal, aux, 100, fate, *last, state)
    state = state[1::2]
    by_channel = defaultdict(list)
    for c, o, k, a in rows:
        if o == 2 and c != 3:
            by_channel[c].append((k, a))
    want = [0] * 4
    for c, seen in by_channel.items():
        ordered = all(p[0] <= q[0] and p[1] <= q[1] for p, q in pairwise(seen))
        want[c] = 1 if ordered else 2
    assert state.tolist() == want
    assert count == want.count(2)


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 2), st.integers(0, 8)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 13), U4)),
)
def test_flow_is_the_pair_of_group_and_ordinal(channels, rows):
    rows = [(c % len(channels), o, k) for c, o, k in rows]
    channel, op, ordinal = columns(rows, np.uint32, np.uint8, np.uint32)
    ways = columns(channels, np.uint32, np.uint8)
    out = np.empty(len(rows), np.uint64)
    flow_kernel(channel + np.uint32(7), op, ordinal, 7, OP_CLASS, *ways, out)
    message = OpClass.SEND, OpClass.RECV
    want = [
        (channels[c][0] + 1) * 2**32 + k if channels[c][1] == 0 and OP_CLASS[o] in message else 0
        for c, o, k in rows
    ]
    assert out.tolist() == want


RUN_ROW = st.tuples(
    st.integers(0, 3),
    st.integers(1, 2),
    st.sampled_from([0, 1, 2, 8, 4, 11, 32, 35]),
    st.integers(0, 20),
    st.one_of(st.integers(0, 12), st.sampled_from([2**32 - 1, 2**32 - 2])),
    st.sampled_from([0, 1, 2**32, 2**63 - 1, 2**64 - 1]),
)


@given(st.lists(RUN_ROW, max_size=60), st.lists(st.booleans(), min_size=4, max_size=4))
def test_runs_and_their_union_are_the_sets_of_ordinals(rows, used):
    """Ordinals repeat, skip and come in any order."""
    check_runs(rows, used)


def test_long_runs_with_a_disturbance_here_and_there():
    """More than one block of the kernel, most rows of which just continue."""
    chance = random.Random(3)
    at = {(c, o): [chance.choice([0, 2**32 - 50]), 0] for c in range(4) for o in (1, 2)}
    rows = []
    for _ in range(5000):
        c, o = chance.randrange(4), chance.randint(1, 2)
        place, posted = at[c, o]
        gap = chance.choice([2, -2, 0]) if chance.random() < 0.01 else 1
        at[c, o] = (place + gap) % 2**32, max(posted + chance.choice([0, 1, 3, 3, gap - 1]), 0)
        flags = chance.choice([1, 2, 8, 32]) if chance.random() < 0.01 else 4
        size = 2**32 if chance.random() < 0.01 else chance.randrange(2**32)
        rows.append((c, o, flags, posted, place, size))
    check_runs(rows, [True, False, True, True])


def check_runs(rows, used):
    """Channel c belongs to group c // 2."""
    channel, op, flags, aux, ordinal, size = columns(
        rows, np.uint32, np.uint8, np.uint8, np.uint32, np.uint32, np.uint64
    )
    fate, lossy = np.where(used, 0, 3).astype(np.uint8), np.array([0, 0, 0, 1], np.uint8)
    given = (channel + np.uint32(9), op, flags, aux, size, ordinal)
    ways = OP_CLASS, np.array([0, 0, 1, 1], np.uint32), fate, lossy, lossy
    span, sums = np.full((8, 8), -1, np.int64), np.zeros((8, 5), np.uint64)
    out = [np.empty(len(rows), np.int64) for _ in range(3)]
    counts = np.zeros((2, 5, 10, 16), np.int64)
    count, inverted = runs_kernel(*given, 9, *ways, span, sums, counts, *out)
    key, begin, stop = (column[:count] for column in out)
    order = np.lexsort((begin, key))
    merged = [np.empty(count, np.int64) for _ in range(3)]
    number = union_kernel(key[order], begin[order], stop[order], *merged)

    sets, total, cells = defaultdict(set), defaultdict(int), defaultdict(list)
    for c, o, f, a, k, s in rows:
        if used[c]:
            sets[c // 2 * 2 + o - 1, f & 32 > 0].add(k)
            total[2 * c + o - 1] += s
            cells[2 * c + o - 1].append((k, a, f))
    got = defaultdict(set)
    for k, b, e in zip(*(column[:number].tolist() for column in merged), strict=True):
        assert b < e
        where = k // 2, bool(k % 2)
        assert got[where].isdisjoint(range(b, e)) and b - 1 not in got[where]
        got[where].update(range(b, e))
    assert got == sets
    for cell in range(8):
        assert int(sums[cell, 2]) * 2**32 + int(sums[cell, 1]) == total[cell]
        assert sums[cell, 0] == len(cells[cell])
        doubtful = [cell // 2 == 3 or f & 10 > 0 for _, _, f in cells[cell]]
        assert sums[cell, 3] == sum(doubtful)
        assert sums[cell, 4] == sum(f & 1 for _, _, f in cells[cell])
        if cells[cell]:
            k, a, _ = zip(*cells[cell], strict=True)
            top = 2**32 - 1
            assert span[cell, 3:5].tolist() == [top - min(k), max(k)]
            if cell % 2:
                assert span[cell, 5:].tolist() == [top - min(a), max(a), a[-1]]
    state, last = np.zeros(8, np.uint8), [np.zeros(8, np.uint32) for _ in range(2)]
    found = inversion_kernel(given[0], op, ordinal, aux, 9, fate, *last, state)
    assert (inverted > 0) == (found > 0)


U1 = st.integers(0, 255)


@given(
    st.lists(st.tuples(U1, st.integers(0, 8)), min_size=1, max_size=4),
    st.lists(
        st.tuples(U1, st.integers(0, 3), st.one_of(st.integers(0, 13), U1), st.integers(0, 3))
    ),
)
def test_runs_count_every_row(channels, rows):
    """Channels have a layer and a fate; rows flags, channel, operation and ordinal."""
    rows = [(f, c % len(channels), o, k) for f, c, o, k in rows]
    flags, channel, op, ordinal = columns(rows, np.uint8, np.uint32, np.uint8, np.uint32)
    layer, fate = columns(channels, np.uint8, np.uint8)
    u4, u8 = np.zeros(len(rows), np.uint32), np.zeros(len(rows), np.uint64)
    count = np.zeros((2, 5, 10, 16), np.int64)
    size = 2 * len(channels)
    span, sums = np.full((size, 8), -1, np.int64), np.zeros((size, 5), np.uint64)
    out = [np.empty(len(rows), np.int64) for _ in range(3)]
    ways = OP_CLASS, np.zeros(len(channels), np.uint32), fate, layer, np.zeros_like(fate)
    runs_kernel(channel, op, flags, u4, u8, ordinal, 0, *ways, span, sums, count, *out)
    want = np.zeros((2, 5, 10, 16), np.int64)
    by_class = {OpClass.OTHER: 2, OpClass.ONE_SIDED: 1}
    for bits, c, o, _ in rows:
        where, f = channels[c]
        result = by_class.get(OP_CLASS[o], f)
        want[bits // 32 % 2, where if where < 5 else 0, o if o < 10 else 0, result] += 1
    assert (count == want).all()
