"""The list of all tracks that a run can have: their numbers, parents, names and kinds.

It is worked out from the index alone, and so is the same in every task. Tracks of one kind have
consecutive numbers; a source of events names the tracks of its rows by number. What one piece needs
for itself (lanes) has numbers far above.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from sigmatrace.devices import Gpus, Nics, QueuePairs
from sigmatrace.errors import OutputError
from sigmatrace.export import perfetto_packets as packets
from sigmatrace.partition import Run

_LANES_FROM = 1 << 40
_LANES_OF_A_PIECE = 1 << 24


class Track(IntEnum):
    """Kind of a track."""

    CALLS = 0
    COMPLETIONS = 1
    REGIONS = 2
    PROCESS = 3
    QUEUE_PAIRS = 4
    QUEUE_PAIR = 5
    REQUESTS = 6
    ARRIVALS = 7
    BY_PEERS = 8
    GPU = 9
    KERNELS = 10
    DATA = 11
    CONTROL = 12
    DOORBELLS = 13
    NICS = 14
    NIC = 15


_PARENTS = {
    Track.CALLS: Track.PROCESS,
    Track.COMPLETIONS: Track.CALLS,
    Track.REGIONS: Track.CALLS,
    Track.QUEUE_PAIRS: Track.PROCESS,
    Track.QUEUE_PAIR: Track.QUEUE_PAIRS,
    Track.REQUESTS: Track.QUEUE_PAIR,
    Track.ARRIVALS: Track.QUEUE_PAIR,
    Track.BY_PEERS: Track.QUEUE_PAIR,
    Track.GPU: Track.PROCESS,
    Track.KERNELS: Track.GPU,
    Track.DATA: Track.GPU,
    Track.CONTROL: Track.GPU,
    Track.DOORBELLS: Track.GPU,
    Track.NIC: Track.NICS,
}
_NAMES = {
    Track.COMPLETIONS: "completions",
    Track.REGIONS: "regions",
    Track.QUEUE_PAIRS: "QPs",
    Track.REQUESTS: "requests",
    Track.ARRIVALS: "arrivals",
    Track.BY_PEERS: "by peers",
    Track.KERNELS: "kernels",
    Track.DATA: "doorbells: data",
    Track.CONTROL: "doorbells: control",
    Track.DOORBELLS: "doorbells",
    Track.NICS: "NICs",
}


@dataclass(frozen=True)
class Tracks:
    """The tracks of a run.

    Attributes:
        run: Its index.
        first: Number of the first track of each kind.
        qps: Queue pairs, in the order of their tracks.
        gpus: GPUs, likewise.
    """

    run: Run
    first: Sequence[int]
    qps: QueuePairs
    gpus: Gpus

    @classmethod
    def of(cls, run: Run) -> Tracks:
        """Return the tracks of a run, from its index."""
        qps = QueuePairs.of(run)
        gpus = Gpus.of(run, qps)
        threads, processes = (run.tables[name].num_rows for name in ("threads", "processes"))
        objects = [qps.keys.size] * 4 + [gpus.keys.size] * 5
        sizes = (threads, threads, threads, processes, processes, *objects, 1)
        return cls(run, [1 + sum(sizes[:kind]) for kind in range(len(sizes) + 1)], qps, gpus)

    @cached_property
    def nics(self) -> Nics:
        """Ports of NICs, in the order of their tracks."""
        return Nics.of(self.run, self.qps)

    def number(self, kind: Track, place: int) -> int:
        """Return the number of a track by its place among those of its kind."""
        return self.first[kind] + place

    def numbers(self, kinds: Track | np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the numbers u4 of tracks by their places among those of their kinds."""
        numbers: np.ndarray = places.astype(np.uint32) + np.array(self.first, np.uint32)[kinds]
        return numbers

    def kind(self, number: int) -> Track:
        """Return the kind of a track."""
        return Track(bisect_right(self.first, number) - 1)

    def name(self, number: int) -> str:
        """Return what a user sees."""
        kind = self.kind(number)
        place = number - self.first[kind]
        if kind == Track.CALLS:
            name, tid = (self.run.tables["threads"].column(key)[place] for key in ("name", "tid"))
            return name.as_py() or f"thread {tid}"
        if kind == Track.PROCESS:
            return str(self.run.tables["processes"].column("label")[place])
        if kind == Track.QUEUE_PAIR:
            return self.qps.name(place)
        if kind == Track.GPU:
            return self.gpus.names[place]
        return self.nics.names[place] if kind == Track.NIC else _NAMES[kind]

    def parent(self, number: int) -> int:
        """Return the number of the track that a track belongs to, 0 = none."""
        kind = self.kind(number)
        place = number - self.first[kind]
        if kind == Track.CALLS:
            place = int(self.run.column("threads", "proc")[place])
        if kind == Track.QUEUE_PAIR:
            place = int(self.qps.proc[place])
        if kind == Track.GPU:
            place = int(self.gpus.proc[place])
        above = _PARENTS.get(kind)
        return 0 if above is None else self.first[above] + (place if kind != Track.NIC else 0)

    @property
    def free(self) -> int:
        """The first number that no track has."""
        return self.first[Track.NIC] + len(self.nics.names)

    def lane(self, piece: int, lane: int) -> int:
        """Return the number of a track that one piece has for itself."""
        if lane >= _LANES_OF_A_PIECE:
            raise OutputError("perfetto: too many overlapping slices", "make partitions smaller")
        return _LANES_FROM + piece * _LANES_OF_A_PIECE + lane

    def sequence(self, piece: int, track: int) -> int:
        """Return the number of the packet sequence of a track in a piece; 1 is the header's.

        NICs have none: all that they show is counters on the header's.
        """
        sequence = 2 + piece * self.first[Track.NICS] + track
        if sequence >= 1 << 32:
            raise OutputError("perfetto: too many tracks and pieces", "make partitions larger")
        return sequence

    def describe_lane(self, uuid: int, track: int, lane: int) -> bytes:
        """Return the descriptor of a lane beside a track, from 2.

        Those of a thread, whatever they show, stand below the thread.
        """
        kind, name = self.kind(track), f"lane {lane}"
        if kind <= Track.REGIONS:
            track = self.number(Track.CALLS, track - self.first[kind])
            name = f"{self.name(track)} ({name})"
        return packets.track(uuid, name=name, parent=track)

    def with_parents(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield tracks and all above them, each once, parents first."""
        seen: set[int] = set()
        for number in sorted(numbers):
            path = []
            while number and number not in seen:
                seen.add(number)
                path.append(number)
                number = self.parent(number)
            yield from reversed(path)
