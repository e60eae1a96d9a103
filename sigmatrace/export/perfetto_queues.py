"""How many requests each queue pair had outstanding, over time.

Posts and completions of one queue pair lie in different chunks, and so in different partitions.
Each piece keeps them by queue pair; what is known of one queue pair meets in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.kernels.objects import outstanding_kernel
from sigmatrace.export.kernels.order import group_rows, sort_rows
from sigmatrace.export.kernels.packets import COUNTER_BYTES, encode_values
from sigmatrace.export.kernels.wire import SLACK_BYTES
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.lookup import find_objects
from sigmatrace.partition import Partition
from sigmatrace.trace_format import NO_POSITION, Queue

_ROW_BYTES = 16
_Events = tuple[np.ndarray, np.ndarray]


def save_queues(path: Path, part: Partition, tracks: Tracks) -> None:
    """Write a partition's posts and completions of send queues, grouped by queue pair.

    Those whose completions cannot be seen are left out: they would stay outstanding.

    The file holds how many queue pairs there are, then per queue pair its number and how many rows
    it has, then the rows: Unix ns, and the code that ``kernels.objects.outstanding_kernel`` takes.
    """
    if tracks.qps.keys.size == 0:
        path.write_bytes(bytes(8))
        return
    posts = _events(part, "requests", 0, tracks)
    ends = _events(part, "cqes", 1, tracks)
    qp, t_ns, code = (np.concatenate(both) for both in zip(posts, ends, strict=True))
    order, starts = group_rows(qp.astype(np.uint32), 0, tracks.qps.keys.size)
    counts = np.diff(starts)
    used = np.flatnonzero(counts)
    with path.open("wb") as file:
        file.write(np.array([used.size], np.int64).data)
        file.write(np.stack([used, counts[used]], axis=1).data)
        file.write(np.stack([t_ns[order], code[order]], axis=1).data)


def _events(
    part: Partition, table: str, completes: int, tracks: Tracks
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return queue pair, Unix ns and code of the rows of a table that tell of a send queue."""
    qp = find_objects(tracks.qps.keys, part.column(table, "proc"), part.column(table, "object"))
    position = part.column(table, "position")
    visible = np.append(tracks.qps.sees_completions, False)[qp]
    use = visible & (part.column(table, "queue") == Queue.SEND)
    if completes:
        use &= position != NO_POSITION
    code = position[use].astype(np.int64) << 1 | completes
    return qp[use], part.column(table, "t_ns")[use], code


@dataclass
class Depths:
    """The counters ``outstanding`` (of GPUs ``outstanding slots``) of a run.

    Where only a window is shown in full, values outside are thinned out: of each bin of the time
    line the largest and the last one stay.

    Args:
        paths: What ``save_queues`` wrote, in any order.
        tracks: Those of the run.
        window_ns: Begin and end in Unix ns of what is shown in full.
        bin_ns: Width of a bin elsewhere.
        described: bool, processes of which there are counters, None: all.

    Attributes:
        values: How many values were written so far.
        thinned: How many were left out.
    """

    paths: Sequence[Path]
    tracks: Tracks
    window_ns: tuple[int, int]
    bin_ns: int
    described: np.ndarray | None = None
    values: int = 0
    thinned: int = 0
    _places: dict[int, list[tuple[Path, int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.paths:
            (used,) = np.fromfile(path, np.int64, 1).tolist()
            listed = np.fromfile(path, np.int64, 2 * used, offset=8).reshape(-1, 2).tolist()
            at = 8 + _ROW_BYTES * used
            for qp, count in listed:
                if self.described is None or self.described[self.tracks.qps.proc[qp]]:
                    self._places.setdefault(qp, []).append((path, at, count))
                at += _ROW_BYTES * count

    @property
    def parents(self) -> list[int]:
        """Numbers of the tracks that they stand below."""
        return [self.tracks.number(Track.QUEUE_PAIR, qp) for qp in self._places]

    def write(self, file: BinaryIO, piece: int, uuid: int, base_ns: int) -> None:
        """Write descriptors and values; one queue pair at a time is in memory.

        Args:
            file: Where they go.
            piece: Number of a piece in which queue pairs have no packet sequence yet.
            uuid: Number of the first counter.
            base_ns: Unix ns of the trace's zero, not after any row.
        """
        for number, qp in enumerate(self._places, uuid):
            track = self.tracks.number(Track.QUEUE_PAIR, qp)
            slots = self.tracks.qps.is_gpu[qp]  # positions are slots, not requests
            unit = packets.counter("slots" if slots else "requests")
            name = "outstanding slots" if slots else "outstanding"
            file.write(packets.track(number, unit, name=name, parent=track))
            sequence = self.tracks.sequence(piece, track)
            head, track_at = packets.sequence_head(sequence)
            file.write(head[:track_at] + packets.padded(number))
            t_ns, depth = self._depth(qp)
            self.values += t_ns.size
            out = np.empty(t_ns.size * COUNTER_BYTES + SLACK_BYTES, np.uint8)
            word = packets.word(packets.number(10, sequence))
            file.write(out[: encode_values(t_ns, depth, base_ns, word, out)].data)

    def _depth(self, qp: int) -> _Events:
        rows = np.concatenate(list(self._rows(qp)))
        t_ns, code = np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])
        order = np.arange(t_ns.size, dtype=np.uint32)
        sort_rows(order, t_ns, np.zeros_like(t_ns), (code & 1).astype(np.uint8))
        out_t, out_depth = np.empty_like(t_ns), np.empty_like(t_ns)
        used = outstanding_kernel(order, t_ns, code, out_t, out_depth)
        kept = thin(out_t[:used], out_depth[:used], *self.window_ns, self.bin_ns)
        self.thinned += used - kept.size
        return out_t[kept], out_depth[kept]

    def _rows(self, qp: int) -> Iterator[np.ndarray]:
        for path, at, count in self._places[qp]:
            yield np.fromfile(path, np.int64, 2 * count, offset=at).reshape(-1, 2)


def thin(
    t_ns: np.ndarray, value: np.ndarray, begin_ns: int, end_ns: int, bin_ns: int
) -> np.ndarray:
    """Return the places i8[k] of the values to keep, ascending.

    Those in the window, the last one before it, and of each bin outside the largest (of equal ones
    the first) and the last one.

    Args:
        t_ns: i8[n], ascending.
        value: i8[n].
        begin_ns: Of the window.
        end_ns: Of the window.
        bin_ns: Width of a bin.
    """
    place = np.arange(t_ns.size)
    inside = (t_ns >= begin_ns) & (t_ns < end_ns)
    if inside.all():
        return place
    bins = t_ns // bin_ns
    is_last = np.append(np.diff(bins) != 0, True)
    is_last |= np.append(~inside[:-1] & inside[1:], False)
    order = np.lexsort((place, -value, bins))
    is_first = np.append(True, np.diff(bins[order]) != 0)
    is_largest = np.zeros(t_ns.size, bool)
    is_largest[order[is_first]] = True
    return np.flatnonzero(inside | is_last | is_largest)
