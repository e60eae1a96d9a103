from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.stages.kernels.clock import call_kernel, convert_kernel

U64 = 2**64


def signed(value: int) -> int:
    value %= U64
    return value - U64 if value >= 2**63 else value


def reference(tsc: int, ref: int, knots: list[tuple[int, int, float]]) -> int:
    """Unix ns by exact fractions."""
    x = signed(tsc - ref)
    at = max([k for k in range(len(knots)) if knots[k][0] <= x], default=0)
    return knots[at][1] + round((x - knots[at][0]) * Fraction(knots[at][2]))


@st.composite
def maps(draw):
    ref = draw(st.integers(0, U64 - 1))
    x = sorted(draw(st.sets(st.integers(-(2**50), 2**50), min_size=1, max_size=5)))
    knots = [
        (at, 1_800_000_000 * 10**9 + draw(st.integers(0, 10**15)), draw(st.floats(0.2, 1.0)))
        for at in x
    ]
    return ref, knots


@given(
    st.lists(maps(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**51), 2**51)), max_size=30),
    st.booleans(),
)
def test_convert_matches_exact_fractions(run, rows, ordered):
    rows = [(min(p, len(run) - 1), (run[min(p, len(run) - 1)][0] + x) % U64) for p, x in rows]
    if ordered:
        rows.sort()
    proc = np.array([p for p, _ in rows], np.int32)
    tsc = np.array([t for _, t in rows], np.uint64)
    out = np.empty(proc.size, np.int64)
    begin = np.cumsum([0] + [len(knots) for _, knots in run]).astype(np.int64)
    flat = [knot for _, knots in run for knot in knots]
    unknown = convert_kernel(
        tsc,
        proc,
        np.arange(len(run), dtype=np.int32),
        begin,
        np.array([ref for ref, _ in run], np.uint64),
        np.array([k[0] for k in flat], np.int64),
        np.array([k[1] for k in flat], np.int64),
        np.array([k[2] for k in flat]),
        out,
    )
    assert unknown == 0
    for (p, t), got in zip(rows, out.tolist(), strict=True):
        assert abs(got - reference(t, *run[p])) <= 1


@given(
    st.lists(maps(), min_size=2, max_size=3),
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.one_of(st.integers(-(2**51), 2**51), st.integers(-(2**63), 2**63 - 1)),
            st.integers(1, 2000),
            st.integers(0, 10**6),
        ),
        max_size=6,
    ),
)
def test_rows_converted_together_are_as_those_converted_alone(run, runs):
    """Long runs of one process, near a knot and far from all; some processes do not exist."""
    flat = [knot for _, knots in run for knot in knots]
    numbers = (
        np.arange(len(run), dtype=np.int32),
        np.cumsum([0] + [len(knots) for _, knots in run]).astype(np.int64),
        np.array([ref for ref, _ in run], np.uint64),
        *(np.array([k[i] for k in flat], dtype) for i, dtype in enumerate(("i8", "i8", "f8"))),
    )
    proc = np.repeat([p for p, *_ in runs], [n for *_, n, _ in runs]).astype(np.int32)
    tsc = np.array(
        [(run[p % len(run)][0] + x + step * k) % U64 for p, x, n, step in runs for k in range(n)],
        np.uint64,
    )
    together, alone = np.empty((2, tsc.size), np.int64)
    unknown = convert_kernel(tsc, proc, *numbers, together)
    for k in range(tsc.size):
        convert_kernel(tsc[k : k + 1], proc[k : k + 1], *numbers, alone[k : k + 1])
    assert (together == alone).all()
    assert unknown == int((proc >= len(run)).sum())


def test_convert_survives_nonsense_and_counts_unknown_processes():
    tsc = np.array([0, U64 - 1, 2**63, 5], np.uint64)
    proc = np.array([0, 0, 0, 7], np.int32)
    out = np.empty(4, np.int64)
    one = np.array([2**40], np.int64)
    unknown = convert_kernel(
        tsc,
        proc,
        np.zeros(1, np.int32),
        np.array([0, 1], np.int64),
        np.array([2**62], np.uint64),
        np.zeros(1, np.int64),
        one,
        np.array([1000.0]),
        out,
    )
    assert unknown == 1
    assert out.tolist() == [2**40 - 2**61, 2**40 - 2**61, 2**40 + 2**61, 0]


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 1))))
def test_call_matches_python(rows):
    op, aux, proc = (
        np.array([row[i] for row in rows], dtype)
        for i, dtype in enumerate((np.uint8, np.uint32, np.int32))
    )
    rates = np.array([0.5, 0.25])
    out = np.empty(len(rows), np.int64)
    call_kernel(op, aux, proc, rates, out)
    want = [0 if o == 2 else round(a * rates[p]) for o, a, p in rows]
    assert out.tolist() == want
