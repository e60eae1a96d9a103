"""What went from whom to whom, at a level and layer, as the figures need it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.export.amounts import added
from sigmatrace.participants import member_words, participants
from sigmatrace.partition import Run, column
from sigmatrace.trace_format import layer_text

LEVELS = ("node", "rank", "gpu", "nic", "qp")
"""From coarse to fine."""
LAYERS_MAX = 3
"""Layers that are drawn: those with most bytes."""
_U64 = NDArray[np.uint64]
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Flows:
    """The traffic at a level and layer.

    Attributes:
        level, layer: Of the rows of ``communication``.
        words: What one end is called, and several.
        names: Of the ends, in an order for people; the last is "" if not all ends are known.
        src, dst: ``(n,)`` i8, places in ``names``.
        size_bytes, operations: ``(n,)`` u8.
    """

    level: str
    layer: int
    words: tuple[str, str]
    names: Sequence[str]
    src: _Ints
    dst: _Ints
    size_bytes: _U64
    operations: _U64

    @property
    def known(self) -> int:
        """How many ends have a name."""
        return len(self.names) - (self.names[-1:] == [""])

    @property
    def title(self) -> str:
        """What the ends are, and the layer."""
        return f"{self.words[1]}, {layer_text(self.layer)}"

    @cached_property
    def total_bytes(self) -> int:
        """All bytes."""
        return exact_sum(self.size_bytes)

    @cached_property
    def between(self) -> _Ints:
        """The rows that go from one known end to another one, heaviest first; ``(m,)`` i8."""
        real = (self.src != self.dst) & (self.src < self.known) & (self.dst < self.known)
        at = np.flatnonzero(real & (self.size_bytes > 0))
        heaviest: _Ints = at[np.argsort(self.size_bytes[at], kind="stable")[::-1]]
        return heaviest

    def ways(self) -> tuple[_U64, _U64]:
        """Return bytes that each known end sent to others, and got from them; ``(known,)`` u8.

        An end that is not known is another one, as it is in ``imbalance``.
        """
        at = np.flatnonzero(self.src != self.dst)
        sent, got = (
            added(self.known + 1, ends[at], self.size_bytes[at])[: self.known]
            for ends in (self.src, self.dst)
        )
        return sent, got


def exact_sum(amounts: _U64) -> int:
    """Return the sum of u8, which may be beyond 64 bits."""
    low, high = amounts & np.uint64(2**32 - 1), amounts >> np.uint64(32)
    return int(low.sum()) + (int(high.sum()) << 32)


def flows(run: Run) -> Iterator[Flows]:
    """Yield the traffic by level, coarse first, and by layer, heaviest first."""
    table = run.tables["communication"]
    layers = drawn_layers(run)
    for level in LEVELS:
        of_level = table.filter(pc.equal(table.column("level"), level))
        for layer in layers:
            rows = of_level.filter(pc.equal(of_level.column("layer"), layer))
            if rows.num_rows:
                yield _flows(run, level, layer, rows)


def drawn_layers(run: Run) -> list[int]:
    """Return the layers with most bytes between ranks, at most ``LAYERS_MAX``."""
    table = run.tables["communication"]
    ranks = table.filter(pc.equal(table.column("level"), "rank"))
    sums = ranks.group_by("layer").aggregate([("size_bytes", "sum")]).to_pylist()
    heavy = sorted(sums, key=lambda row: (-row["size_bytes_sum"], row["layer"]))
    return [row["layer"] for row in heavy[:LAYERS_MAX]]


def _flows(run: Run, level: str, layer: int, rows: pa.Table) -> Flows:
    ends = pa.concat_arrays([rows.column(way).combine_chunks() for way in ("src", "dst")])
    coded = ends.dictionary_encode()
    found = coded.dictionary.to_pylist()
    names = sorted({*found, *_members(run, level, layer)} - {""}, key=in_order)
    names += [""] if "" in found else []
    place = {name: at for at, name in enumerate(names)}
    codes = np.array([place[name] for name in found], np.int64)[coded.indices.to_numpy()]
    src, dst = codes[: rows.num_rows], codes[rows.num_rows :]
    amounts = (column(rows, name) for name in ("size_bytes", "operations"))
    return Flows(level, layer, member_words(run, level), names, src, dst, *amounts)


def _members(run: Run, level: str, layer: int) -> set[str]:
    """Return ends that may have had no traffic: the members that ``imbalance`` compares."""
    of_level = {"rank": "label", "node": "host"}
    if level not in of_level:
        return set()
    names = run.tables["processes"].column(of_level[level]).to_pylist()
    return {names[proc] for proc in participants(run, layer)}


def in_order(name: str) -> list[tuple[int, str]]:
    """Return the key by which names are sorted: 2 comes before 10, of any number of digits."""
    parts = re.split(r"0*([0-9]+)", name)
    keys = [(len(part) if at % 2 else 0, part) for at, part in enumerate(parts)]
    return [*keys, (0, name)]  # 2 and 02 are two names
