"""The random part of a synthetic run: clocks and messages."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

BASE_NS = 1_700_000_000_000_000_000
"""Unix time at which a synthetic run begins."""
SIZES_BYTES = (0, 8, 64, 512, 4096, 65536, 1 << 20, 4 << 20)
TAGS = 4
"""Tags that a source uses towards a destination."""
_WIRE_BYTES_PER_NS = 12.5


@dataclass(frozen=True)
class Shape:
    """What to generate.

    Attributes:
        ranks: Processes.
        events: Operations in all, sends and receives.
        hosts: Hosts; ranks are spread over them in blocks.
        peers: Ranks that each rank sends to.
        seed: Of the random numbers.
        clock_offset_ns: Largest error of a host's wall clock at the start.
        clock_drift_ppm: Largest drift of a host's wall clock.
        sizes_bytes: Message sizes, each as likely as the others.
        gap_ns: Mean time between two sends of a rank.
        loss: Share of chunks that are dropped at capture.
        unmatched: Share of each channel's messages, its last ones, that nobody receives.
        reorder: Share of neighbouring messages of a channel that complete in exchanged order.
        mode: "full" adds completions, durations and a region per rank.
        tagged: UCP tag matching, sources told apart by tag; else libfabric messages.
        chunk_records: Records in a full chunk.
        repeats: How often the same traffic takes place, one time after the other: ``events`` are
            shared out, so that memory does not grow with them. Nothing may be lost then.
    """

    ranks: int = 4
    events: int = 1000
    hosts: int = 2
    peers: int = 8
    seed: int = 1
    clock_offset_ns: int = 0
    clock_drift_ppm: float = 0.0
    sizes_bytes: tuple[int, ...] = SIZES_BYTES
    gap_ns: float = 4000.0
    loss: float = 0.0
    unmatched: float = 0.0
    reorder: float = 0.0
    mode: Literal["simple", "full"] = "simple"
    tagged: bool = False
    chunk_records: int = 8192
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.events < 0 or not self.hosts >= 1:
            raise ValueError("a run has at least one rank and one host, and not less than 0 events")
        if self.peers < 1 or self.chunk_records < 1:
            raise ValueError("a rank has at least one peer, and a chunk at least one record")
        if not all(0 <= share <= 1 for share in (self.loss, self.unmatched, self.reorder)):
            raise ValueError("loss, unmatched and reorder are shares from 0 to 1")
        clocks = self.clock_offset_ns, self.clock_drift_ppm
        if not (all(0 <= x < inf for x in (self.seed, *clocks)) and 0 < self.gap_ns < inf):
            raise ValueError("seed, clock offset and clock drift are not below 0, the gap above it")
        if self.repeats < 1 or (self.repeats > 1 and self.loss + self.unmatched > 0):
            raise ValueError("only a run without loss and unmatched messages can be repeated")

    @property
    def messages(self) -> int:
        """Messages that take place in one of the ``repeats``."""
        return self.events // self.repeats // 2

    @property
    def lanes(self) -> int:
        """Out-channels of a rank: one per peer and tag; it has as many in-channels."""
        return self.fan_out * (TAGS if self.tagged else 1)

    def peer(self, rank: int, lane: int) -> int:
        """Return the rank that this rank's out-channel ``lane`` leads to."""
        return (rank + 1 + lane % self.fan_out) % self.ranks

    def source(self, rank: int, lane: int) -> int:
        """Return the rank whose out-channel ``lane`` leads to this rank."""
        return (rank - 1 - lane % self.fan_out) % self.ranks

    @property
    def fan_out(self) -> int:
        """Ranks that each rank really sends to; a lone rank sends to itself."""
        return max(1, min(self.peers, self.ranks - 1))


@dataclass(frozen=True)
class Clocks:
    """By rank; all ranks of a host have the same."""

    host: np.ndarray
    hz: np.ndarray
    zero: np.ndarray
    offset_ns: np.ndarray
    drift_ppm: np.ndarray

    @classmethod
    def draw(cls, shape: Shape, rng: np.random.Generator) -> Clocks:
        """Draw the clocks of a run."""
        hosts = min(shape.hosts, shape.ranks)
        host = np.arange(shape.ranks) * hosts // shape.ranks
        hz = rng.integers(2_000_000_000, 3_600_000_000, hosts)
        zero = rng.integers(10**12, 10**15, hosts)
        offset = rng.uniform(-1, 1, hosts) * shape.clock_offset_ns
        drift = rng.uniform(-1, 1, hosts) * shape.clock_drift_ppm
        return cls(host, hz[host], zero[host], offset.astype(np.int64)[host], drift[host])

    def tsc(self, rank: int, true_ns: np.ndarray | int) -> np.ndarray:
        """Return the TSC of a rank at true times (ns since the start of the run)."""
        ticks = np.asarray(true_ns, np.float64) * (int(self.hz[rank]) / 1e9)
        return np.uint64(self.zero[rank]) + np.rint(ticks).astype(np.uint64)

    def wall_ns(self, rank: int, true_ns: int) -> int:
        """Return the wall clock of a rank's host at a true time, Unix ns."""
        drift = round(true_ns * float(self.drift_ppm[rank]) * 1e-6)
        return BASE_NS + true_ns + int(self.offset_ns[rank]) + drift


@dataclass
class Messages:
    """All messages of a run, by source, then by time.

    Attributes:
        src, dst: Ranks.
        lane: Which out-channel of the source.
        size: Bytes.
        sent_ns, received_ns: True times since the start of the run.
        k: Ordinal of the send, and of the receive in posting order.
        in_k: Ordinal of the receive in completion order.
        is_received: Whether anybody receives it.
        start: Of each source's messages; shape (ranks + 1,).
        by_dst: Received messages, by destination.
        dst_start: Of each destination's part of ``by_dst``; shape (ranks + 1,).
        send_written, recv_written: Whether the record is in a file; filled while writing.
    """

    src: np.ndarray
    dst: np.ndarray
    lane: np.ndarray
    size: np.ndarray
    sent_ns: np.ndarray
    received_ns: np.ndarray
    k: np.ndarray
    in_k: np.ndarray
    is_received: np.ndarray
    start: np.ndarray
    by_dst: np.ndarray
    dst_start: np.ndarray
    send_written: np.ndarray
    recv_written: np.ndarray

    @property
    def span_ns(self) -> int:
        """Time after which everything is over, and can take place again."""
        return int(self.received_ns.max(initial=0)) + 1000

    @classmethod
    def draw(cls, shape: Shape, rng: np.random.Generator) -> Messages:
        """Draw the messages of a run."""
        total, ranks = shape.messages, shape.ranks
        per_rank = np.full(ranks, total // ranks) + (np.arange(ranks) < total % ranks)
        start = np.concatenate([[0], np.cumsum(per_rank)])
        src = np.repeat(np.arange(ranks, dtype=np.int32), per_rank)
        gaps = 1 + rng.exponential(shape.gap_ns, total).astype(np.int64)
        before = np.concatenate([[0], np.cumsum(gaps)])[start[:-1]]
        sent = np.cumsum(gaps) - np.repeat(before, per_rank)
        lanes = shape.lanes
        lane = rng.integers(0, lanes, total, dtype=np.int32)
        dst = (src + 1 + lane % shape.fan_out) % ranks
        sizes = np.array(shape.sizes_bytes, np.int64)
        size = sizes[rng.integers(0, len(sizes), total)]
        latency = 1500 + rng.exponential(500.0, total) + size / _WIRE_BYTES_PER_NS
        channel = src.astype(np.int64) * lanes + lane
        order, first, count = _group(channel, ranks * lanes)
        k = np.empty(total, np.int64)
        k[order] = np.arange(total) - np.repeat(first, count)
        received = sent + latency.astype(np.int64)
        received[order] = _running_maximum(received[order], first, count)
        is_received = k < np.ceil(count * (1 - shape.unmatched)).astype(np.int64)[channel]
        by_dst = np.argsort(dst, kind="stable")
        by_dst = by_dst[is_received[by_dst]]
        dst_start = np.searchsorted(dst[by_dst], np.arange(ranks + 1))
        none = np.zeros(total, bool)
        messages = cls(
            src, dst.astype(np.int32), lane, size, sent, received, k, k.copy(), is_received,
            start, by_dst, dst_start, none, none.copy(),
        )  # fmt: skip
        messages._exchange(order, channel, shape.reorder, rng)
        return messages

    def _exchange(
        self, order: np.ndarray, channel: np.ndarray, share: float, rng: np.random.Generator
    ) -> None:
        """Let some pairs of neighbouring messages of a channel complete in exchanged order."""
        if share <= 0 or len(order) < 2:
            return
        left, right = order[:-1], order[1:]
        fits = (channel[left] == channel[right]) & self.is_received[right]
        fits &= (self.k[left] % 2 == 0) & (rng.random(len(left)) < share)
        left, right = left[fits], right[fits]
        self.in_k[left], self.in_k[right] = self.k[right], self.k[left]
        self.received_ns[left] = self.received_ns[right]


def _group(key: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (stable order by key, first position, count) of each group."""
    count = np.bincount(key, minlength=groups)
    return np.argsort(key, kind="stable"), np.cumsum(count) - count, count


def _running_maximum(values: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the running maximum within each of the consecutive groups."""
    step = int(values.max(initial=0)) + 1
    lift = np.repeat(np.arange(len(count), dtype=np.int64) * step, count)
    return np.maximum.accumulate(values + lift) - lift
