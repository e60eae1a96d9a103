"""Whether a difference of two sides exceeds what differs from run to run, and of many, which do.

One comparison: Student's t with the spread between runs of a side, pooled over both sides; a side
of a single run is judged by the spread of the other one. It is exact for runs that scatter normally
and alike on both sides. (Rank tests need no normality, but of 3 + 3 runs none can fall below 0.1.)

Of three runs a side, one link of a million could never be told from noise so: its spread is known
by 4 degrees of freedom. But the others tell what a spread usually is. Where a measure has many
keys, their noise is taken apart: what all share (a run that was slow as a whole), which is known as
well as there are runs; and what each has for itself, whose variance is drawn towards the others',
the more the more alike they are (G. K. Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004), and never
below its own, so that one slow message in one run makes no change. Two questions are asked then:
whether a key changed, where both noises are added up, and so are their probabilities, by their
shares of the variance; and whether it changed otherwise than the median key, where what all share
drops out.

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

_EXACT = 1e-18
"""A relative variance below it is rounding."""
_KEYS_MIN = 30
"""Of a measure with fewer keys that differ from run to run, each is judged by itself."""
_STEPS = 20


@dataclass(frozen=True)
class Judged:
    """Both sides of comparisons, arrays ``(keys,)`` f8; nan where there is nothing to tell.

    Attributes:
        a, b: Mean of each side's runs.
        spread: Standard deviation between runs of a side.
        p: Probability of such a difference, or a larger one, if nothing has changed; nan without
            at least three runs.
        apart: What the difference exceeds that of the median key by, relative to each key's level.
        p_apart: Probability of that; nan where keys are judged by themselves.
    """

    a: Floats
    b: Floats
    spread: Floats
    p: Floats
    apart: Floats
    p_apart: Floats


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
        level = (np.abs(mean_a) + np.abs(mean_b)) / 2
        variance = np.where(freedom > 0, (squares_a + squares_b) / freedom / level**2, np.nan)
        noise = _noise(a / level, b / level, variance, freedom)
        runs = np.sqrt(1 / count_a + 1 / count_b)
        total = noise.alone + noise.common
        spread = np.sqrt(total) * level
        change = (mean_b - mean_a) / level
        # 0 / 0: no difference, and no spread either.
        t = np.where(mean_a == mean_b, 0.0, np.abs(change) / (np.sqrt(total) * runs))
        share = np.where(total > 0, noise.common / total, 0.0)
        p = 2 * ((1 - share) * stdtr(noise.freedom, -t) + share * stdtr(noise.runs, -t))
        apart = change - noise.shift
        p_apart = 2 * stdtr(noise.freedom, -np.abs(apart) / (np.sqrt(noise.alone) * runs))
        p, p_apart = (np.where(freedom > 0, one, np.nan) for one in (p, p_apart))
    return Judged(mean_a, mean_b, spread, p, apart, p_apart)


@dataclass(frozen=True)
class _Noise:
    """Variances between runs of a side, relative, and what degrees of freedom they are known by.

    Attributes:
        alone: ``(keys,)``, what each key has for itself.
        freedom: Of that, likewise.
        common: What all share.
        runs: Degrees of freedom of that.
        shift: Change of the median key, relative; nan where keys are judged by themselves.
    """

    alone: Floats
    freedom: Floats
    common: float = 0.0
    runs: int = 1
    shift: float = np.nan


def _noise(a: Floats, b: Floats, own: Floats, freedom: Floats) -> _Noise:
    """Return the noise of each key.

    Args:
        a: ``(runs, keys)``, relative to the level of each key.
        b: Likewise.
        own: ``(keys,)`` variance of each by itself.
        freedom: Of that, likewise.
    """
    known = own[freedom > 0]
    shows = own > _EXACT
    if shows.sum() < max(_KEYS_MIN, known.size / 2):
        # Counts that differ by one now and then are equal in a few runs by chance.
        known = known[~np.isnan(known)]
        usual = float(known.mean()) if known.size else 0.0
        return _Noise(np.where(own == 0, usual, own), freedom)
    shares = [np.array([[_median(run)] for run in side[:, shows]]) for side in (a, b)]
    (_, _, rest_a), (_, _, rest_b) = _moments(a - shares[0]), _moments(b - shares[1])
    alone = (rest_a + rest_b) / freedom
    usual, weight = _usual(alone[shows], freedom[shows])
    drawn = usual if np.isinf(weight) else (weight * usual + freedom * alone) / (weight + freedom)
    alone = np.where(freedom > 0, np.fmax(alone, drawn), np.nan)
    many = np.minimum(freedom + weight, freedom[shows].sum())
    (count_a, mean_a, squares_a), (count_b, mean_b, squares_b) = (_moments(one) for one in shares)
    runs = max(int(count_a[0] + count_b[0]) - 2, 1)
    common, shift = float(squares_a[0] + squares_b[0]) / runs, float(mean_b[0] - mean_a[0])
    return _Noise(alone, many, common, runs, shift)


def _median(values: Floats) -> float:
    """Return the median of what is known; nan if nothing is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else np.nan


def _usual(variance: Floats, freedom: Floats) -> tuple[float, float]:
    """Return the variance that keys usually have, and by how many degrees of freedom they agree.

    That is the scaled inverse chi-square distribution of variances whose logarithms have the mean
    and variance that these have.
    """
    from scipy.special import digamma, polygamma

    half = freedom / 2
    logs = np.log(variance) - digamma(half) + np.log(half)
    excess = float(logs.var(ddof=1) - polygamma(1, half).mean())
    if excess <= 0:
        return float(np.exp(logs.mean())), np.inf
    agreed = _trigamma_inverse(excess)
    return float(np.exp(logs.mean() + digamma(agreed) - np.log(agreed))), 2 * agreed


def _trigamma_inverse(value: float) -> float:
    """Return where the trigamma function has a value, by Newton's method on its reciprocal."""
    from scipy.special import polygamma

    at = 0.5 + 1 / value
    for _ in range(_STEPS):
        now = float(polygamma(1, at))
        at += now * (1 - now / value) / float(polygamma(2, at))
    return at


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
