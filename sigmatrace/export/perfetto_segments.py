"""Writes the events of a piece, track by track."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.kernels import packets as kernel
from sigmatrace.export.kernels.flows import collect_ends
from sigmatrace.export.kernels.order import end_range, group_rows, sort_rows
from sigmatrace.export.kernels.wire import SLACK_BYTES
from sigmatrace.export.perfetto_tracks import BORDER, SEGMENT, Track, Tracks

Text = Callable[[int], str]
_COUNTS = {
    "slices": kernel.SLICES,
    "instants": kernel.INSTANTS,
    "flow_starts": kernel.FLOW_STARTS,
    "flow_ends": kernel.FLOW_ENDS,
    "displaced": kernel.DISPLACED,
    "early": kernel.EARLY,
}
_Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Events to be shown, one slice or instant each; arrays of the same length.

    Attributes:
        kind: Which of their thread's tracks they go to.
        thread: u4, as in the run's table ``threads``.
        begin_ns: i8, Unix time.
        length_ns: i8, 0 or less: an instant.
        depth: u1, calls around it; orders slices of the same begin and end.
        name: u4, key of a text.
        size_bytes: u8.
        flags: u1, ``schema.OpFlag``.
        op: u1, ``schema.Op``.
        peer: i4, process at the other end, -1 = none.
        note: u4, key of a text, 0 = none.
        flow: u8, 0 = none.
        name_text: Text of a name.
        note_text: Text of a note.
        note_name: Name of the argument that shows the note.
    """

    kind: Track
    thread: np.ndarray
    begin_ns: np.ndarray
    length_ns: np.ndarray
    depth: np.ndarray
    name: np.ndarray
    size_bytes: np.ndarray
    flags: np.ndarray
    op: np.ndarray
    peer: np.ndarray
    note: np.ndarray
    flow: np.ndarray
    name_text: Text
    note_text: Text
    note_name: str

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The columns that describe a row, as ``encode_track`` takes them."""
        return (
            self.name,
            self.size_bytes,
            self.flags,
            self.op,
            self.peer,
            self.note,
            self.flow,
        )


class PieceWriter:
    """Writes a piece: for each track a head, then its packets.

    Args:
        number: The piece's number, over the whole trace.
        file: Where it goes.
        tracks: Numbers of tracks.
        peers: Text of each process.
        base_ns: Events before it are counted as "early".

    Attributes:
        counts: What was written, by kind.
        ends: Ends of arrows, as they were written (``kernels.flows.collect_ends``).
    """

    def __init__(
        self, number: int, file: BinaryIO, tracks: Tracks, peers: list[str], base_ns: int
    ) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        self.ends: list[np.ndarray] = []
        self._number = number
        self._file = file
        self._tracks = tracks
        self._peers = peers
        self._base_ns = base_ns
        self._lanes = 0
        self._segments: list[tuple[int, ...]] = []
        self._borders: list[np.ndarray] = []

    def write(self, rows: Rows) -> None:
        """Write rows of one kind."""
        order, starts = group_rows(rows.thread, len(self._tracks.threads))
        most = int(np.diff(starts).max(initial=0))
        scratch = _Scratch.of(rows, most, len(self._peers))
        for thread in np.flatnonzero(np.diff(starts)).tolist():
            self._track(rows, thread, order[starts[thread] : starts[thread + 1]], scratch)

    def summary(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the piece's ``SEGMENT`` and ``BORDER`` rows."""
        borders = np.concatenate([np.empty(0, BORDER), *self._borders])
        return np.array(self._segments, SEGMENT), borders

    def _track(self, rows: Rows, thread: int, order: np.ndarray, scratch: _Scratch) -> None:
        sort_rows(order, rows.begin_ns, rows.length_ns, rows.depth)
        min_end, max_end = end_range(order, rows.begin_ns, rows.length_ns)
        sequence = self._tracks.sequence(self._number, rows.kind, thread)
        spare = self._tracks.lane(self._number, self._lanes)
        kernel.encode_track(
            order,
            rows.begin_ns,
            rows.length_ns,
            rows.columns,
            self._base_ns,
            min_end,
            spare + 1,
            _word(packets.number(10, sequence)),
            scratch.out,
            scratch.borders,
            scratch.iids,
            scratch.listed,
            scratch.room,
        )
        stat = scratch.room[0].tolist()
        head, track_at = self._head(rows, sequence, stat, scratch)
        self._describe_lanes(thread, spare, stat[kernel.LANES])
        start = self._file.tell()
        self._file.write(head)
        self._file.write(scratch.out[: stat[kernel.BYTES]].data)
        body = start + len(head)
        borders = np.empty(stat[kernel.BORDERS], BORDER)
        for name, values in zip(BORDER.names or (), scratch.borders, strict=True):
            borders[name] = values[: borders.size] + (0 if name == "begin_ns" else body)
        self._borders.append(borders)
        where = (rows.kind, thread, body + stat[kernel.FIRST_AT], rows.begin_ns[order[0]])
        self._segments.append((*where, start + track_at, min_end, max_end, spare, borders.size))
        self._count(stat)
        ends = stat[kernel.FLOW_STARTS] + stat[kernel.FLOW_ENDS]
        if ends:
            self.ends.append(np.empty((ends, 3), np.int64))
            collect_ends(order, rows.flow, rows.begin_ns, rows.op, self.ends[-1])

    def _head(
        self, rows: Rows, sequence: int, stat: list[int], scratch: _Scratch
    ) -> tuple[bytes, int]:
        names, peers, notes = (
            keys[: stat[kernel.NAMES + k]].tolist() for k, keys in enumerate(scratch.listed)
        )
        return packets.sequence_head(
            sequence,
            [rows.name_text(key) for key in names],
            [self._peers[key] for key in peers],
            [rows.note_text(key) for key in notes],
            rows.note_name,
        )

    def _describe_lanes(self, thread: int, spare: int, lanes: int) -> None:
        for lane in range(1, lanes + 1):
            uuid = self._tracks.lane(self._number, self._lanes + lane)
            name = f"lane {lane + 1}"
            self._file.write(self._tracks.describe_lane(uuid, thread, name))
        self._lanes += lanes + 1

    def _count(self, stat: list[int]) -> None:
        for name, place in _COUNTS.items():
            self.counts[name] += stat[place]


@dataclass(frozen=True)
class _Scratch:
    """Room that the encoder needs, used for one track after the other."""

    out: np.ndarray
    borders: tuple[np.ndarray, ...]
    iids: tuple[np.ndarray, ...]
    listed: tuple[np.ndarray, ...]
    room: tuple[np.ndarray, np.ndarray, _Pair, _Pair]

    @classmethod
    def of(cls, rows: Rows, most: int, peers: int) -> _Scratch:
        keys = (int(rows.name.max(initial=0)) + 1, peers, int(rows.note.max(initial=0)) + 1)

        def some() -> np.ndarray:
            return np.empty(most, np.int64)

        return cls(
            np.empty(most * kernel.ROW_BYTES + SLACK_BYTES, np.uint8),
            (some(), some(), some()),
            tuple(np.zeros(size, np.int32) for size in keys),
            tuple(np.empty(size, np.int64) for size in keys),
            (np.zeros(kernel.STATS, np.int64), some(), (some(), some()), (some(), some())),
        )


def _word(field: bytes) -> np.ndarray:
    """Return at most 8 bytes as a little-endian number, and how many there are."""
    return np.array([int.from_bytes(field, "little"), len(field)], np.uint64)
