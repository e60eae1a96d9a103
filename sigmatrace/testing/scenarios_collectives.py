"""Scenarios of collectives: ring allreduce with a slow link, alltoall with a slow rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sigmatrace.testing.scenarios_messages import (
    LATENCY_NS,
    Ints,
    Log,
    Sent,
    transfer_ns,
    write_messages,
)
from sigmatrace.testing.synthetic_draw import BASE_NS, Shape

_REDUCE_NS, _PAUSE_NS, _SKEW_NS, _POST_NS, _RELEASE_NS = 500, 20_000, 50, 400, 3000


@dataclass(frozen=True)
class Ring:
    """A ring allreduce: reduce-scatter, then all-gather, each of ``ranks - 1`` steps.

    Attributes:
        ranks: Processes, at least 2; each sends to the next one.
        hosts: Hosts, which ranks are spread over in blocks.
        size_bytes: Of the data that is reduced, on each rank.
        iterations: How often.
        slow_rank: The link from this rank to the next one is the slow one.
        factor: How many times longer it takes to transfer.
        clock_offset_ns, clock_drift_ppm: How wrong hosts' clocks are at most; 0: right.
        seed: Of the clocks.
    """

    ranks: int = 8
    hosts: int = 4
    size_bytes: int = 16 << 20
    iterations: int = 4
    slow_rank: int = 2
    factor: int = 4
    clock_offset_ns: int = 0
    clock_drift_ppm: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 2 or self.iterations < 1 or self.size_bytes < 0 or self.factor < 1:
            raise ValueError("a ring has at least 2 ranks, 1 iteration, 0 bytes, and a factor of 1")
        if not 0 <= self.slow_rank < self.ranks:
            raise ValueError("slow_rank is none of the ranks")


@dataclass(frozen=True)
class RingTruth:
    """What a ring allreduce did.

    Attributes:
        shape: What was asked for.
        sent: The messages, by iteration, step and source.
        operations: Sends and receives.
        count, size_bytes: By source and destination, ``(ranks, ranks)`` i8.
        busy_ns: ``(ranks,)`` i8, how long the link from each rank to the next one transferred.
        finished_ns: ``(iterations, ranks)`` i8, Unix time at which each rank had all the data.
    """

    shape: Ring
    sent: Sent
    operations: int
    count: Ints
    size_bytes: Ints
    busy_ns: Ints
    finished_ns: Ints


def ring(folder: Path, shape: Ring) -> RingTruth:
    """Write a ring allreduce in which one link is slower, and return what it did.

    A rank sends its part of a step when it has received (and reduced) that of the step before, and
    its link is free.
    """
    log, ranks = Log(), np.arange(shape.ranks)
    chunks = np.diff(np.arange(shape.ranks + 1) * shape.size_bytes // shape.ranks)
    factor = np.where(ranks == shape.slow_rank, shape.factor, 1)
    ready, free, busy = np.zeros((3, shape.ranks), np.int64)
    ready += _PAUSE_NS
    finished = []
    for _ in range(shape.iterations):
        for step in range(2 * (shape.ranks - 1)):
            # Which part: reduce-scatter ends with the one with which all-gather goes on.
            size = chunks[(ranks - step) % shape.ranks]
            begin, lasts = np.maximum(ready, free), transfer_ns(size) * factor
            free, busy = begin + lasts, busy + lasts
            log.add(ranks, (ranks + 1) % shape.ranks, size, begin, free + LATENCY_NS)
            ready = np.roll(free + LATENCY_NS, 1) + _REDUCE_NS
        finished.append(ready - _REDUCE_NS + BASE_NS)
        ready = np.maximum(ready, free) + _PAUSE_NS
    sent = log.sent()
    write_messages(folder, _shape(shape, 1), sent)
    return RingTruth(
        *(shape, sent, 2 * sent.src.size, *sent.sums(shape.ranks), busy, np.array(finished))
    )


@dataclass(frozen=True)
class Alltoall:
    """Rounds of alltoall, each with a barrier behind it; one rank comes late to each.

    Attributes:
        ranks: Processes, at least 2.
        hosts: Hosts, which ranks are spread over in blocks.
        size_bytes: What a rank sends to each other one in a round.
        rounds: How many.
        slow_rank: Which one comes late.
        delay_ns: By how much.
        mode: "full" has completions, durations and the regions "barrier".
        clock_offset_ns, clock_drift_ppm: How wrong hosts' clocks are at most; 0: right.
        seed: Of the clocks.
    """

    ranks: int = 8
    hosts: int = 4
    size_bytes: int = 64 << 10
    rounds: int = 10
    slow_rank: int = 3
    delay_ns: int = 1_000_000
    mode: Literal["simple", "full"] = "full"
    clock_offset_ns: int = 0
    clock_drift_ppm: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 2 or self.rounds < 1 or min(self.size_bytes, self.delay_ns) < 0:
            raise ValueError("an alltoall has at least 2 ranks, 1 round, and nothing below 0")
        if not 0 <= self.slow_rank < self.ranks:
            raise ValueError("slow_rank is none of the ranks")


@dataclass(frozen=True)
class AlltoallTruth:
    """What rounds of alltoall did; times are Unix ns, of shape (rounds, ranks) or (rounds,).

    Attributes:
        shape: What was asked for.
        sent: The messages, by round, distance and source.
        operations: Sends and receives.
        count, size_bytes: By source and destination, ``(ranks, ranks)`` i8.
        start_ns: When each rank began to send.
        arrival_ns: When it came to the barrier, which is where its region begins.
        release_ns: When all left it, which is where their regions end.
        spread_ns: From the first to the last arrival.
        order: Ranks in the order of their arrival.
    """

    shape: Alltoall
    sent: Sent
    operations: int
    count: Ints
    size_bytes: Ints
    start_ns: Ints
    arrival_ns: Ints
    release_ns: Ints
    spread_ns: Ints
    order: Ints


def alltoall(folder: Path, shape: Alltoall) -> AlltoallTruth:
    """Write rounds of alltoall in which one rank comes late, and return what they did.

    A rank posts all its sends, one behind the other, and goes into the barrier, where it receives
    what comes. Who came to the barrier waits there for the last message and the last rank. Ranks
    begin a little one after the other, so that all arrivals differ.
    """
    log, ranks = Log(), np.arange(shape.ranks)
    late = ranks * _SKEW_NS + np.where(ranks == shape.slow_rank, shape.delay_ns, 0)
    size = np.full(shape.ranks, shape.size_bytes)
    times, now = [], _PAUSE_NS
    for _ in range(shape.rounds):
        start = now + late
        arrival = start + shape.ranks * _POST_NS
        free, last = start, 0
        for distance in range(1, shape.ranks):
            posted = start + (distance - 1) * _POST_NS
            free = np.maximum(free, posted) + transfer_ns(size)
            log.add(ranks, (ranks + distance) % shape.ranks, size, posted, free + LATENCY_NS)
            last = int(free.max()) + LATENCY_NS
        release = max(last, int(arrival.max())) + _RELEASE_NS
        times.append((start, arrival, np.full(shape.ranks, release)))
        now = release + _PAUSE_NS
    start, arrival, release = np.array(times).transpose(1, 0, 2) + BASE_NS
    sent = log.sent()
    regions = [{"barrier": np.stack([arrival[:, r], release[:, r]], axis=1)} for r in ranks]
    write_messages(folder, _shape(shape, shape.ranks, shape.mode), sent, regions)
    spread, order = np.ptp(arrival, axis=1), np.argsort(arrival, axis=1, kind="stable")
    return AlltoallTruth(
        *(shape, sent, 2 * sent.src.size, *sent.sums(shape.ranks)),
        *(start, arrival, release[:, 0], spread, order),
    )


def _shape(of: Ring | Alltoall, peers: int, mode: Literal["simple", "full"] = "simple") -> Shape:
    return Shape(
        ranks=of.ranks,
        hosts=of.hosts,
        peers=peers,
        mode=mode,
        clock_offset_ns=of.clock_offset_ns,
        clock_drift_ppm=of.clock_drift_ppm,
        seed=of.seed,
    )
