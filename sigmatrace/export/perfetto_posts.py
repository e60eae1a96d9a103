"""Operations on the tracks of queue pairs: of those that posted them, and of those they reach.

In mode simple there are no requests and completions: operations stand for them. What a one-sided
operation reaches sees nothing of it; its queue pair shows the operation as an instant, with an
arrow from the call. Both have the time of the post: when the data arrived nobody saw.
"""

from __future__ import annotations

import numpy as np

from sigmatrace.export.kernels.packets import SINK
from sigmatrace.export.perfetto_calls import op_text
from sigmatrace.export.perfetto_rows import Argument, Kind, Rows
from sigmatrace.export.perfetto_targets import arrow_ids, has_flag, silent_targets
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.partition import Partition, Run
from sigmatrace.trace_format import Op, OpFlag

_OPERATION = (
    Argument("size_bytes", Kind.U64),
    Argument("position", Kind.U64),
    Argument("peer", Kind.TEXT),
    Argument("failed", Kind.FLAG),
    Argument("signaled", Kind.FLAG),
)
_BY_PEER = (
    Argument("size_bytes", Kind.U64),
    Argument("position", Kind.U64),
    Argument("qp", Kind.HEX),
)


def post_rows(part: Partition, run: Run, tracks: Tracks) -> Rows:
    """Return the operations of queue pairs of which no requests were recorded."""
    qp = tracks.qps.channel[part.column("ops", "channel")]
    mine = np.flatnonzero((qp >= 0) & ~np.append(tracks.qps.has_requests, False)[qp])
    keys = ("proc", "op", "src_proc", "dst_proc", "flags")
    row = {key: part.column("ops", key)[mine] for key in keys}
    other = np.where(row["src_proc"] == row["proc"], row["dst_proc"], row["src_proc"])
    shown = np.full(mine.size, 0b10, np.uint16) | (row["flags"] & OpFlag.SIZE_UNKNOWN == 0)
    for bit, given in (
        (2, other >= 0),
        (3, row["flags"] & OpFlag.FAILED > 0),
        (4, row["flags"] & OpFlag.SIGNALED > 0),
    ):
        shown |= given.astype(np.uint16) << np.uint16(bit)
    kinds = np.where(row["op"] == Op.RECV, Track.ARRIVALS, Track.REQUESTS)
    peers = run.tables["processes"].column("label").to_pylist()
    return Rows(
        track=tracks.numbers(kinds, qp[mine]),
        begin_ns=part.column("ops", "t_ns")[mine],
        length_ns=np.zeros(mine.size, np.int64),
        depth=np.zeros(mine.size, np.uint8),
        name=row["op"].astype(np.uint32),
        shown=shown,
        flow=np.zeros(mine.size, np.uint64),
        values=(*_carried(part, mine), np.maximum(other, 0).astype(np.uint32)),
        arguments=_OPERATION,
        name_text=op_text,
        value_text=peers.__getitem__,
        texts=len(peers),
    )


def by_peer_rows(part: Partition, run: Run, tracks: Tracks) -> Rows:
    """Return the operations that reach queue pairs unseen, as rows of these."""
    target = silent_targets(part, tracks)
    mine = np.flatnonzero(target >= 0)
    qpn = tracks.qps.qpn[tracks.qps.channel[part.column("ops", "channel")[mine]]]
    proc, op = (part.column("ops", name)[mine].astype(np.uint32) for name in ("proc", "op"))
    peers = run.tables["processes"].column("label").to_pylist()
    return Rows(
        track=tracks.numbers(Track.BY_PEERS, target[mine]),
        begin_ns=part.column("ops", "t_ns")[mine],
        length_ns=np.zeros(mine.size, np.int64),
        depth=np.zeros(mine.size, np.uint8),
        name=proc << np.uint32(8) | op,
        shown=np.full(mine.size, SINK | 0b111, np.uint16),
        flow=arrow_ids(part, mine),
        values=(*_carried(part, mine), qpn),
        arguments=_BY_PEER,
        name_text=lambda key: f"{op_text(key & 0xFF)} by {peers[key >> 8]}",
        value_text=str,
        texts=1,
    )


def _carried(part: Partition, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return size and position of operations."""
    size, position = (part.column("ops", name)[rows] for name in ("size_bytes", "aux"))
    return size, position


def targets_not_known(part: Partition, tracks: Tracks) -> int:
    """Return how many one-sided operations of queue pairs reach one that is not known."""
    mine = tracks.qps.channel[part.column("ops", "channel")] >= 0
    mine &= np.isin(part.column("ops", "op"), (Op.PUT, Op.GET, Op.ATOMIC, Op.ATOMIC_FETCH))
    mine &= ~has_flag(part, OpFlag.FAILED) & (silent_targets(part, tracks) < 0)
    return int(mine.sum())
