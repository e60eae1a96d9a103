"""Where a clock steps or drifts otherwise, and which messages are matched wrongly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sigmatrace.stages.skew_hull import lower_hulls
from sigmatrace.stages.skew_lines import Messages

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NEIGHBOURS = 8
"""Messages on each side that one is compared with."""
SLACK_NS = 100.0
"""Neighbours' spread is taken to be larger by this."""
FAR = 8.0
"""What stands out is this many times the neighbours' spread below them."""


def stands_out(messages: Messages, took: Floats, aside: Bools) -> Bools:
    """Return which messages were much faster than those before and after of the same two clocks.

    A clock that steps makes all messages behind the step faster, a wrong match is alone.

    Args:
        messages: In any order.
        took: ``(n,)`` f8 ns, from send to receive by the corrections so far.
        aside: ``(n,)`` bool, those that do not count as neighbours.
    """
    found = np.zeros(took.size, bool)
    kept = np.flatnonzero(~aside)
    pair = (messages.src * (int(messages.dst.max(initial=0)) + 1) + messages.dst)[kept]
    order = kept[np.lexsort((messages.send_ns[kept], pair))]
    pair = np.sort(pair)
    value = took[order]
    shifts = range(1, NEIGHBOURS + 1)
    before, after = (
        np.stack([_shifted(value, pair, sign * by) for by in shifts]) for sign in (1, -1)
    )
    least = np.minimum(np.sort(before, axis=0)[2], np.sort(after, axis=0)[2])
    there = np.isfinite(before[2]) & np.isfinite(after[2])
    both = np.sort(np.concatenate([before, after])[:, there], axis=0)
    middle = both[np.isfinite(both).sum(axis=0) // 2 - 1, np.arange(both.shape[1])]
    least, value, order = least[there], value[there], order[there]
    far = value < least - FAR * (np.maximum(middle - least, 0.0) + SLACK_NS)
    found[order[far]] = True
    return found


def _shifted(value: Floats, pair: Ints, by: int) -> Floats:
    """Return the value ``by`` places before each (after: negative), inf where there is none."""
    out = np.full(value.size, np.inf)
    if abs(by) < value.size:
        to, of = (
            (slice(by, None), slice(None, -by)) if by > 0 else (slice(None, by), slice(-by, None))
        )
        out[to] = np.where(pair[to] == pair[of], value[of], np.inf)
    return out


def bends(x: Floats, limit: Floats, is_above: Bools, most: int) -> list[tuple[float, float]]:
    """Return where a piecewise line has to bend, each as (not before, not after).

    Each part is as long as one line fits into it.

    Args:
        x: ``(n,)`` f8, in any order.
        limit: ``(n,)`` f8: the line is not above, or not below this.
        is_above: ``(n,)`` bool: not above.
        most: At most so many are returned.
    """
    order = np.argsort(x, kind="stable")
    x, limit, is_above = x[order], limit[order], is_above[order]
    found: list[tuple[float, float]] = []
    end = _reach(x, limit, is_above)
    while end < x.size and len(found) < most:
        after = end + _reach(x[end:], limit[end:], is_above[end:])
        back = slice(after - 1, None, -1) if after > 0 else slice(0)
        length = _reach(-x[back][:after], limit[back][:after], is_above[back][:after])
        begin = max(after - length - 1, 0)
        low, high = float(x[min(begin, end)]), float(x[end])
        if found and low <= found[-1][1]:
            low = (found[-1][1] + high) / 2
        if high > low:
            found.append((low, high))
        end = after
    return found


def _reach(x: Floats, limit: Floats, is_above: Bools) -> int:
    """Return how many points, from the first one on, a line fits to."""
    low, high, step = 0, x.size + 1, 64
    while low + 1 < high:  # the first ``low`` fit, the first ``high`` do not
        middle = min(low + step, high - 1) if high > x.size else (low + high) // 2
        if _fits(x[:middle], limit[:middle], is_above[:middle]):
            low, step = middle, 4 * step
        else:
            high = middle
        if low == x.size:
            break
    return max(low, 1)


def _fits(x: Floats, limit: Floats, is_above: Bools) -> bool:
    """Say whether a line lies below some points and above the others.

    It does if their hulls do not overlap.
    """
    sides = []
    for chosen, sign in ((is_above, 1.0), (~is_above, -1.0)):
        t, value = x[chosen], sign * limit[chosen]
        corner = lower_hulls(np.zeros(t.size, np.int64), t, value)
        sides.append((t[corner], sign * value[corner]))
    (a, top), (b, bottom) = sides
    if not a.size or not b.size:
        return True
    at = np.concatenate([a, b])
    at = at[(at >= max(a[0], b[0])) & (at <= min(a[-1], b[-1]))]
    return bool((np.interp(at, a, top) >= np.interp(at, b, bottom)).all())
