"""What messages say of the difference of two clocks: convex hulls, and bounds along paths.

Corrections of two clocks, both linear over some time, differ by a line ``D``. A message from *i*
to *j* says ``D(t) <= d``: what it took, by clocks as they are. Where such a line is below two
points it is below all between them; so of many messages the corners of their lower convex hull
alone matter, and between corners the hull is a bound of ``D``, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def lower_hulls(group: Ints, t: Floats, value: Floats) -> Ints:
    """Return the corners of the lower convex hull of the points of each group.

    Args:
        group: ``(n,)`` i8.
        t: ``(n,)`` f8, abscissa, in any order.
        value: ``(n,)`` f8, ordinate.

    Returns:
        Row numbers i8, by group, then by ``t``. The first and the last ``t`` of a group are
        corners. Points above the chord of their neighbours cannot be corners, and are left out
        together until there is none: O(n log n), with a few dozen sweeps over ever fewer points.
    """
    order = np.lexsort((value, t, group))
    g, x = group[order], t[order]
    first = np.ones(order.size, bool)
    first[1:] = (g[1:] != g[:-1]) | (x[1:] != x[:-1])
    kept = order[first]
    while kept.size > 2:
        g, x, y = group[kept], t[kept], value[kept]
        dx, dy = np.diff(x), np.diff(y)
        above = (g[2:] == g[:-2]) & (dy[:-1] * dx[1:] >= dy[1:] * dx[:-1])
        if not above.any():
            break
        kept = kept[np.concatenate([[True], ~above, [True]])]
    return kept


@dataclass(frozen=True)
class Hulls:
    """Lower hulls of what messages took, by ordered pair of clocks and stretch of time.

    Attributes:
        row: ``(corners,)`` i8, message of each corner.
        src: ``(corners,)`` i8, clock that sends.
        dst: ``(corners,)`` i8, clock that receives.
        t: ``(corners,)`` f8, ns.
        value: ``(corners,)`` f8, ns.
        joined: ``(corners - 1,)`` bool, whether the next corner is of the same hull.
    """

    row: Ints
    src: Ints
    dst: Ints
    t: Floats
    value: Floats
    joined: NDArray[np.bool_]

    @classmethod
    def of(cls, group: Ints, src: Ints, dst: Ints, t: Floats, value: Floats) -> Hulls:
        """Return the hulls of messages; ``group`` numbers pairs and stretches together."""
        row = lower_hulls(group, t, value)
        g = group[row]
        return cls(row, src[row], dst[row], t[row], value[row], g[1:] == g[:-1])

    def between(self, t: float, clocks: int) -> Floats:
        """Return by ordered pair what the hulls are at a time, ``(clocks, clocks)``; inf: none."""
        least = np.full((clocks, clocks), np.inf)
        at = np.flatnonzero(self.joined & (self.t[:-1] <= t) & (self.t[1:] > t))
        share = (t - self.t[at]) / (self.t[at + 1] - self.t[at])
        value = self.value[at] + share * (self.value[at + 1] - self.value[at])
        np.minimum.at(least, (self.src[at], self.dst[at]), value)
        return least


def distances(least: Floats, roots: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return the shortest ways to and from the next root.

    Args:
        least: ``(n, n)`` f8: x_i - x_j is at most ``least[i, j]``, inf where nothing is known.
        roots: ``(n,)`` bool: where x is 0.

    Returns:
        ``(n,)`` each: x is at most the first one, and at least minus the second one. A circle
        whose sum is below 0 has no shortest way: it is gone round a limited number of times.
    """
    return _ways(least, roots), _ways(least.T, roots)


def _ways(least: Floats, roots: NDArray[np.bool_]) -> Floats:
    way = np.where(roots, 0.0, np.inf)
    for _ in range(way.size):
        shorter = np.minimum(way, (least + way).min(axis=1, initial=np.inf))
        shorter[roots] = 0.0
        if (shorter == way).all():
            break
        way = shorter
    return way
