"""Which tracks a trace has, their numbers, and which of them a piece's slices go to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sigmatrace.errors import OutputError
from sigmatrace.export import perfetto_packets as packets
from sigmatrace.partition import Run

SEGMENT = np.dtype(
    [
        ("kind", "u1"),
        ("thread", "u4"),
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

``time_at``, ``track_at``: places in the piece of two padded varints, the time of the first event
and the track's number. ``first_ns``: Unix time of that event. ``min_end_ns``, ``max_end_ns``: the
earliest and latest end of a slice (largest and smallest i8 without one). ``spare``: number of a
track of this piece alone. ``borders``: how many border slices follow in the piece's list.
"""

BORDER = np.dtype([("begin_at", "i8"), ("end_at", "i8"), ("begin_ns", "i8")])
"""A slice that begins before any other of its segment ends: places of its track's number in its
two packets, and its begin in Unix ns."""

NO_SLICE = (2**63 - 1, -(2**63))
"""``min_end_ns`` and ``max_end_ns`` of a segment without slices."""

_LANES_FROM = 1 << 40
_LANES_OF_A_PIECE = 1 << 24
_PIDS_FROM = 1 << 22


class Track(IntEnum):
    """Kind of a thread's track."""

    CALLS = 0
    COMPLETIONS = 1
    REGIONS = 2


@dataclass(frozen=True)
class Tracks:
    """Numbers of tracks and packet sequences, equal wherever they are worked out.

    Attributes:
        threads: Names of the run's threads, by ``thread``.
        processes: How many processes the run has.
    """

    threads: Sequence[str]
    processes: int

    @classmethod
    def of(cls, run: Run) -> Tracks:
        """Return the tracks of a run, from its index."""
        tids = run.column("threads", "tid").tolist()
        names = run.column("threads", "name").tolist()
        named = [name or f"thread {tid}" for name, tid in zip(names, tids, strict=True)]
        return cls(named, run.tables["processes"].num_rows)

    def thread(self, kind: int, thread: int) -> int:
        """Return the number of a thread's track."""
        return 1 + kind * len(self.threads) + thread

    def process(self, proc: int) -> int:
        """Return the number of a process's track."""
        return 1 + len(Track) * len(self.threads) + proc

    @property
    def counters_from(self) -> int:
        """The number of the first counter's track."""
        return self.process(self.processes)

    def lane(self, piece: int, lane: int) -> int:
        """Return the number of a track that one piece has for itself."""
        if lane >= _LANES_OF_A_PIECE:
            raise OutputError("perfetto: too many overlapping slices", "make partitions smaller")
        return _LANES_FROM + piece * _LANES_OF_A_PIECE + lane

    def sequence(self, piece: int, kind: int, thread: int) -> int:
        """Return the number of the packet sequence of a track in a piece; 1 is the header's."""
        of_piece = piece * len(self.threads) + thread
        sequence = 2 + of_piece * len(Track) + kind
        if sequence >= 1 << 32:
            raise OutputError("perfetto: too many threads and pieces", "make partitions larger")
        return sequence

    def describe_lane(self, uuid: int, thread: int, name: str) -> bytes:
        """Return the descriptor of a track that stands beside a thread's."""
        parent = self.thread(Track.CALLS, thread)
        return packets.track(uuid, name=f"{self.threads[thread]} ({name})", parent=parent)


def describe(run: Run, tracks: Tracks, used: set[tuple[int, int]]) -> bytes:
    """Return the descriptors of processes and threads.

    Perfetto tells processes apart by pid alone. Of several that have the same (on other hosts,
    after exec) all but one get a number beyond Linux's pids; their names hold the real pid, since
    the viewer writes the number that we give behind each name.

    Args:
        run: The run with its tables ``processes`` and ``threads``.
        tracks: Their numbers.
        used: (kind, thread) of the tracks that have events.
    """
    out = [packets.root()]
    real = run.column("processes", "pid").tolist()
    labels = run.column("processes", "label").tolist()
    hosts = run.column("processes", "host").tolist()
    pids: list[int] = []
    seen: set[int] = set()
    for proc, pid in enumerate(real):
        usable = 0 < pid < _PIDS_FROM and pid not in seen
        seen.add(pid)
        pids.append(pid if usable else _PIDS_FROM + proc)
        real_pid = "" if usable else f", pid {pid}"
        where = packets.process(pids[proc], f"{labels[proc]} ({hosts[proc]}{real_pid})")
        out.append(packets.track(tracks.process(proc), where, rank=proc))
    owners = run.column("threads", "proc").tolist()
    for thread, (proc, tid) in enumerate(
        zip(owners, run.column("threads", "tid").tolist(), strict=True)
    ):
        shown = pids[proc] if tid == real[proc] else tid
        where = packets.thread(pids[proc], shown, tracks.threads[thread])
        uuid = tracks.thread(Track.CALLS, thread)
        out.append(packets.track(uuid, where, parent=tracks.process(proc)))
        out.extend(
            packets.track(tracks.thread(kind, thread), name=kind.name.lower(), parent=uuid)
            for kind in (Track.COMPLETIONS, Track.REGIONS)
            if (kind, thread) in used
        )
    return b"".join(out)


@dataclass
class Settled:
    """The tracks that were chosen for the segments of one piece.

    Attributes:
        patches: (place in the piece, number to put there).
        spares: (number, thread) of tracks that are needed beside the threads' own.
    """

    patches: list[tuple[int, int]]
    spares: list[tuple[int, int]]


def settle(
    pieces: Sequence[tuple[np.ndarray, np.ndarray]], tracks: Tracks, base_ns: int
) -> Iterator[Settled]:
    """Choose the tracks of all pieces, so that no slices overlap on any.

    A thread stores its calls in the order of their ends. So a slice of a later piece can only
    overlap one of an earlier piece when it begins before all slices of its own piece end: a
    border slice. Those that begin while an earlier piece's slices may be open (an outer call
    whose inner calls are in the piece before) go to a spare track. That order is not taken
    on trust: a segment that ends anything before an earlier one ends everything goes to its
    spare track as a whole.

    Args:
        pieces: Per piece, in file order, its ``SEGMENT`` and ``BORDER`` rows.
        tracks: Numbers of tracks.
        base_ns: Unix ns of the trace's zero; no segment begins before it.

    Yields:
        One per piece.
    """
    reached: dict[tuple[int, int], int] = {}
    for segments, borders in pieces:
        settled = Settled([], [])
        row = 0
        for segment in segments.tolist():
            kind, thread, time_at, first, track_at, min_end, max_end, spare, count = segment
            mine = borders[row : row + count]
            row += count
            main = tracks.thread(kind, thread)
            before = reached.get((kind, thread), NO_SLICE[1])
            apart = min_end < before
            settled.patches += [(time_at, first - base_ns), (track_at, spare if apart else main)]
            if not apart:
                reached[kind, thread] = max(before, max_end)
            needed = apart
            for begin_at, end_at, begin in mine.tolist():
                aside = apart or begin < before
                needed |= aside
                settled.patches += [(at, spare if aside else main) for at in (begin_at, end_at)]
            if needed:
                settled.spares.append((spare, thread))
        yield settled
