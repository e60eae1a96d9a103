"""Rank files of messages over queue pairs (layer verbs, mode simple), one NIC and GPU a rank."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sigmatrace.testing.scenarios_messages import Ints, Sent, ordinals
from sigmatrace.testing.synthetic_draw import BASE_NS
from sigmatrace.testing.write import RankFile, records
from sigmatrace.trace_format import Dir, Kind, Layer, Op, Schema

_PID, _DEVICE, _PORT, _GID, _GPU, _QP, _QPN = 3000, 1, 2, 3, 4, 10, 0x100


@dataclass(frozen=True)
class Place:
    """Where a rank runs.

    Attributes:
        rank, ranks: Which one, of how many.
        host: Name of its node.
        local: Number of its NIC, and of its GPU, there.
    """

    rank: int
    ranks: int
    host: str
    local: int


def write_verbs_rank(folder: Path, place: Place, sent: Sent, end_ns: int) -> None:
    """Write the file of a rank, which has a connected queue pair to each rank it has messages with.

    A TSC tick is a ns; clocks are right.

    Args:
        folder: Of the run.
        place: Which rank it is, and where it runs.
        sent: The messages of all ranks, all received; those of a pair arrive as they were sent.
        end_ns: When the process ends, Unix ns.
    """
    out, into = (np.flatnonzero(end == place.rank) for end in (sent.src, sent.dst))
    peers = np.union1d(sent.dst[out], sent.src[into])
    ops = _operations(sent, out, into, peers)
    pid = _PID + place.rank
    header = {"rank": place.rank, "world": place.ranks, "tsc_hz": 10**9, "run_id": "verbs"}
    header |= {"layers": ["verbs", "cuda"], "calls": {"1": "ibv_post_send", "2": "ibv_poll_cq"}}
    with RankFile(folder, place.host, pid, BASE_NS, **header) as file:
        _write_objects(file, place, peers)
        for at in (BASE_NS, end_ns):
            file.clock(at - BASE_NS + 1, at)
        ways = 2 * peers.size
        channels = records(Schema.CHANNEL, ways, t_tsc=1, id=np.arange(ways), kind=Kind.MSG)
        channels["object"] = channels["peer"] = _QP + np.arange(ways) // 2
        channels["dir"], channels["layer"] = np.tile([Dir.OUT, Dir.IN], peers.size), Layer.VERBS
        file.chunk(Schema.CHANNEL, pid, channels)
        if ops.size:
            file.chunk(Schema.OP, pid, ops)
        file.end(end_ns - BASE_NS + 1)


def _operations(sent: Sent, out: Ints, into: Ints, peers: Ints) -> np.ndarray:
    """Return the records of a rank in the order of time; channels 2 k and 2 k + 1 are of peer k."""
    both = np.concatenate([out, into])
    is_receive = np.arange(both.size) >= out.size
    peer = np.where(is_receive, sent.src[both], sent.dst[both])
    times = np.where(is_receive, sent.received_ns[both], sent.sent_ns[both])
    order = np.lexsort((sent.sent_ns[both], times))
    both, is_receive, peer, times = (x[order] for x in (both, is_receive, peer, times))
    channel = 2 * np.searchsorted(peers, peer) + is_receive
    k = ordinals(channel)
    ops = records(Schema.OP, both.size, t_tsc=times - BASE_NS + 1, ordinal=k, aux=k)
    ops["size_bytes"], ops["channel"] = sent.size_bytes[both], channel
    ops["op"] = np.where(is_receive, Op.RECV, Op.SEND)
    ops["call"] = np.where(is_receive, 2, 1)
    return ops


def _write_objects(file: RankFile, place: Place, peers: Ints) -> None:
    guid = {"node_guid": 0x7000 + place.rank, "numa": 0}
    file.object("library", name="libibverbs.so.1", layer="verbs", version="", path="", how="symbol")
    file.object("ib_device", _DEVICE, name=f"mlx5_{place.local}", **guid)
    port = {"port": 1, "link_layer": "infiniband", "rate_mbps": 400_000, "mtu_bytes": 4096}
    file.object("ib_port", _PORT, device=_DEVICE, **port)
    file.object("ib_gid", _GID, port=_PORT, index=0, gid=_gid(place.rank), gid_type="ib")
    file.object("gpu", _GPU, ordinal=place.local, name="GPU", uuid=bytes(16))
    for number, peer in enumerate(peers.tolist()):
        own = {"device": _DEVICE, "port": 1, "qp_type": "rc", "qpn": _QPN + peer}
        there = {"dgid": _gid(peer), "dest_qpn": _QPN + place.rank}
        file.object("ib_qp", _QP + number, sgid=_gid(place.rank), **own, **there, state="rts")


def _gid(rank: int) -> bytes:
    return struct.pack(">QQ", 0xFE80 << 48, rank + 1)
