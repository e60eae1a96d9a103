"""How many messages have an arrow in the trace: both ends meet in one place, stretch by stretch.

The viewer draws an arrow from a send to a receive that stands behind it. Where clocks disagree a
receive may stand before its send: such a message has two slices, and no arrow. Both are counted,
so that the trace and the table ``messages`` can be compared.

Ends lie in one file of the staging folder, piece by piece: 4 bytes each, 6 where the numbers of
flows do not follow each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sigmatrace.export.kernels import flows as kernel

ENDS = "perfetto-ends"
"""Name of the file of all ends."""

_KEYS = 1 << 12
"""Stretches and directions that one track has at a time; more are possible, and cost more."""
_BATCH_ENDS = 1 << 20
"""Ends that a thread has in memory at a time."""


class Written(NamedTuple):
    """Events of a source as they were written.

    Attributes:
        order: u4[n], row numbers by track.
        starts: i8[tracks + 1], where the rows of each track begin in ``order``.
        flow: u8[n], 0 = none.
        shown: u2[n], ``kernels.packets.SINK``: the flow ends here.
        begin_ns: i8[n].
    """

    order: np.ndarray
    starts: np.ndarray
    flow: np.ndarray
    shown: np.ndarray
    begin_ns: np.ndarray


def collect(sources: Sequence[Written]) -> tuple[np.ndarray, list[memoryview]]:
    """Return the heads of a piece's ends, and what is to be kept of the ends.

    Args:
        sources: In the order in which they were written.

    Returns:
        i8[h, HEAD], see ``kernels.flows``, by key; and bytes.
    """
    sources = [source for source in sources if source.flow.any()]
    of_rows, found, before = [], [np.empty((0, kernel.HEAD), np.int64)], 0
    for source in sources:
        of_row, heads = _numbered(source)
        heads[:, kernel.PLACE] += before
        before += source.order.size
        of_rows.append(of_row)
        found.append(heads)
    heads = np.concatenate(found)
    by_key = np.argsort(heads[:, kernel.KEY], kind="stable")
    sizes = _words(heads[by_key])
    at = np.empty(len(heads), np.int64)
    at[by_key] = np.cumsum(sizes) - sizes
    ends = np.empty(int(sizes.sum()), np.uint16)
    first = 0
    for source, of_row, own in zip(sources, of_rows, found[1:], strict=True):
        mine = at[first : first + len(own)]
        first += len(own)
        kernel.place_ends(source.order, of_row, source.flow, source.begin_ns, own, mine, ends)
    # The first head of each source, which has no ends, has the smallest key.
    return heads[by_key[len(sources) :]], [ends.view(np.uint8).data]


def count(heads: Sequence[np.ndarray], places: Sequence[int], path: Path) -> dict[str, int]:
    """Return ``flows``, messages with an arrow, and ``flows_backwards``, with both ends but none.

    Args:
        heads: Of each piece, in the order of the trace.
        places: Where its ends begin in the file, in bytes.
        path: The file; missing if there are no ends.
    """
    if not any(one.size for one in heads):
        return {"flows": 0, "flows_backwards": 0}
    with path.open("rb") as file, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        count = partial(_count_batch, heads, places, file.fileno())
        counted = pool.map(count, *zip(*_batches(heads), strict=True))
        arrows, backwards = np.sum(list(counted), axis=0).tolist()
    return {"flows": arrows, "flows_backwards": backwards}


def _numbered(source: Written) -> tuple[np.ndarray, np.ndarray]:
    """Return which head the end of each row has, and the heads."""
    of_row = np.empty(source.order.size, np.uint32)
    heads = np.empty((source.order.size + 1, kernel.HEAD), np.int64)
    used = kernel.number_ends(*source, np.zeros(_KEYS, np.uint32), of_row, heads)
    return of_row, heads[:used].copy()


def _words(heads: np.ndarray) -> np.ndarray:
    """Return how many words i8[h] the ends of each head take."""
    words: np.ndarray = heads[:, kernel.COUNT] * (2 + heads[:, kernel.GAPS])
    return words


def _batches(heads: Sequence[np.ndarray]) -> Iterator[tuple[int, int]]:
    """Yield ranges of stretches that have about ``_BATCH_ENDS`` ends each."""
    stretch = np.concatenate([one[:, kernel.KEY] for one in heads]) >> 1
    stretches, which = np.unique(stretch, return_inverse=True)
    sizes = np.bincount(which, np.concatenate([one[:, kernel.COUNT] for one in heads]))
    batch = (np.cumsum(sizes) - 1) // _BATCH_ENDS
    firsts = stretches[np.flatnonzero(np.diff(batch, prepend=-1))].tolist()
    yield from zip(firsts, [*firsts[1:], int(stretches[-1]) + 1], strict=True)


def _count_batch(
    heads: Sequence[np.ndarray], places: Sequence[int], file: int, low: int, high: int
) -> np.ndarray:
    """Count the arrows of the stretches from ``low`` up to ``high``."""
    found, parts = [], []
    for piece, (mine, place) in enumerate(zip(heads, places, strict=True)):
        a, b = np.searchsorted(mine[:, kernel.KEY], [low << 1, high << 1])
        if a == b:
            continue
        found.append(mine[a:b].copy())
        found[-1][:, kernel.PLACE] |= piece << 32
        parts.append(np.empty(int(_words(mine[a:b]).sum()), np.uint16))
        skipped = parts[-1].itemsize * int(_words(mine[:a]).sum())
        os.preadv(file, [parts[-1].data], place + skipped)
    together = np.concatenate(found)
    sizes = _words(together)
    at = np.cumsum(sizes) - sizes
    by_key = np.argsort(together[:, kernel.KEY], kind="stable")
    return np.array(kernel.count_arrows(together[by_key], at[by_key], np.concatenate(parts)))
