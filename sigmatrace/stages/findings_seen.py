"""What a finding is, and what findings look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sigmatrace.partition import Run
from sigmatrace.stages.pairs import Ints, keys_of, labels_of


@dataclass(frozen=True)
class Finding:
    """One finding; attributes as in the table, and whether its weight is its share."""

    weight: float
    kind: str
    text: str
    evidence: str
    is_share: bool = True


class Seen:
    """What all findings look at."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.labels = labels_of(run)
        begin, end = run.extent_ns
        self.span_ns = max(end - begin, 1)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table that is small: that grows with processes, not with pairs."""
        rows: list[dict[str, Any]] = self.run.tables[table].to_pylist()
        return rows

    def column(self, table: str, name: str) -> np.ndarray:
        """Return a column of a table."""
        return self.run.column(table, name)

    def keys(self, table: str) -> Ints:
        """Return the key of each row of a table by pair of processes and layer (``keys_of``)."""
        return keys_of(*(self.column(table, name) for name in ("src_proc", "dst_proc", "layer")))

    def pair(self, src: int, dst: int) -> str:
        """Return the two ends of messages."""
        return f"from {self.labels[src]} to {self.labels[dst]}"

    def share(self, ns: int, members: int = 1) -> float:
        """Return a length of time as a share of the run, or of so many that it lasts for.

        At most all of it: events of processes that are not calibrated may lie outside of the run,
        and what is waited for may be counted twice, where barriers of two kinds are one.
        """
        return min(ns / (self.span_ns * max(members, 1)), 1.0)

    @cached_property
    def others(self) -> int:
        """How many processes there are besides one."""
        return len(self.labels) - 1

    @cached_property
    def barrier_members(self) -> int:
        """How many come to barriers: processes, or their GPUs, each of which waits by itself."""
        proc, gpu = (self.column("barrier_arrivals", name) for name in ("proc", "gpu"))
        return int(np.unique(proc.astype(np.int64) << 32 | gpu).size)


Find = Callable[[Seen], Iterator[Finding]]
"""What looks for findings of a kind."""


def share_text(weight: float) -> str:
    """Return a share as text, with a digit behind the point where it is small."""
    return f"{100 * weight:.0f} %" if weight >= 0.0995 else f"{100 * weight:.1f} %"
