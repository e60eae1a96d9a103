"""Clocks that are wrong in a known way, and messages between them: the truth for estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sigmatrace.stages.skew import Skew, estimate
from sigmatrace.stages.skew_lines import Messages

BASE_NS = 1_700_000_000_000_000_000
Edge = tuple[int, int]


@dataclass(frozen=True)
class World:
    """What is generated.

    Attributes:
        clocks: How many.
        edges: Which send to which.
        messages: On each edge.
        seconds: Length of the run.
        offset_ns, drift_ppm: Largest error of a clock.
        least_ns: Least delay of an edge, from and to.
        queue_ns: Mean of what comes on top, exponential.
        load: Factor of ``queue_ns`` of edges that lead to a higher clock.
        step: (clock, when in seconds, by how many ns it jumps ahead; less than 0: it stood still).
        wrong: Messages of each edge that are matched with another one's receive.
        wander_ns, wander_s: What a clock wanders to and fro besides, and in which time, about, as
            one does that NTP keeps.
        seed: Of the random numbers.
    """

    clocks: int
    edges: Sequence[Edge]
    messages: int = 500
    seconds: float = 10.0
    offset_ns: float = 2e9
    drift_ppm: float = 100.0
    least_ns: tuple[float, float] = (1500.0, 6000.0)
    queue_ns: float = 3000.0
    load: float = 1.0
    step: tuple[int, float, float] | None = None
    wrong: int = 0
    wander_ns: float = 0.0
    wander_s: float = 1.0
    seed: int = 0


def ring(clocks: int) -> list[Edge]:
    """One way around."""
    return [(one, (one + 1) % clocks) for one in range(clocks)]


def both_ways(edges: Sequence[Edge]) -> list[Edge]:
    return [*edges, *(edge[::-1] for edge in edges)]


def chain(clocks: int) -> list[Edge]:
    return both_ways([(one, one + 1) for one in range(clocks - 1)])


def star(clocks: int) -> list[Edge]:
    return both_ways([(0, one) for one in range(1, clocks)])


def full(clocks: int) -> list[Edge]:
    return [(a, b) for a in range(clocks) for b in range(clocks) if a != b]


@dataclass
class Truth:
    """Messages, and what is true of them and of the clocks."""

    world: World
    least_ns: dict[Edge, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = self.world
        rng = np.random.default_rng(world.seed)
        self.offset = rng.uniform(-world.offset_ns, world.offset_ns, world.clocks)
        self.drift = rng.uniform(-world.drift_ppm, world.drift_ppm, world.clocks) * 1e-6
        self.phase, self.pace = (
            rng.uniform(0, 2 * np.pi, world.clocks),
            rng.uniform(0.7, 1.4, world.clocks),
        )
        columns: list[tuple[np.ndarray, ...]] = []
        for src, dst in world.edges:
            least = rng.uniform(*world.least_ns)
            sent = np.sort(rng.uniform(0, world.seconds * 1e9, world.messages))
            load = world.load if dst > src else 1.0
            queue = rng.exponential(world.queue_ns * load, world.messages)
            self.least_ns[src, dst] = least + queue.min()
            receive = self.clock(dst, sent + least + queue)
            places = rng.permutation(np.arange(8, world.messages - 8))[: 2 * world.wrong]
            wrong, other = places[: world.wrong], places[world.wrong :]
            receive[wrong] = receive[other]
            ones = np.ones(world.messages, np.int64)
            is_wrong = np.isin(np.arange(world.messages), wrong)
            columns.append((src * ones, dst * ones, self.clock(src, sent), receive, is_wrong))
        *ends, self.is_wrong = (np.concatenate(one) for one in zip(*columns, strict=True))
        self.messages = Messages(*ends)

    def clock(self, number: int, true_ns: np.ndarray) -> np.ndarray:
        """What a clock shows."""
        t = np.asarray(true_ns, np.float64)
        off = self.offset[number] + t * self.drift[number]
        turns = 2 * np.pi * t / (self.world.wander_s * 1e9 * self.pace[number])
        off = off + self.world.wander_ns * np.sin(turns + self.phase[number])
        if self.world.step and self.world.step[0] == number:
            off = off + np.where(t > self.world.step[1] * 1e9, self.world.step[2], 0)
        return BASE_NS + np.rint(t).astype(np.int64) + np.rint(off).astype(np.int64)

    def errors(self, skew: Skew) -> np.ndarray:
        """By clock the largest error of its correction to its reference, off the step."""
        t = np.linspace(0, self.world.seconds * 1e9, 301)[1:-1]
        if self.world.step:
            near = 30 * self.world.seconds * 1e9 / self.world.messages
            t = t[np.abs(t - self.world.step[1] * 1e9) > near]
        found = np.zeros(self.world.clocks)
        for number, correction in enumerate(skew.corrections):
            shown = self.clock(number, t)
            right = self.clock(int(skew.reference[number]), t)
            found[number] = np.abs(shown + correction.of(shown) - right).max()
        return found

    def violations(self, skew: Skew) -> int:
        """Messages, of those matched rightly, that are received before they are sent."""
        send, receive = self.messages.send_ns.copy(), self.messages.receive_ns.copy()
        for number, correction in enumerate(skew.corrections):
            for ends, times in ((self.messages.src, send), (self.messages.dst, receive)):
                mine = ends == number
                times[mine] += correction.of(times[mine])
        return int(((receive < send) & ~self.is_wrong).sum())


def solved(world: World, loose: np.ndarray | None = None) -> tuple[Truth, Skew]:
    """A world, and what is estimated of it."""
    truth = Truth(world)
    return truth, estimate(truth.messages, world.clocks, loose=loose)
