"""Outstanding requests against plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.export.kernels.objects import outstanding_kernel


def depth_of(events, first):
    """Values of the counter, from (time, completes, position) in order; positions from 0."""
    t_ns = np.array([t for t, _, _ in events], np.int64)
    code = [((first + at) % 2**32) << 1 | completes for _, completes, at in events]
    out_t, out_depth = np.empty_like(t_ns), np.empty_like(t_ns)
    order = np.arange(t_ns.size, dtype=np.uint32)
    used = outstanding_kernel(order, t_ns, np.array(code, np.int64), out_t, out_depth)
    return list(zip(out_t[:used].tolist(), out_depth[:used].tolist(), strict=True))


def plain(events):
    """The same without positions that wrap."""
    posted = completed = events[0][2]
    found: dict[int, int] = {}
    for t, completes, position in events:
        completed = max(completed, position + 1) if completes else completed
        posted = max(posted, position + 1)
        found[t] = posted - completed
    return found


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 40)), min_size=1),
    st.sampled_from([0, 2**31 - 20, 2**32 - 20]),
)
def test_whatever_is_lost_the_depth_is_what_positions_tell(steps, first):
    """Rows at any positions, as if all others had been lost."""
    events, t = [], 0
    for gap, completes, position in steps:
        t += gap
        events.append((t, completes, position))
    found = depth_of(events, first)
    assert all(depth >= 0 for _, depth in found)
    held, last = dict(found), None
    for t, depth in plain(events).items():
        last = held.get(t, last)
        assert last == depth
    assert [t for t, _ in found] == sorted({t for t, _ in found})
