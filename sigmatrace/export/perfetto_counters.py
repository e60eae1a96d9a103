"""Counters: traffic over time of processes, queue pairs and NICs, and what the program counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.kernels.order import group_rows
from sigmatrace.export.kernels.packets import COUNTER_BYTES, encode_counters
from sigmatrace.export.kernels.wire import SLACK_BYTES
from sigmatrace.export.perfetto_targets import silent_targets
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import TIMELINE_BINS
from sigmatrace.trace_format import INITIATORS, MarkKind, Op, layer_text

INGRESS = (Op.RECV, Op.GET)
EGRESS = tuple(op for op in INITIATORS if op not in INGRESS)
"""Operations whose bytes come into, and leave, the process that asked for them."""

DIRECTIONS = ("egress", "ingress")
AMOUNT = np.dtype([("stream", "i8"), ("begin_ns", "i8"), ("size_bytes", "f8")])
"""Bytes of a queue pair and direction (``2 * queue pair + direction``) from a time on, in a bin."""

_BIN_SHIFT_MIN = 10
_LAYER_BITS = 8


@dataclass
class Counters:
    """Values of counters, and the descriptors of their tracks.

    Attributes:
        uuid: i8[n], number of the counter's track.
        t_ns: i8[n], Unix time.
        value: f8[n].
        described: Encoded descriptors.
        parents: Numbers of the tracks that the counters stand below.
        next_uuid: The first number that is free.
    """

    uuid: np.ndarray
    t_ns: np.ndarray
    value: np.ndarray
    described: bytes
    parents: Sequence[int]
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

    Layers stay apart, because a message that passes two of them is seen in both.

    Args:
        run: The run with its table ``timeline`` and the facts ``timeline_ns`` and ``bin_ns``.
        tracks: Those of the run.
        uuid: Number of the first counter.
    """
    proc, layer, bins = (
        run.column("timeline", name).astype(np.int64) for name in ("proc", "layer", "bin")
    )
    direction = _direction(run.column("timeline", "op"))
    size_bytes = run.column("timeline", "size_bytes").astype(np.float64)
    processes = run.tables["processes"].num_rows
    stream = (direction * processes + proc) << _LAYER_BITS | layer

    def described(stream: int) -> tuple[str, int]:
        way, proc = divmod(stream >> _LAYER_BITS, processes)
        name = f"{layer_text(stream % (1 << _LAYER_BITS))} {DIRECTIONS[way]}"
        return name, tracks.number(Track.PROCESS, proc)

    use = (direction >= 0) & (proc >= 0)
    return _rates(run, stream[use], bins[use], size_bytes[use], described, uuid)


def amounts_of(part: Partition, tracks: Tracks) -> np.ndarray:
    """Return what queue pairs carried in a partition, in bins of its own, as ``AMOUNT`` rows.

    A one-sided operation counts at both ends, at the time of its post.

    Bins are as in the table ``timeline``: aligned to their width, a power of two that is at most
    the run's; so they can be joined to the run's later.
    """
    if tracks.qps.keys.size == 0:
        return np.empty(0, AMOUNT)
    direction = _direction(part.column("ops", "op"))
    own = tracks.qps.channel[part.column("ops", "channel")]
    ends = (own, direction), (silent_targets(part, tracks), 1 - direction)
    found = [np.flatnonzero((qp >= 0) & (way >= 0)) for qp, way in ends]
    stream = np.concatenate(
        [
            2 * qp[rows].astype(np.int64) + way[rows]
            for (qp, way), rows in zip(ends, found, strict=True)
        ]
    )
    mine = np.concatenate(found)
    if mine.size == 0:
        return np.empty(0, AMOUNT)
    t_ns = part.column("ops", "t_ns")[mine]
    shift = _BIN_SHIFT_MIN
    while (int(t_ns.max()) >> shift) - (int(t_ns.min()) >> shift) >= TIMELINE_BINS:
        shift += 1
    bins = t_ns >> shift
    first = int(bins.min())
    # Most queue pairs have rows in few bins: there is no place for what has none.
    cells, place = np.unique(stream * TIMELINE_BINS + (bins - first), return_inverse=True)
    size_bytes = np.bincount(place, part.column("ops", "size_bytes")[mine].astype(np.float64))
    used = np.flatnonzero(size_bytes)
    amounts = np.empty(used.size, AMOUNT)
    amounts["stream"] = cells[used] // TIMELINE_BINS
    amounts["begin_ns"] = (cells[used] % TIMELINE_BINS + first) << shift
    amounts["size_bytes"] = size_bytes[used]
    return amounts


def object_counters(
    run: Run, tracks: Tracks, pieces: Sequence[np.ndarray], uuid: int
) -> list[Counters]:
    """Return bytes per second over time of each queue pair, and of each NIC and GPU.

    A NIC's is the sum over the queue pairs of all processes that go through it, a GPU's over those
    of its process.

    Args:
        run: The run with the facts ``timeline_ns`` and ``bin_ns``.
        tracks: Those of the run.
        pieces: ``AMOUNT`` rows.
        uuid: Number of the first counter.
    """
    begin_ns, bin_ns = run.fact_ns("timeline_ns"), run.fact_ns("bin_ns")
    found = [
        _sums(amounts["stream"] << 32 | (amounts["begin_ns"] - begin_ns) // bin_ns, amounts)
        for amounts in pieces
    ]
    key = np.concatenate([np.empty(0, np.int64), *(key for key, _ in found)])
    size_bytes = np.concatenate([np.empty(0), *(size for _, size in found)])
    stream, bins = key >> 32, key & 0xFFFFFFFF

    def of_qp(stream: int) -> tuple[str, int]:
        return DIRECTIONS[stream & 1], tracks.number(Track.QUEUE_PAIR, stream >> 1)

    def of_nic(stream: int) -> tuple[str, int]:
        return DIRECTIONS[stream & 1], tracks.number(Track.NIC, stream >> 1)

    def of_gpu(stream: int) -> tuple[str, int]:
        return DIRECTIONS[stream & 1], tracks.number(Track.GPU, stream >> 1)

    counters = [_rates(run, stream, bins, size_bytes, of_qp, uuid)]
    for of_qps, described in ((tracks.nics.of_qp, of_nic), (tracks.gpus.of_qp, of_gpu)):
        place = of_qps[stream >> 1].astype(np.int64)
        use = place >= 0
        streams = 2 * place[use] + (stream[use] & 1)
        rest = bins[use], size_bytes[use], described, counters[-1].next_uuid
        counters.append(_rates(run, streams, *rest))
    return counters


def _sums(key: np.ndarray, amounts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keys, place = np.unique(key, return_inverse=True)
    return keys, np.bincount(place, amounts["size_bytes"], keys.size)


def _direction(op: np.ndarray) -> np.ndarray:
    """Return the place in ``DIRECTIONS`` i8[n] of each operation, -1 for neither."""
    of_op = np.full(256, -1, np.int64)
    for direction, ops in enumerate((EGRESS, INGRESS)):
        of_op[[int(one) for one in ops]] = direction
    found: np.ndarray = of_op[op]
    return found


def _rates(
    run: Run,
    stream: np.ndarray,
    bins: np.ndarray,
    size_bytes: np.ndarray,
    described: Callable[[int], tuple[str, int]],
    uuid: int,
) -> Counters:
    """Return bytes per second over time, a counter for each stream, in the order of streams.

    A value holds for its bin; after the last bin with traffic, and in gaps, there is a zero.

    Args:
        run: The run with the facts ``timeline_ns`` and ``bin_ns``.
        stream: i8[n], small numbers.
        bins: i8[n], likewise.
        size_bytes: f8[n].
        described: From a stream to the name of its counter, and the track that it stands below.
        uuid: Number of the first counter.
    """
    begin_ns, bin_ns = run.fact_ns("timeline_ns"), run.fact_ns("bin_ns")
    streams, place, size_bytes = _by_place(stream, bins, size_bytes)
    is_first = np.diff(place, prepend=-1) != 0
    places = place[is_first]
    rate = np.bincount(np.cumsum(is_first) - 1, size_bytes, places.size) * 1e9 / bin_ns
    is_last = np.diff(places, append=-1) != 1
    row = np.arange(places.size) + np.cumsum(is_last) - is_last
    at = np.empty(places.size + np.count_nonzero(is_last), np.int64)
    value = np.zeros(at.size)
    at[row], value[row] = places, rate
    at[row[is_last] + 1] = places[is_last] + 1
    t_ns = begin_ns + (at & 0xFFFFFFFF) * bin_ns
    # The run begins inside its first bin; the trace's zero is not to be moved by that.
    base_ns = run.fact_ns("base_ns")
    t_ns[(t_ns < base_ns) & (t_ns + bin_ns > base_ns)] = base_ns
    names = [described(number) for number in streams]
    tracks = b"".join(
        packets.track(uuid + k, packets.counter("B/s"), name=name, parent=parent)
        for k, (name, parent) in enumerate(names)
    )
    parents = [parent for _, parent in names]
    return Counters(uuid + (at >> 32), t_ns, value, tracks, parents, uuid + len(names))


def _by_place(
    stream: np.ndarray, bins: np.ndarray, size_bytes: np.ndarray
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return the streams; then stream (its place among them) << 32 | bin, ascending, and bytes."""
    if np.any(bins[1:] < bins[:-1]):
        order = np.argsort(bins, kind="stable")
        stream, bins, size_bytes = stream[order], bins[order], size_bytes[order]
    order, starts = group_rows(stream.astype(np.uint32), 0, int(stream.max(initial=-1)) + 1)
    counts = np.diff(starts)
    used = np.flatnonzero(counts)
    which = np.repeat(np.arange(used.size), counts[used])
    return used.tolist(), which << 32 | bins[order], size_bytes[order]


def mark_counters(
    marks: np.ndarray, key: np.ndarray, texts: Sequence[str], tracks: Tracks, uuid: int
) -> Counters:
    """Return the counters that the program itself set, one track per process and name.

    Args:
        marks: ``MARK`` rows of the whole run.
        key: u4, name of each.
        texts: Names by key.
        tracks: Those of the run.
        uuid: Number of the first counter.
    """
    mine = marks["kind"] == MarkKind.COUNTER
    streams, stream = np.unique(
        marks["proc"][mine].astype(np.int64) << 32 | key[mine], return_inverse=True
    )
    parents = [tracks.number(Track.PROCESS, number >> 32) for number in streams.tolist()]
    described = b"".join(
        packets.track(
            uuid + k, packets.counter(""), name=texts[number & 0xFFFFFFFF], parent=parents[k]
        )
        for k, number in enumerate(streams.tolist())
    )
    t_ns, value = marks["t_ns"][mine], marks["value"][mine]
    return Counters(uuid + stream, t_ns, value, described, parents, uuid + streams.size)
