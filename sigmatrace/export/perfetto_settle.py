"""Chooses the tracks of slices that reach over the borders of partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

SEGMENT = np.dtype(
    [
        ("track", "u4"),
        ("time_at", "i8"),
        ("first_ns", "i8"),
        ("track_at", "i8"),
        ("min_end_ns", "i8"),
        ("max_end_ns", "i8"),
        ("spare", "i8"),
        ("borders", "i8"),
    ]
)
"""What ``finish`` must know of one track's events in one piece.

``track``: its number. ``time_at``, ``track_at``: places in the piece of two padded varints, the
time of the first event and the track's number. ``first_ns``: Unix time of that event.
``min_end_ns``, ``max_end_ns``: the earliest and latest end of a slice (largest and smallest i8
without one). ``spare``: number of a track of this piece alone. ``borders``: how many border
slices follow in the piece's list.
"""

BORDER = np.dtype([("begin_at", "i8"), ("end_at", "i8"), ("begin_ns", "i8")])
"""A slice that begins before any other of its segment ends: places of its track's number in its
two packets, and its begin in Unix ns."""

NO_SLICE = (2**63 - 1, -(2**63))
"""``min_end_ns`` and ``max_end_ns`` of a segment without slices."""


@dataclass
class Settled:
    """The tracks that were chosen for the segments of one piece.

    Attributes:
        patches: (place in the piece, number to put there).
        spares: (number, track) of tracks that are needed beside others.
    """

    patches: list[tuple[int, int]]
    spares: list[tuple[int, int]]


def settle(pieces: Sequence[tuple[np.ndarray, np.ndarray]], base_ns: int) -> Iterator[Settled]:
    """Choose the tracks of all pieces, so that no slices overlap on any.

    A thread stores its calls, and the completions that it sees, in the order of their ends. So a
    slice of a later piece can only overlap one of an earlier piece when it begins before all
    slices of its own piece end: a border slice. Those that begin while an earlier piece's
    slices may be open (an outer call whose inner calls are in the piece before) go to a spare
    track. That order is not taken on trust: a segment that ends anything before an earlier one
    ends everything goes to its spare track as a whole.

    Args:
        pieces: Per piece, in file order, its ``SEGMENT`` and ``BORDER`` rows.
        base_ns: Unix ns of the trace's zero; no segment begins before it.

    Yields:
        One per piece.
    """
    reached: dict[int, int] = {}
    for segments, borders in pieces:
        settled = Settled([], [])
        row = 0
        for segment in segments.tolist():
            main, time_at, first, track_at, min_end, max_end, spare, count = segment
            mine = borders[row : row + count]
            row += count
            before = reached.get(main, NO_SLICE[1])
            apart = min_end < before
            settled.patches += [(time_at, first - base_ns), (track_at, spare if apart else main)]
            if not apart:
                reached[main] = max(before, max_end)
            needed = apart
            for begin_at, end_at, begin in mine.tolist():
                aside = apart or begin < before
                needed |= aside
                settled.patches += [(at, spare if aside else main) for at in (begin_at, end_at)]
            if needed:
                settled.spares.append((spare, main))
        yield settled
