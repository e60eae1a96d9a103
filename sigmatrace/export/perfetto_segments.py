"""Writes the events of a piece, track by track."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export import rooms
from sigmatrace.export.kernels import packets as kernel
from sigmatrace.export.kernels.order import end_range, group_rows, sort_rows
from sigmatrace.export.kernels.wire import SLACK_BYTES
from sigmatrace.export.perfetto_flows import Written
from sigmatrace.export.perfetto_rows import Rows, argument_table
from sigmatrace.export.perfetto_settle import BORDER, SEGMENT
from sigmatrace.export.perfetto_tracks import Tracks

_COUNTS = {
    "slices": kernel.SLICES,
    "instants": kernel.INSTANTS,
    "flow_starts": kernel.FLOW_STARTS,
    "flow_ends": kernel.FLOW_ENDS,
    "displaced": kernel.DISPLACED,
    "early": kernel.EARLY,
}
_Pair = tuple[np.ndarray, np.ndarray]


class PieceWriter:
    """Writes a piece: for each track a head, then its packets.

    Args:
        number: The piece's number, over the whole trace.
        tracks: Numbers of tracks.
        base_ns: Events before it are counted as "early".

    Attributes:
        counts: What was written, by kind.
        body: The piece's bytes.
        written: What of each source perfetto_flows needs.
    """

    def __init__(self, number: int, tracks: Tracks, base_ns: int) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        self.body: list[bytes | memoryview] = []
        self.written: list[Written] = []
        self._number = number
        self._size = 0
        self._tracks = tracks
        self._base_ns = base_ns
        self._lanes = 0
        self._segments: list[tuple[int, ...]] = []
        self._borders: list[np.ndarray] = []

    def write(self, rows: Rows) -> int:
        """Write the rows of a source, track by track; return how many slices and instants."""
        if rows.track.size == 0:
            return 0
        before = self.counts["slices"] + self.counts["instants"]
        first = int(rows.track.min())
        order, starts = group_rows(rows.track, first, int(rows.track.max()) - first + 1)
        sizes = np.diff(starts)
        scratch = _Scratch.of(rows)
        for place in np.flatnonzero(sizes).tolist():
            self._track(rows, first + place, order[starts[place] : starts[place + 1]], scratch)
        self.written.append(Written(order, starts, rows.flow, rows.shown, rows.begin_ns))
        return self.counts["slices"] + self.counts["instants"] - before

    def summary(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the piece's ``SEGMENT`` and ``BORDER`` rows."""
        borders = np.concatenate([np.empty(0, BORDER), *self._borders])
        return np.array(self._segments, SEGMENT), borders

    def _track(self, rows: Rows, track: int, order: np.ndarray, scratch: _Scratch) -> None:
        sort_rows(order, rows.begin_ns, rows.length_ns, rows.depth)
        min_end, max_end = end_range(order, rows.begin_ns, rows.length_ns)
        sequence = self._tracks.sequence(self._number, track)
        spare = self._tracks.lane(self._number, self._lanes)
        out = scratch.out[scratch.used :]
        kernel.encode_track(
            order,
            rows.begin_ns,
            rows.length_ns,
            rows.columns,
            scratch.arguments,
            self._base_ns,
            min_end,
            spare + 1,
            int(rows.nests),
            packets.word(packets.number(10, sequence)),
            out,
            scratch.borders,
            scratch.iids,
            scratch.listed,
            scratch.room,
        )
        stat = scratch.room[0].tolist()
        head, track_at = _head(rows, sequence, stat, scratch)
        self._describe_lanes(track, stat[kernel.LANES])
        start = self._size
        self._put(head)
        self._put(out[: stat[kernel.BYTES]].data)
        scratch.used += stat[kernel.BYTES]
        body = start + len(head)
        borders = np.empty(stat[kernel.BORDERS], BORDER)
        for name, values in zip(BORDER.names or (), scratch.borders, strict=True):
            borders[name] = values[: borders.size] + (0 if name == "begin_ns" else body)
        self._borders.append(borders)
        where = (track, body + stat[kernel.FIRST_AT], rows.begin_ns[order[0]])
        self._segments.append((*where, start + track_at, min_end, max_end, spare, borders.size))
        self._count(stat)

    def _put(self, data: bytes | memoryview) -> None:
        self.body.append(data)
        self._size += len(data)

    def _describe_lanes(self, track: int, lanes: int) -> None:
        for lane in range(1, lanes + 1):
            uuid = self._tracks.lane(self._number, self._lanes + lane)
            self._put(self._tracks.describe_lane(uuid, track, lane + 1))
        self._lanes += lanes + 1

    def _count(self, stat: list[int]) -> None:
        for name, place in _COUNTS.items():
            self.counts[name] += stat[place]


@dataclass
class _Scratch:
    """Room that the encoder needs: ``out`` for all tracks, the rest for one after the other."""

    arguments: np.ndarray
    out: np.ndarray
    borders: tuple[np.ndarray, ...]
    iids: tuple[np.ndarray, ...]
    listed: tuple[np.ndarray, ...]
    room: tuple[np.ndarray, np.ndarray, _Pair, _Pair]
    used: int = 0

    @classmethod
    def of(cls, rows: Rows) -> _Scratch:
        keys = int(rows.name.max()) + 1, rows.texts
        slices = int(np.count_nonzero(rows.length_ns > 0))
        arguments = argument_table(rows.arguments, rows.values)
        row_bytes = kernel.ROW_BYTES + kernel.ARGUMENT_BYTES * len(arguments)

        def some() -> np.ndarray:
            return np.empty(slices, np.int64)

        return cls(
            arguments,
            rooms.take(rows.track.size * row_bytes + SLACK_BYTES),
            (some(), some(), some()),
            tuple(np.zeros(size, np.int32) for size in keys),
            tuple(np.empty(size, np.int64) for size in keys),
            (np.zeros(kernel.STATS, np.int64), some(), (some(), some()), (some(), some())),
        )


def _head(rows: Rows, sequence: int, stat: list[int], scratch: _Scratch) -> tuple[bytes, int]:
    names, texts = (
        keys[: stat[kernel.NAMES + k]].tolist() for k, keys in enumerate(scratch.listed)
    )
    return packets.sequence_head(
        sequence,
        [rows.name_text(key) for key in names],
        [argument.name for argument in rows.arguments],
        [rows.value_text(key) for key in texts],
    )
