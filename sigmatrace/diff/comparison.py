"""Both sides, key by key: what changed, by how much, and whether it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatrace.diff.amounts import Amounts, Floats, Part, Reader
from sigmatrace.diff.identity import Ints, Names
from sigmatrace.diff.kinds import KINDS, LAST, Kind, Measure
from sigmatrace.diff.noise import LEVEL, Judged, adjusted, judged
from sigmatrace.diff.sources import Source

Bools = NDArray[np.bool_]
Sides = tuple[Sequence[Source], Sequence[Source]]
COLUMNS = (
    "kind", "measure", "layer", "name", "unit", "a", "b", "change", "relative", "spread", "p",
    "status", "verdict", "weight", "last_a", "last_b",
)  # fmt: skip
"""Of rows, in CSV and JSON."""


@dataclass(frozen=True)
class Compared:
    """One measure of both sides, by key; arrays ``(keys,)``.

    Attributes:
        kind, measure: Which one.
        keys: Ascending i8.
        judged: Both sides and their noise.
        p: Adjusted for all comparisons there are; nan: noise is not known.
        in_a, in_b: How many runs of a side have the key.
        changed: Whether it counts.
        weight: Share of the change in what the larger side of all keys has together.
        last: Who came last to a barrier, of both sides, i8 as in ``Names``; 0 where it is
            not one in all runs of a side; None: not a measure of barriers.
    """

    kind: Kind
    measure: Measure
    keys: Ints
    judged: Judged
    p: Floats
    in_a: Ints
    in_b: Ints
    changed: Bools
    weight: Floats
    last: tuple[Ints, Ints] | None

    @cached_property
    def relative(self) -> Floats:
        """Changes, as a share of side A; inf from 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = (self.judged.b - self.judged.a) / np.abs(self.judged.a)
        return np.where(self.judged.b == self.judged.a, 0.0, found)

    @cached_property
    def worse(self) -> Bools:
        """Whether it changed for the worse."""
        return self.changed & ((self.judged.b - self.judged.a) * self.measure.worse > 0)

    @cached_property
    def better(self) -> Bools:
        """Whether it changed for the better."""
        return self.changed & ((self.judged.b - self.judged.a) * self.measure.worse < 0)

    def heaviest(self, *, every: bool = False) -> Ints:
        """Return places of what changed, or of all, heaviest first."""
        at = np.arange(self.keys.size) if every else np.flatnonzero(self.changed)
        found: Ints = at[np.argsort(-np.nan_to_num(self.weight[at]), kind="stable")]
        return found


@dataclass(frozen=True)
class Group:
    """Comparisons of one kind, heaviest first.

    Attributes:
        kind: Which one.
        part, at: ``(n,)``, of each its number in ``Comparison.parts``, and its place there.
    """

    kind: Kind
    part: Ints
    at: Ints

    def places(self, most: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield part and place of the first ones."""
        for part, at in zip(self.part[:most], self.at[:most], strict=True):
            yield int(part), int(at)


@dataclass(frozen=True)
class Comparison:
    """All that was compared.

    Attributes:
        sides: The runs.
        names: Of what keys are made of.
        parts: Measure by measure.
        threshold: What changes by less than this share of side A does not count.
    """

    sides: Sides
    names: Names
    parts: Sequence[Compared]
    threshold: float

    @property
    def is_noise_known(self) -> bool:
        """Whether there are runs enough to tell what differs from run to run."""
        return sum(map(len, self.sides)) > 2

    def count(self, what: Callable[[Compared], Bools] = lambda one: one.changed) -> int:
        """Return how many comparisons there are of a sort."""
        return sum(int(what(one).sum()) for one in self.parts)

    @property
    def comparisons(self) -> int:
        """How many keys both sides can be compared by."""
        return self.count(lambda one: ~np.isnan(one.judged.b - one.judged.a))

    @property
    def one_sided(self) -> int:
        """How many amounts only one side has, so that there is nothing to compare."""
        return self.count(lambda one: np.isnan(one.judged.b - one.judged.a))

    def kinds(self, *, every: bool = False) -> list[Group]:
        """Return the kinds that changed, or all, those of heaviest changes first."""
        found = []
        for kind in KINDS:
            own = [at for at, one in enumerate(self.parts) if one.kind is kind]
            places = [self.parts[at].heaviest(every=every) for at in own]
            of = zip(own, places, strict=True)
            weight = np.concatenate([np.nan_to_num(self.parts[at].weight[one]) for at, one in of])
            order = np.argsort(-weight, kind="stable")
            part = np.repeat(own, [one.size for one in places])[order]
            if order.size:
                group = Group(kind, part, np.concatenate(places)[order])
                found.append((float(weight.max()), group))
        found.sort(key=lambda one: -one[0])
        return [group for _, group in found]

    def row(self, part: int, at: int) -> dict[str, Any]:
        """Return one comparison as in ``COLUMNS``; None where there is nothing to tell."""
        one = self.parts[part]
        layer, name = one.kind.named(int(one.keys[at]), self.names)
        a, b, spread = (float(x[at]) for x in (one.judged.a, one.judged.b, one.judged.spread))
        values: dict[str, Any] = {
            **{"a": a, "b": b, "change": b - a, "relative": float(one.relative[at])},
            **{"spread": spread, "p": float(one.p[at]), "weight": float(one.weight[at])},
        }
        last = ("", "")
        if one.last is not None:
            last = (self.names.text(one.last[0][at]), self.names.text(one.last[1][at]))
        row = {
            "kind": one.kind.name,
            "measure": one.measure.name,
            "layer": layer,
            "name": name,
            "unit": one.measure.unit,
            **{key: None if np.isnan(value) else _plain(value) for key, value in values.items()},
            "status": _status(one, at),
            "verdict": "worse" if one.worse[at] else "better" if one.better[at] else "",
            "last_a": last[0],
            "last_b": last[1],
        }
        return {column: row[column] for column in COLUMNS}

    def rows(self, *, every: bool = False) -> Iterator[dict[str, Any]]:
        """Yield what changed, or all, by kind, heaviest first."""
        for group in self.kinds(every=every):
            for part, at in group.places():
                yield self.row(part, at)


def compare(a: Sequence[Source], b: Sequence[Source], threshold: float) -> Comparison:
    """Compare two sides of one or several runs each.

    Args:
        a: The runs of side A.
        b: Those of side B.
        threshold: What changes by less than this share of side A does not count.
    """
    runs = [*a, *b]
    hosts = {frozenset(one.processes.column("host").to_pylist()) for one in runs}
    names = Names()
    readers = [Reader(one, names, hosts_by_rank=len(hosts) > 1) for one in runs]
    pending = [_Pending(kind, readers, len(a)) for kind in KINDS]
    families = adjusted([one.p for one in pending])
    parts = [
        part for one, p in zip(pending, families, strict=True) for part in one.decided(p, threshold)
    ]
    return Comparison((a, b), names, parts, threshold)


class _Pending:
    """A kind whose differences are known, and not yet which of them count.

    Args:
        kind: Which one.
        readers: Of all runs.
        first: How many of them are on side A.
    """

    def __init__(self, kind: Kind, readers: Sequence[Reader], first: int) -> None:
        self._kind = kind
        self._first = first
        self._several = len(readers) > 2
        amounts = [kind.read(one) for one in readers]
        self._last = [one.get(LAST) for one in amounts]
        self._parts = [self._judge(measure, amounts) for measure in kind.measures]
        self.p = np.concatenate([p for _, _, one, _ in self._parts for p in (one.p, one.p_apart)])

    def _judge(
        self, measure: Measure, amounts: Sequence[Amounts]
    ) -> tuple[Measure, Ints, Judged, tuple[Ints, Ints]]:
        empty = np.zeros(0, np.int64), np.zeros(0)
        keys, values = aligned([one.get(measure.name, empty) for one in amounts])
        there = ~np.isnan(values)
        counts = there[: self._first].sum(axis=0), there[self._first :].sum(axis=0)
        if measure.is_sum:
            values = np.where(there, values, 0.0)
        return measure, keys, judged(values[: self._first], values[self._first :]), counts

    def decided(self, p: Floats, threshold: float) -> Iterator[Compared]:
        """Yield the measures, with what counts.

        Args:
            p: Adjusted, in the order of ``self.p``.
            threshold: See ``compare``.
        """
        sizes = [keys.size for _, keys, _, _ in self._parts for _ in range(2)]
        halves = iter(np.split(p, np.cumsum(sizes)[:-1]))
        for measure, keys, found, counts in self._parts:
            own, apart = next(halves), next(halves)
            change, least = np.abs(found.b - found.a), threshold * np.abs(found.a)
            changed = (change > 0) & (change >= least)
            if self._several:
                level = (np.abs(found.a) + np.abs(found.b)) / 2
                differs = (apart <= LEVEL) & (np.abs(found.apart) * level >= least)
                differs &= found.apart * (found.b - found.a) > 0
                changed &= (own <= LEVEL) | differs
                own = np.where(differs, np.fmin(own, apart), own)
            most = np.nansum(np.fmax(np.abs(found.a), np.abs(found.b)))
            weight = change / most if most > 0 else np.zeros(keys.size)
            last = self._last_of(keys) if measure.name == "spread_ns" else None
            yield Compared(self._kind, measure, keys, found, own, *counts, changed, weight, last)

    def _last_of(self, keys: Ints) -> tuple[Ints, Ints]:
        """Return who came last on each side; 0 where runs of a side differ, or have none."""
        there = [one for one in self._last if one is not None]
        found, values = aligned(there)
        at = np.searchsorted(found, keys)
        sides = []
        for side in (values[: self._first, at], values[self._first :, at]):
            alike = (side == side[0]).all(axis=0)
            sides.append(np.where(alike, side[0], 0.0).astype(np.int64))
        return sides[0], sides[1]


def aligned(parts: Sequence[Part]) -> tuple[Ints, Floats]:
    """Return all keys of runs, ascending, and ``(runs, keys)`` amounts; nan where there is none."""
    keys = np.unique(np.concatenate([own for own, _ in parts]))
    values = np.full((len(parts), keys.size), np.nan)
    for row, (own, amounts) in zip(values, parts, strict=True):
        row[np.searchsorted(keys, own)] = amounts
    return keys, values


def _status(one: Compared, at: int) -> str:
    """Return "appeared", "disappeared", "changed", "only a", "only b", or "same"."""
    if np.isnan(one.judged.b[at] - one.judged.a[at]):
        return "only a" if one.in_a[at] else "only b"
    if not one.changed[at]:
        return "same"
    if one.measure.is_sum and not (one.in_a[at] and one.in_b[at]):
        return "disappeared" if one.in_a[at] else "appeared"
    return "changed"


def _plain(value: float) -> float | int:
    """Return whole numbers as such."""
    return int(value) if value.is_integer() else value
