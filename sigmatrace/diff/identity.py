"""Who is who in several runs: names that do not change from run to run, and keys made of them.

A process is its rank; those of the same rank, and those without one, are numbered in the order of
the table ``processes`` (host, pid, start). A host is the one with that name where all runs have the
same hosts, else the host of its lowest rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.errors import QueryError

Ints = NDArray[np.int64]


class Names:
    """Texts by number, from 1; 0 is "", which is not known. All runs share them."""

    def __init__(self) -> None:
        self._number = {"": 0}
        self._texts = [""]

    def number(self, text: str) -> int:
        """Return the number of a text."""
        found = self._number.setdefault(text, len(self._texts))
        if found == len(self._texts):
            self._texts.append(text)
        return found

    def numbers(self, texts: Sequence[str]) -> Ints:
        """Return the numbers of texts, ``(n,)``."""
        return np.array([self.number(text) for text in texts], np.int64)

    def text(self, number: int) -> str:
        """Return a text."""
        return self._texts[number]


def process_names(processes: pa.Table) -> list[str]:
    """Return the name of each process that it has in all runs."""
    ranks = processes.column("rank").to_pylist()
    seen: Counter[int] = Counter()
    found = []
    for rank in ranks:
        seen[max(rank, -1)] += 1
        count = seen[max(rank, -1)]
        if rank < 0:
            found.append(f"process {count} without a rank")
        else:
            found.append(f"rank {rank}" + (f" (process {count})" if count > 1 else ""))
    return found


def host_names(processes: pa.Table, *, by_rank: bool) -> dict[str, str]:
    """Return by host the name that it has in all runs.

    Args:
        processes: The table, ordered by rank.
        by_rank: Whether hosts differ from run to run, so that ranks have to tell them.
    """
    found: dict[str, str] = {}
    hosts = processes.column("host").to_pylist()
    for host, process in zip(hosts, process_names(processes), strict=True):
        found.setdefault(host, f"host of {process}" if by_rank else host)
    return found


def packed(*fields: tuple[Ints, int]) -> Ints:
    """Return one key, ``(n,)`` i8, of several numbers.

    Args:
        *fields: Numbers ``(n,)``, and how many bits these have at most; 63 in all.

    Raises:
        QueryError: A number has more.
    """
    key = np.zeros(fields[0][0].size, np.int64)
    for values, bits in fields:
        if values.size and values.max() >> bits:
            raise QueryError(f"more than {1 << bits} of a kind cannot be compared")
        key = key << bits | values
    return key


def unpacked(key: int, *bits: int) -> list[int]:
    """Return the numbers that a key is made of."""
    found = []
    for width in reversed(bits):
        found.append(key & (1 << width) - 1)
        key >>= width
    return found[::-1]


def ordinals(groups: Ints, order: Ints) -> Ints:
    """Return the place of each row among those of its group, from 0, ``(n,)``.

    Args:
        groups: ``(n,)`` of each row.
        order: ``(n,)``, by which rows of a group are counted; equal ones as they stand.
    """
    at = np.lexsort((order, groups))
    of = groups[at]
    begins = np.flatnonzero(np.append(True, of[1:] != of[:-1]))[: of.size]
    lengths = np.diff(np.append(begins, of.size))
    found = np.empty(of.size, np.int64)
    found[at] = np.arange(of.size) - np.repeat(begins, lengths)
    return found
