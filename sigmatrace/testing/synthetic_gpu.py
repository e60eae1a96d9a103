"""Synthetic runs of operations that GPUs start, whose truth is known.

Every rank has one GPU, memory, and a queue pair to each of its next ranks (or one DCI to all of
them). Its kernels build work queue elements and ring doorbells. All ranks are on one host; a TSC
tick is a nanosecond.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sigmatrace.testing.synthetic_draw import BASE_NS
from sigmatrace.testing.write import RankFile, records
from sigmatrace.trace_format import CQE_AT_MOST, Dir, Kind, Layer, Op, Schema, WqeKind

SLOT_BYTES = 64
_PID, _TID = 5000, 6000
_UAR, _QP, GPU, _MEMORY, NAME, _UMEM, _VECTOR = 1, 10, 2, 3, 4, 5, 100
ADDRESS, _LENGTH = 1 << 40, 1 << 30
_KERNEL_NS, _STEP_NS = 100_000, 1000
_CHUNK_RECORDS = 1 << 16
_SIGNALED, _SEEN_NS, _ACCESS = 8, 700, 10
WqeShape = tuple[Op, int, int, int]
"""A work request: op, opcode of mlx5, ``enum ibv_wr_opcode`` (255: none), bytes of operands."""
WRITE: WqeShape = (Op.PUT, 0x08, 0, 0)
READ: WqeShape = (Op.GET, 0x10, 4, 0)
FETCH_ADD: WqeShape = (Op.ATOMIC_FETCH, 0x12, 6, 16)
_SHAPES: tuple[WqeShape, ...] = (
    WRITE,
    READ,
    (Op.SEND, 0x0A, 2, 0),
    FETCH_ADD,
    (Op.ATOMIC_FETCH, 0x14, 5, 32),
    (Op.NOP, 0x00, 255, 0),
)


@dataclass(frozen=True)
class Post:
    """One work request.

    Attributes:
        src, dst: Ranks.
        object: The queue pair.
        doorbell: Time in ns since the start of the run.
        index: Of its first slot.
        slots: How many.
        op, opcode: ``trace_format.Op``, and that of mlx5.
        size_bytes: Its size.
        raddr: Remote address; 0 where there is none.
        is_lost: Overwritten before it was copied: its slots are in the trace, and are not valid.
    """

    src: int
    dst: int
    object: int
    doorbell: int
    index: int
    slots: int
    op: Op
    opcode: int
    size_bytes: int
    raddr: int
    is_lost: bool


@dataclass
class GpuTruth:
    """What a run holds.

    Attributes:
        posts: Work requests by rank, then by time.
        doorbells: Rung, by rank and queue pair (object).
        kernels: (rank, begin, end) in ns since the start of the run.
        completions: (rank, queue pair, index, seen, status): what says that all up to this index
            has completed, and ended so, at this time or before.
    """

    posts: list[Post] = field(default_factory=list)
    doorbells: Counter[tuple[int, int]] = field(default_factory=Counter)
    kernels: list[tuple[int, int, int]] = field(default_factory=list)
    completions: list[tuple[int, int, int, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class GpuRun:
    """What a run is like.

    Attributes:
        ranks: Processes.
        kernels: Of each rank, one after the other.
        doorbells: Of each kernel.
        lost: Share of work requests that were overwritten before they were copied.
        unconnected: Each rank has one DCI, whose requests name their destination.
        mixed: A doorbell may announce both data and control.
        completed: Share of the work requests of each queue pair that complete, the last one of
            them with an error; 0: completions cannot be seen.
        seed: Of the random numbers.
    """

    ranks: int = 3
    kernels: int = 2
    doorbells: int = 40
    lost: float = 0.0
    unconnected: bool = False
    mixed: bool = False
    completed: float = 0.0
    seed: int = 1


def generate_gpu(folder: Path, how: GpuRun | None = None) -> GpuTruth:
    """Write a run of mode ``full`` into a folder, made if it is missing; return its truth."""
    how = how or GpuRun()
    folder.mkdir(parents=True, exist_ok=True)
    truth = GpuTruth()
    rng = np.random.default_rng(how.seed)
    for rank in range(how.ranks):
        _Drawn(rank, how, truth, rng).write(folder)
    return truth


class GpuRank(ABC):
    """Records what one rank's GPU does, and writes its file; ``draw`` says what it does.

    Args:
        rank: Which one.
        how: What the run is like.
        truth: Where all that it does is noted.
    """

    def __init__(self, rank: int, how: GpuRun, truth: GpuTruth) -> None:
        self.rank, self.how, self.truth = rank, how, truth
        self.peers = [other for other in range(how.ranks) if other != rank] or [rank]
        self.rows: dict[Schema, list[dict[str, Any]]] = {schema: [] for schema in Schema}
        self.index: Counter[int] = Counter()
        self.rung: Counter[int] = Counter()
        self.invalid: Counter[int] = Counter()
        self.ordinal: Counter[int] = Counter()

    @abstractmethod
    def draw(self) -> int:
        """Do all that the rank does; return when it is over, in ns since the start of the run."""

    def write(self, folder: Path) -> None:
        """Write the rank's file."""
        end_ns = self.draw()
        if self.how.completed:
            self._complete()
        header = {"rank": self.rank, "world": self.how.ranks, "mode": "full", "tsc_hz": 10**9}
        header |= {"layers": ["mlx5dv", "cuda"], "run_id": "gpu", "calls": {"1": "gpu_post"}}
        with RankFile(folder, "node0", _PID + self.rank, BASE_NS, **header) as file:
            self.objects(file)
            for at in (0, end_ns):
                file.clock(at + 1, BASE_NS + at)
            for schema, rows in self.rows.items():
                if rows:
                    columns = {name: [row[name] for row in rows] for name in rows[0]}
                    made = records(schema, len(rows), **columns)
                    for start in range(0, len(rows), _CHUNK_RECORDS):
                        chunk = made[start : start + _CHUNK_RECORDS]
                        file.chunk(schema, _TID + self.rank, chunk)
            file.end(end_ns + 1)

    def kernel(self, begin: int, end: int) -> None:
        """Record a kernel."""
        self.truth.kernels.append((self.rank, begin, end))
        row = {"t_tsc": begin + 1, "duration_tsc": end - begin, "name": NAME, "gpu": GPU}
        row |= {"stream": 7, "blocks": 8, "threads": 256, "correlation": begin & 0xFFFFFFFF}
        self.rows[Schema.KERNEL].append(row)

    def _complete(self) -> None:
        """Of each queue pair, complete the first work requests, at most three at a time."""
        for qp in self.index:
            posts = [x for x in self.truth.posts if (x.src, x.object) == (self.rank, qp)]
            last = int(self.how.completed * len(posts)) - 1
            first = 0
            for k, post in enumerate(posts[: last + 1]):
                if k % 3 and k != last:
                    continue
                status = _ACCESS if k == last else 0
                row = {"t_tsc": post.doorbell + _SEEN_NS, "posted_tsc": post.doorbell + 1}
                row |= {"object": qp, "position": post.index, "first": first, "opcode": 127}
                self.rows[Schema.CQE].append(
                    row | {"status": status, "flags": CQE_AT_MOST, "queue": 1}
                )
                seen = self.rank, qp, post.index, post.doorbell + _SEEN_NS - 1, status
                self.truth.completions.append(seen)
                first = post.index + 1

    def ring(self, now: int, at: int) -> None:
        """Ring for all that was posted to the ``at``-th peer since the last time."""
        qp = self._queue_pair(at)
        number = self.index[qp] & 0xFFFF
        value = struct.pack(">II", number << 8, _qpn(qp) << 8)
        row = {"t_tsc": now + 1, "value": int.from_bytes(value, "little"), "qp": qp, "uar": _UAR}
        row |= {"index": self.index[qp], "slots": self.index[qp] - self.rung[qp], "delay_tsc": 300}
        self.rung[qp] = self.index[qp]
        self.rows[Schema.DOORBELL].append(row)
        self.truth.doorbells[self.rank, qp] += 1

    def _queue_pair(self, at: int) -> int:
        return _QP if self.how.unconnected else _QP + at

    def post(
        self, now: int, at: int, shape: WqeShape, size: int, raddr: int, *, is_lost: bool = False
    ) -> None:
        """Post a work request to the ``at``-th peer, for the doorbell that is rung ``now``."""
        op, opcode, ibv, operands = shape
        qp = self._queue_pair(at)
        dst, index = self.peers[at], self.index[qp]
        raw = self._encode(index, qp, dst, opcode, operands, raddr, size)
        slots = len(raw) // SLOT_BYTES
        self.index[qp] += slots
        post = Post(
            *(self.rank, dst, qp, now, index, slots, op, opcode, size, raddr),
            is_lost=is_lost,
        )
        self.truth.posts.append(post)
        if is_lost:
            raw = bytes(len(raw))
            self.invalid[qp] += slots
        kinds = [WqeKind.INVALID] * slots if is_lost else [WqeKind.FIRST]
        kinds += [WqeKind.FURTHER] * (slots - len(kinds))
        for k, kind in enumerate(kinds):
            words = struct.unpack_from("<8Q", raw, SLOT_BYTES * k)
            row = {"t_tsc": now + 1, "index": index + k, "qp": qp, "kind": kind}
            self.rows[Schema.WQE].append(row | {f"w{n}": word for n, word in enumerate(words)})
        if not is_lost:
            self._record(post, at, ibv)

    def _record(self, post: Post, at: int, ibv: int) -> None:
        """Record the operation and the request, as capture does."""
        kind = Kind.MSG if post.op == Op.SEND else Kind.RMA
        travels = post.op != Op.NOP
        peer = post.object
        if self.how.unconnected and travels:
            peer = _qpn(_QP) << 32 | _VECTOR + post.dst
        channel = self._channel(post.object, kind, peer)
        row = {"t_tsc": post.doorbell + 1, "size_bytes": post.size_bytes, "channel": channel}
        row |= {"ordinal": self.ordinal[channel], "op": post.op, "call": 1, "aux": post.index}
        self.rows[Schema.OP].append(row)
        self.ordinal[channel] += 1
        if ibv == 255:
            return
        key = _key(post.dst) if post.raddr else 0
        row = {"t_tsc": post.doorbell + 1, "raddr": post.raddr, "size_bytes": post.size_bytes}
        row |= {"rkey": key, "object": post.object, "position": post.index, "opcode": ibv}
        row["wr_id"] = peer if self.how.unconnected else 0
        self.rows[Schema.REQUEST].append(row | {"sges": 1, "flags": 2, "queue": 1})

    def _channel(self, qp: int, kind: Kind, peer: int) -> int:
        channels = self.rows[Schema.CHANNEL]
        for row in channels:
            if (row["object"], row["kind"], row["peer"]) == (qp, kind, peer):
                return int(row["id"])
        row = {"t_tsc": 1, "id": len(channels), "object": qp, "kind": kind, "peer": peer}
        channels.append(row | {"dir": Dir.OUT, "layer": Layer.MLX5DV})
        return len(channels) - 1

    def _encode(
        self, index: int, qp: int, dst: int, opcode: int, operands: int, raddr: int, size: int
    ) -> bytes:
        """Return the slots of a work request."""
        body = b""
        if opcode and self.how.unconnected:
            body += struct.pack(">QIHH", 0, _qpn(_QP) | 1 << 31, 0, 0) + bytes(16) + gid(dst)
        if raddr:
            body += struct.pack(">QII", raddr, _key(dst), 0)
        body += bytes(operands)
        if opcode:
            body += struct.pack(">IIQ", size, 1, ADDRESS)
        control = struct.pack(
            ">BHBIII",
            *(0, index & 0xFFFF, opcode, _qpn(qp) << 8 | 1 + len(body) // 16, _SIGNALED, 0),
        )
        whole = control + body
        return whole + bytes(-len(whole) % SLOT_BYTES)

    def objects(self, file: RankFile) -> None:
        """Write the rank's objects."""
        file.object("mlx5_uar", _UAR, page_id=1, real=4096, shadow=8192)
        file.object("gpu", GPU, ordinal=0, name="GPU", uuid=bytes(16))
        file.object("mlx5_umem", _UMEM, umem_id=1, gpu=GPU)
        where = {"address": ADDRESS, "length_bytes": _LENGTH, "key": _key(self.rank)}
        file.object("memory", _MEMORY, layer="verbs", **where)
        file.object("name", NAME, name="exchange")
        for number, fields in self._pairs():
            totals = {"slots": self.index[number], "invalid_slots": self.invalid[number]}
            totals |= {"completions": int(self.how.completed > 0)}
            totals |= {"doorbells": self.truth.doorbells[self.rank, number], "uncopied_slots": 0}
            file.object(
                "mlx5_qp", number, uar=_UAR, umem=_UMEM, qpn=_qpn(number), **fields, **totals
            )
        if self.how.unconnected:
            for other in self.peers:
                file.object("mlx5_av", _VECTOR + other, dgid=gid(other))

    def _pairs(self) -> Iterator[tuple[int, dict[str, Any]]]:
        own = {"sgid": gid(self.rank)}
        if self.how.unconnected:
            yield _QP, {**own, "qp_type": "dci"}
            return
        for at, other in enumerate(self.peers):
            theirs = [x for x in range(self.how.ranks) if x != other] or [other]
            there = {"dgid": gid(other), "dest_qpn": _qpn(_QP + theirs.index(self.rank))}
            yield _QP + at, {**own, **there, "qp_type": "rc"}


class _Drawn(GpuRank):
    """A rank that does what random numbers say."""

    def __init__(self, rank: int, how: GpuRun, truth: GpuTruth, rng: np.random.Generator) -> None:
        super().__init__(rank, how, truth)
        self.rng = rng

    def draw(self) -> int:
        """Do all that the rank does; return when it is over, in ns since the start of the run."""
        now = 1000
        for _ in range(self.how.kernels):
            begin = now
            for _ in range(self.how.doorbells):
                now += _STEP_NS
                self._exchange(now)
            now += _STEP_NS
            self.kernel(begin, now)
            now += _KERNEL_NS
        return now

    def _exchange(self, now: int) -> None:
        """Post a few work requests to one queue, and ring once."""
        at = int(self.rng.integers(0, len(self.peers)))
        low, high = (0, 3) if self.rng.random() < 0.5 else (3, len(_SHAPES))  # data, or control
        shapes = _SHAPES if self.how.mixed else _SHAPES[low:high]
        for _ in range(int(self.rng.integers(1, 5))):
            shape = shapes[int(self.rng.integers(0, len(shapes)))]
            op, _, _, operands = shape
            size = 0 if op == Op.NOP else 8 if operands else 1 << int(self.rng.integers(3, 20))
            raddr = ADDRESS + 64 * int(self.rng.integers(0, 1 << 20)) if op not in _PLAIN else 0
            is_lost = bool(self.rng.random() < self.how.lost)
            self.post(now, at, shape, size, raddr, is_lost=is_lost)
        self.ring(now, at)


_PLAIN = (Op.SEND, Op.NOP)
"""Operations that name no remote address."""


def _qpn(qp: int) -> int:
    return 0x100 + qp


def _key(rank: int) -> int:
    return 0x1000 + rank


def gid(rank: int) -> bytes:
    """Return the GID of the port that a rank goes through."""
    return struct.pack(">QQ", 0xFE80 << 48, rank + 1)
