"""Whether a difference of two sides exceeds what differs from run to run, and of many, which do.

One comparison: Student's t with the spread between runs of a side, pooled over both sides. It is
exact for runs that scatter normally and alike on both sides, with three runs in all and more; a
side of a single run is judged by the spread of the other one. Rank tests need no normality, but of
3 + 3 runs none of them can fall below 0.1. What all keys share (a run that was slow as a whole)
does not invalidate it, as it would a spread estimated from several keys together.

Many comparisons: Y. Benjamini, Y. Hochberg, J. R. Stat. Soc. B 57, 1995, within each family; and
Y. Benjamini, M. Bogomolov, J. R. Stat. Soc. B 76, 2014, over families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEVEL = 0.05
"""If nothing has changed, any change is reported in at most this share of comparisons of runs; if
something has, at most this share of what is reported of a family is none, on average."""


@dataclass(frozen=True)
class Judged:
    """Both sides of comparisons, arrays ``(keys,)`` f8; nan where there is nothing to tell.

    Attributes:
        a, b: Mean of each side's runs.
        spread: Standard deviation between runs of a side.
        p: Probability of such a difference, or a larger one, if nothing has changed; nan without
            at least three runs.
    """

    a: Floats
    b: Floats
    spread: Floats
    p: Floats


def judged(a: Floats, b: Floats) -> Judged:
    """Compare two sides of runs.

    Args:
        a: ``(runs, keys)`` f8, nan where a run does not have a key.
        b: Likewise, of the other side.
    """
    from scipy.special import stdtr

    (count_a, mean_a, squares_a), (count_b, mean_b, squares_b) = _moments(a), _moments(b)
    freedom = np.where((count_a > 0) & (count_b > 0), count_a + count_b - 2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = (squares_a + squares_b) / freedom
        level = (np.abs(mean_a) + np.abs(mean_b)) / 2
        spread = np.where(freedom > 0, np.sqrt(variance), np.nan)
        spread = np.where(spread == 0, _typical(spread / level) * level, spread)
        # 0 / 0: no difference, and no spread either.
        t = np.abs(mean_b - mean_a) / (spread * np.sqrt(1 / count_a + 1 / count_b))
        t = np.where(mean_a == mean_b, 0.0, t)
        p = np.where(freedom > 0, 2 * stdtr(freedom, -t), np.nan)
    return Judged(mean_a, mean_b, spread, p)


def _moments(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return count, mean, and sum of squares about it, by key; exactly 0 where all are equal."""
    known = ~np.isnan(values)
    count = known.sum(axis=0).astype(np.float64)
    first = values[known.argmax(axis=0), np.arange(values.shape[1])]
    rest = np.where(known, values - first, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = rest.sum(axis=0) / count
    squares = (np.where(known, rest - shift, 0.0) ** 2).sum(axis=0)
    return count, first + shift, squares


def _typical(relative: Floats) -> float:
    """Return the median spread, relative to the level; by it those are judged that show none.

    Counts that differ by one now and then are equal in a few runs by chance.
    """
    known = relative[np.isfinite(relative)]
    return float(np.median(known)) if known.size else 0.0


def adjusted(families: Sequence[Floats]) -> list[Floats]:
    """Return p-values that can be compared with ``LEVEL``, though there are many of them.

    Args:
        families: p-values ``(n,)`` of each family; nan: not tested.
    """
    within = [_false_discovery(one) for one in families]
    least = np.sort([np.nanmin(one) for one in within if not np.isnan(one).all()])
    passed = np.flatnonzero(least <= LEVEL * np.arange(1, least.size + 1) / max(least.size, 1))
    chosen = int(passed[-1]) + 1 if passed.size else 1
    return [np.minimum(one * (least.size / chosen), 1.0) for one in within]


def _false_discovery(p: Floats) -> Floats:
    """Return p-values adjusted by Benjamini and Hochberg; nan stay, and do not count."""
    found = np.full(p.size, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    scaled = p[order] * (order.size / np.arange(1, order.size + 1))
    found[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return found
