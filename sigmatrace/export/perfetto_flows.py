"""How many messages have an arrow in the trace: both ends meet in one place, stretch by stretch.

The viewer draws an arrow from a send to a receive that stands behind it. Where clocks disagree a
receive may stand before its send: such a message has two slices, and no arrow. Both are counted,
so that the trace and the table ``messages`` can be compared.

Ends lie in one file of the staging folder, 10 bytes each; piece by piece: first their times, then
their places in their stretches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sigmatrace.export.kernels.flows import count_arrows, number_ends, place_ends

ENDS = "perfetto-ends"
"""Name of the file of all ends."""
HEAD = np.dtype([("key", "u8"), ("at", "i8"), ("count", "i8"), ("track", "i8")])
"""Ends of one stretch on one track of a piece, by ``key`` (``kernels.flows.number_ends``). ``at``:
which of the piece's ends is the first; ``track``: the track's place in the piece."""

_TIME_BYTES, _LOW_BYTES, _ALIGNMENT_BYTES = 8, 2, 8
_ROOM = 1 << 11
_BATCH_ENDS = 1 << 20
"""Ends that a thread has in memory at a time."""
_Heads = tuple[np.ndarray, np.ndarray, np.ndarray]


class Written(NamedTuple):
    """Events of a source as they were written.

    Attributes:
        order: i8[n], row numbers by track.
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


def collect(sources: Sequence[Written], zero_ns: int) -> tuple[np.ndarray, list[memoryview]]:
    """Return the heads of a piece's ends, ``HEAD``, and what is to be kept of the ends.

    Args:
        sources: In the order in which they were written.
        zero_ns: What times count from, the same for all pieces.
    """
    written = _together([source for source in sources if source.flow.any()])
    if written is None:
        return np.empty(0, HEAD), []
    of_row = np.empty(written.order.size, np.int32)
    key, track, count = _numbered(written, of_row)
    by_key = np.argsort(key, kind="stable")
    ends = int(count.sum())
    at = np.empty_like(count)
    at[by_key] = np.cumsum(count[by_key]) - count[by_key]
    heads = np.empty(key.size, HEAD)
    for name, values in zip(HEAD.names or (), (key, at, count, track), strict=True):
        heads[name] = values[by_key]
    time, low = np.empty(ends, np.int64), np.zeros(_low_room(ends), np.uint16)
    where = written.order, written.starts, of_row
    place_ends(*where, written.flow, written.begin_ns, zero_ns, at, time, low)
    return heads, [time.view(np.uint8).data, low.view(np.uint8).data]


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


def _together(sources: Sequence[Written]) -> Written | None:
    """Return several sources as one."""
    if len(sources) < 2:
        return sources[0] if sources else None
    orders, starts, rows, places = [], [np.zeros(1, np.int64)], 0, 0
    for source in sources:
        orders.append(source.order + rows)
        starts.append(source.starts[1:] + places)
        rows += source.flow.size
        places += source.order.size
    others = (np.concatenate(columns) for columns in list(zip(*sources, strict=True))[2:])
    return Written(np.concatenate(orders), np.concatenate(starts), *others)


def _numbered(written: Written, of_row: np.ndarray) -> _Heads:
    """Return key, track and count of the heads; fill in which head each row has."""
    room = _ROOM
    while True:
        key, track, count = (np.zeros(room, kind) for kind in (np.uint64, np.int64, np.int64))
        table, cell = np.zeros(2 * room, np.uint64), np.empty(2 * room, np.int32)
        columns = (written.order, written.starts, written.flow, written.shown)
        used = number_ends(*columns, room, table, cell, of_row, key, track, count)
        if used >= 0:
            return key[:used], track[:used], count[:used]
        room *= 8


def _low_room(ends: int) -> int:
    """Return how many u2 are kept of so many ends, so that all times are aligned."""
    step = _ALIGNMENT_BYTES // _LOW_BYTES
    return -(-ends // step) * step


def _batches(heads: Sequence[np.ndarray]) -> Iterator[tuple[int, int]]:
    """Yield ranges of stretches that have about ``_BATCH_ENDS`` ends each."""
    stretch = np.concatenate([one["key"] for one in heads]) >> np.uint64(1)
    stretches, which = np.unique(stretch, return_inverse=True)
    sizes = np.bincount(which, np.concatenate([one["count"] for one in heads]))
    batch = (np.cumsum(sizes) - 1) // _BATCH_ENDS
    firsts = stretches[np.flatnonzero(np.diff(batch, prepend=-1))].tolist()
    yield from zip(firsts, [*firsts[1:], int(stretches[-1]) + 1], strict=True)


def _count_batch(
    heads: Sequence[np.ndarray], places: Sequence[int], file: int, low: int, high: int
) -> np.ndarray:
    """Count the arrows of the stretches from ``low`` up to ``high``."""
    keys, found, parts, used = [], [], [], 0
    for piece, (mine, place) in enumerate(zip(heads, places, strict=True)):
        a, b = np.searchsorted(mine["key"], np.array([low, high], np.uint64) << np.uint64(1))
        if a == b:
            continue
        some = mine[a:b]
        first, size = int(some["at"][0]), int(some["count"].sum())
        low_at = place + _TIME_BYTES * int(mine["count"].sum()) + _LOW_BYTES * first
        parts.append((place + _TIME_BYTES * first, low_at, slice(used, used + size)))
        keys.append(some["key"])
        where = some["at"] - first + used, some["count"], some["track"] | piece << 32
        found.append(np.stack(where, axis=1))
        used += size
    time, lows = np.empty(used, np.int64), np.empty(used, np.uint16)
    for time_at, low_at, here in parts:
        os.preadv(file, [time[here].data], time_at)
        os.preadv(file, [lows[here].data], low_at)
    key, head = np.concatenate(keys), np.concatenate(found)
    order = np.argsort(key, kind="stable")
    return np.array(count_arrows(key[order], head[order], time, lows))
