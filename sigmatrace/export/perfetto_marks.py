"""Regions, instants and counters: what the program itself marks, and traffic over time.

Marks are few. They are kept as they are until all partitions are known, so that a region may
begin in one partition and end in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.amounts import INITIATORS
from sigmatrace.export.kernels.order import group_rows, pair_regions, sort_rows
from sigmatrace.export.kernels.packets import COUNTER_BYTES, encode_counters
from sigmatrace.export.kernels.wire import SLACK_BYTES
from sigmatrace.export.perfetto_segments import Rows
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import Layer, MarkKind, Op, OpFlag

MARK = np.dtype(
    [
        ("proc", "i4"),
        ("thread", "u4"),
        ("t_ns", "i8"),
        ("value", "f8"),
        ("name", "u4"),
        ("kind", "u1"),
    ]
)
"""A mark, with the columns of the table ``marks``."""

INGRESS = (Op.RECV, Op.GET)
EGRESS = tuple(op for op in INITIATORS if op not in INGRESS)
"""Operations whose bytes come into, and leave, the process that asked for them."""

_DIRECTIONS = {"egress": EGRESS, "ingress": INGRESS}


def fact_ns(run: Run, name: str) -> int:
    """Return a fact of the run that is a time in ns."""
    return int(cast(int, run.facts[name]))


def marks_of(part: Partition) -> np.ndarray:
    """Return a partition's marks as ``MARK`` rows."""
    marks = np.empty(part.tables["marks"].num_rows, MARK)
    for name in MARK.names or ():
        marks[name] = part.column("marks", name)
    return marks


def mark_texts(run: Run, marks: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return for each mark the key u4 of its name, and the names by key.

    Names are numbered per process; a key means the same text in all.
    """
    texts: dict[str, int] = {}
    keys: dict[tuple[int, int], int] = {}
    columns = (run.tables["names"].column(k).to_pylist() for k in ("proc", "name", "text"))
    for proc, name, text in zip(*columns, strict=True):
        keys[proc, name] = texts.setdefault(text, len(texts))
    pairs, which = np.unique(
        marks["proc"].astype(np.int64) << 32 | marks["name"], return_inverse=True
    )
    of_pair = [
        keys.get((pair >> 32, pair & 0xFFFFFFFF), -1)
        if (pair >> 32, pair & 0xFFFFFFFF) in keys
        else texts.setdefault(f"name {pair & 0xFFFFFFFF}", len(texts))
        for pair in pairs.tolist()
    ]
    return np.array(of_pair, np.uint32)[which], list(texts)


def regions(
    marks: np.ndarray, key: np.ndarray, texts: Sequence[str], threads: int
) -> tuple[Rows, dict[str, int]]:
    """Return the program's regions and instants, and counts of what did not pair up.

    A region that was never ended is shown as an instant that says so.

    Args:
        marks: ``MARK`` rows of the whole run.
        key: u4, name of each.
        texts: Names by key.
        threads: How many threads the run has.
    """
    length = np.zeros(marks.size, np.int64)
    note = np.zeros(marks.size, np.uint32)
    begin, kind = marks["t_ns"].copy(), marks["kind"].copy()
    zeros = np.zeros(marks.size, np.uint8)
    order, starts = group_rows(marks["thread"].copy(), threads)
    strays = closed = 0
    for thread in np.flatnonzero(np.diff(starts)).tolist():
        mine = order[starts[thread] : starts[thread + 1]]
        sort_rows(mine, begin, length, zeros)
        ends, stray = pair_regions(mine, kind, key, MarkKind.BEGIN, MarkKind.END)
        paired = ends >= 0
        length[mine[paired]] = begin[ends[paired]] - begin[mine[paired]]
        note[mine[~paired]] = kind[mine[~paired]] == MarkKind.BEGIN
        strays += stray
        closed += int(paired.sum())
    shown = np.flatnonzero((kind == MarkKind.BEGIN) | (kind == MarkKind.INSTANT))
    none = np.zeros(shown.size, np.uint8)
    rows = Rows(
        kind=Track.REGIONS,
        thread=marks["thread"][shown],
        begin_ns=begin[shown],
        length_ns=length[shown],
        depth=none,
        name=key[shown],
        size_bytes=none.astype(np.uint64),
        flags=np.full(shown.size, OpFlag.SIZE_UNKNOWN, np.uint8),
        op=none,
        peer=np.full(shown.size, -1, np.int32),
        note=note[shown],
        flow=none.astype(np.uint64),
        name_text=texts.__getitem__,
        note_text=lambda _: "never ended",
        note_name="region",
    )
    known = np.bincount(kind, minlength=256)
    counts = {
        "mark_records": marks.size,
        "mark_instants": int(known[MarkKind.INSTANT]),
        "mark_unknown": marks.size - int(known[list(MarkKind)].sum()),
        "regions_closed": closed,
        "regions_open": int(note.sum()),
        "regions_stray_ends": strays,
    }
    return rows, counts


@dataclass
class Counters:
    """Values of counters, and the descriptors of their tracks.

    Attributes:
        uuid: i8[n], number of the counter's track.
        t_ns: i8[n], Unix time.
        value: f8[n].
        described: Encoded descriptors.
        next_uuid: The first number that is free.
    """

    uuid: np.ndarray
    t_ns: np.ndarray
    value: np.ndarray
    described: bytes
    next_uuid: int

    def encode(self, base_ns: int) -> bytes:
        """Return descriptors and values as packets.

        Args:
            base_ns: Unix ns of the trace's zero, not after any value.
        """
        out = np.empty(self.uuid.size * COUNTER_BYTES + SLACK_BYTES, np.uint8)
        used = encode_counters(self.uuid, self.t_ns - base_ns, self.value, out)
        return self.described + out[:used].tobytes()


def traffic_counters(run: Run, tracks: Tracks, uuid: int) -> Counters:
    """Return bytes per second over time of each process, layer and direction.

    Layers stay apart, because a message that passes two of them is seen in both. A value holds
    for its bin; after the last bin with traffic, and in gaps, there is a zero.

    Args:
        run: The run with its table ``timeline`` and the facts ``timeline_ns`` and ``bin_ns``.
        tracks: Numbers of tracks.
        uuid: Number of the first counter.
    """
    begin_ns, bin_ns = fact_ns(run, "timeline_ns"), fact_ns(run, "bin_ns")
    op = run.column("timeline", "op")
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    described = b""
    for direction, ops in _DIRECTIONS.items():
        mine = np.isin(op, [int(o) for o in ops])
        bins = run.column("timeline", "bin")[mine].astype(np.int64)
        proc = run.column("timeline", "proc")[mine].astype(np.int64)
        layer = run.column("timeline", "layer")[mine].astype(np.int64)
        size = run.column("timeline", "size_bytes")[mine].astype(np.float64)
        streams, stream = np.unique(proc << 8 | layer, return_inverse=True)
        places, place = np.unique(stream << 32 | bins, return_inverse=True)
        total = np.bincount(place, size, places.size)
        gaps = np.setdiff1d(places + 1, places, assume_unique=True)
        parts.append((places + (uuid << 32), total * 1e9 / bin_ns, gaps + (uuid << 32)))
        for number in streams.tolist():
            name = f"{Layer(number & 0xFF).name.lower()} {direction}"
            parent = tracks.process(number >> 8)
            described += packets.track(uuid, packets.counter("B/s"), name=name, parent=parent)
            uuid += 1
    place = np.concatenate([part for places, _, gaps in parts for part in (places, gaps)])
    value = np.concatenate(
        [part for _, rate, gaps in parts for part in (rate, np.zeros(gaps.size))]
    )
    order = np.argsort(place, kind="stable")
    place = place[order]
    t_ns = begin_ns + (place & 0xFFFFFFFF) * bin_ns
    return Counters(place >> 32, t_ns, value[order], described, uuid)


def mark_counters(
    marks: np.ndarray, key: np.ndarray, texts: Sequence[str], tracks: Tracks, uuid: int
) -> Counters:
    """Return the counters that the program itself set, one track per process and name.

    Args:
        marks: ``MARK`` rows of the whole run.
        key: u4, name of each.
        texts: Names by key.
        tracks: Numbers of tracks.
        uuid: Number of the first counter.
    """
    mine = marks["kind"] == MarkKind.COUNTER
    streams, stream = np.unique(
        marks["proc"][mine].astype(np.int64) << 32 | key[mine], return_inverse=True
    )
    described = b"".join(
        packets.track(
            uuid + k,
            packets.counter(""),
            name=texts[number & 0xFFFFFFFF],
            parent=tracks.process(number >> 32),
        )
        for k, number in enumerate(streams.tolist())
    )
    return Counters(
        uuid + stream, marks["t_ns"][mine], marks["value"][mine], described, uuid + streams.size
    )
