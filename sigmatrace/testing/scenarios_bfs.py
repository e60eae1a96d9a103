"""The scenario of a BFS in persistent kernels on GPUs, which find each other by barriers.

In the shape of one that was measured on four GPUs (J. Baydamirli, D. Unat, "SigmaTrace", 2026, case
study 1): GPU 0 owns the hubs, has most to send at first and comes last to the barriers; later that
is GPU 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sigmatrace.testing.synthetic_draw import BASE_NS
from sigmatrace.testing.synthetic_gpu import (
    ADDRESS,
    FETCH_ADD,
    GPU,
    NAME,
    READ,
    WRITE,
    GpuRank,
    GpuRun,
    GpuTruth,
    gid,
)
from sigmatrace.testing.write import RankFile
from sigmatrace.trace_format import Op

WORK_MS = (
    (30_500, 500, 700, 900),
    (12_800, 1_800, 800, 1_200),
    (4_000, 16_000, 1_000, 2_000),
    (2_500, 7_000, 1_000, 1_500),
    (700, 1_300, 300, 500),
)
"""How long each GPU works at each level before it comes to the barrier."""
_BEGIN_NS, _LATENCY_NS, _STEP_NS, _BLOCK_NS = 1_000_000, 5000, 1000, 200
_BURST = 16
"""Doorbells that follow each other closely."""
_READ_EVERY, _OPERAND_BYTES, _LINE_BYTES = 8, 8, 64
_DEVICE, _PORT, _GID = 50, 51, 52
"""Object ids."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Bfs:
    """What a BFS is like.

    Attributes:
        work_ms: By level and GPU, time until the barrier; all of a level differ.
        doorbells_per_s: With data, while a GPU works.
        blocks: Of the kernel; each rings a control doorbell to each other GPU at a barrier.
        completed: Share of the requests of each queue pair that complete, the last one of them with
            an error; 0: completions cannot be seen.
        seed: Of what is written and read.
    """

    work_ms: tuple[tuple[int, ...], ...] = WORK_MS
    doorbells_per_s: int = 50
    blocks: int = 8
    completed: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        sizes = {len(level) for level in self.work_ms}
        if len(sizes) != 1 or min(sizes) < 2 or any(min(level) < 1 for level in self.work_ms):
            raise ValueError("a BFS has at least 1 level, and 2 GPUs that work for 1 ms at each")
        if self.blocks < 1 or not 1 <= self.doorbells_per_s <= 100_000:
            raise ValueError("a BFS has at least 1 block, and 1 to 100000 doorbells a second")
        if not 0 <= self.completed <= 1:
            raise ValueError("completed is a share from 0 to 1")

    @property
    def gpus(self) -> int:
        """How many there are, one for each rank."""
        return len(self.work_ms[0])


@dataclass(frozen=True)
class BfsTruth:
    """What a BFS did; arrays i8, times Unix ns.

    Attributes:
        shape: What was asked for.
        operations: Operation records.
        begin_ns: ``(levels,)``, when all began with a level.
        arrival_ns: ``(levels, gpus)``, each GPU's first control doorbell of the level's barrier.
        release_ns: ``(levels,)``, when all have come and know it.
        spread_ns: ``(levels,)``, from the first to the last arrival.
        order: ``(levels, gpus)``, GPUs in the order of their arrival.
        data_doorbells, control_doorbells: ``(levels, gpus)``.
        writes, reads, atomics: Operations by ``(levels, gpu that starts it, gpu it addresses)``.
        write_bytes, read_bytes: Likewise; what is read goes to the one that starts it.
        count, size_bytes: ``(gpus, gpus)``, all operations and bytes, the way the bytes go.
        errors: ``(n, 3)``, GPU, queue pair (object) and status of completions with an error.
    """

    shape: Bfs
    operations: int
    begin_ns: Ints
    arrival_ns: Ints
    release_ns: Ints
    spread_ns: Ints
    order: Ints
    data_doorbells: Ints
    control_doorbells: Ints
    writes: Ints
    reads: Ints
    atomics: Ints
    write_bytes: Ints
    read_bytes: Ints
    count: Ints
    size_bytes: Ints
    errors: Ints


def bfs(folder: Path, shape: Bfs) -> BfsTruth:
    """Write a BFS on GPUs (layers mlx5dv and cuda, mode full), and return what it did."""
    folder.mkdir(parents=True, exist_ok=True)
    work = np.array(shape.work_ms, np.int64) * 10**6
    # A level begins when the barrier before it is released.
    lasts = work.max(axis=1) + _LATENCY_NS
    release = _BEGIN_NS + np.cumsum(lasts)
    begin = release - lasts
    arrival = begin[:, None] + work
    done = GpuTruth()
    gpus = [_Bfs(gpu, shape, begin, arrival, int(release[-1]), done) for gpu in range(shape.gpus)]
    for gpu in gpus:
        gpu.write(folder)
    operations, size_bytes = _sums(shape, begin, done)
    failed = [(gpu, qp, status) for gpu, qp, _, _, status in done.completions if status]
    return BfsTruth(
        shape=shape,
        operations=len(done.posts),
        begin_ns=begin + BASE_NS,
        arrival_ns=arrival + BASE_NS,
        release_ns=release + BASE_NS,
        spread_ns=np.ptp(arrival, axis=1),
        order=np.argsort(arrival, axis=1, kind="stable"),
        data_doorbells=np.array([gpu.rung_data for gpu in gpus], np.int64).T,
        control_doorbells=np.full(work.shape, shape.blocks * (shape.gpus - 1)),
        writes=operations[0],
        reads=operations[1],
        atomics=operations[2],
        write_bytes=size_bytes[0],
        read_bytes=size_bytes[1],
        count=_moved(operations),
        size_bytes=_moved(size_bytes),
        errors=np.array(failed, np.int64).reshape(-1, 3),
    )


_KINDS = (Op.PUT, Op.GET, Op.ATOMIC_FETCH)


def _sums(shape: Bfs, begin: Ints, done: GpuTruth) -> Ints:
    """Return operations and bytes by kind, level, source and destination, as one array."""
    found = np.zeros((2, len(_KINDS), begin.size, shape.gpus, shape.gpus), np.int64)
    for post in done.posts:
        level = int(np.searchsorted(begin, post.doorbell, side="right")) - 1
        at = _KINDS.index(post.op), level, post.src, post.dst
        found[0, *at] += 1
        found[1, *at] += post.size_bytes
    return found


def _moved(amounts: Ints) -> Ints:
    """Return amounts of kinds and levels together, by pair, the way that bytes go."""
    writes, reads, atomics = amounts.sum(axis=1)
    moved: Ints = writes + reads.T + atomics
    return moved


class _Bfs(GpuRank):
    """One GPU of a BFS."""

    def __init__(
        self, rank: int, shape: Bfs, begin: Ints, arrival: Ints, end_ns: int, done: GpuTruth
    ) -> None:
        super().__init__(rank, GpuRun(shape.gpus, completed=shape.completed), done)
        self.shape, self.begin, self.arrival, self.end_ns = shape, begin, arrival, end_ns
        self.rng = np.random.default_rng([shape.seed, rank])
        self.rung_data = [0] * begin.size

    def draw(self) -> int:
        """Do all levels in one kernel; return when it is over."""
        for level, (begin, arrival) in enumerate(
            zip(self.begin.tolist(), self.arrival[:, self.rank].tolist(), strict=True)
        ):
            for now in self._doorbells(begin, arrival):
                self.rung_data[level] += 1
                self._send(now, self.rung_data[level])
            self._arrive(arrival)
        self.kernel(int(self.begin[0]), self.end_ns)
        return self.end_ns + 1000

    def _doorbells(self, begin: int, arrival: int) -> list[int]:
        """Return when data doorbells ring: bursts that begin at equal distances."""
        count = max(1, (arrival - begin) * self.shape.doorbells_per_s // 10**9)
        bursts = -(-count // _BURST)
        apart = (arrival - begin) // (bursts + 1)
        starts = [begin + _STEP_NS + burst * apart for burst in range(bursts)]
        return [starts[k // _BURST] + k % _BURST * _STEP_NS for k in range(count)]

    def _send(self, now: int, number: int) -> None:
        """Post a few writes, and every now and then a read, to one peer, and ring once."""
        at = int(self.rng.integers(0, len(self.peers)))
        lines = self.rng.integers(1, 65, int(self.rng.integers(1, 5))).tolist()
        for k, count in enumerate(lines):
            kind = READ if k == 0 and number % _READ_EVERY == 0 else WRITE
            raddr = ADDRESS + 4096 + _LINE_BYTES * int(self.rng.integers(0, 1 << 20))
            self.post(now, at, kind, _LINE_BYTES * count, raddr)
        self.ring(now, at)

    def _arrive(self, arrival: int) -> None:
        """Count each block at each other GPU, by an atomic with a doorbell of its own."""
        now = arrival
        for _ in range(self.shape.blocks):
            for at in range(len(self.peers)):
                self.post(now, at, FETCH_ADD, _OPERAND_BYTES, ADDRESS)
                self.ring(now, at)
                now += _BLOCK_NS

    def objects(self, file: RankFile) -> None:
        """Write the rank's objects: its GPU, and the port of a NIC of its own."""
        super().objects(file)
        file.object("gpu", GPU, ordinal=self.rank, name="GPU")
        file.object("name", NAME, name="bfs")
        guid = {"node_guid": 0x5000 + self.rank, "numa": 0}
        file.object("ib_device", _DEVICE, name=f"mlx5_{self.rank}", **guid)
        port = {"port": 1, "link_layer": "infiniband", "rate_mbps": 400_000, "mtu_bytes": 4096}
        file.object("ib_port", _PORT, device=_DEVICE, **port)
        file.object("ib_gid", _GID, port=_PORT, index=0, gid=gid(self.rank), gid_type="ib")
