"""One rank file of a synthetic run: its objects, channels, and events in time order."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sigmatrace.testing.synthetic_draw import TAGS, Clocks, Messages, Shape
from sigmatrace.testing.write import RankFile, records
from sigmatrace.trace_format import (
    UNKNOWN_PEER,
    ChannelFlag,
    Dir,
    Kind,
    Layer,
    MarkKind,
    Op,
    Schema,
)

_PID = 1000
_UID = 0x5157_0000
_COMPLETION_AFTER_NS = 300
_CALLS = {"1": "fi_send", "2": "fi_recv", "3": "ucp_tag_send_nbx", "4": "ucp_tag_recv_nbx"}
_CALLS |= {"5": "fi_cq_read", "6": "ucp_worker_progress"}


def write_rank(
    folder: Path,
    shape: Shape,
    clocks: Clocks,
    messages: Messages,
    rank: int,
    rng: np.random.Generator,
    regions: Mapping[str, np.ndarray] | None = None,
) -> tuple[int, int]:
    """Write the file of a rank; return the true times of its first and last written operation.

    Chunks that are lost are noted in ``messages``. Without operations both times are -1. Of mode
    ``full``, ``regions`` are ``(n, 2)`` i8 by name, true times of begins and ends, in the order of
    time; they lie in one of the whole run, the main loop.
    """
    sends = np.arange(messages.start[rank], messages.start[rank + 1])
    receives = messages.by_dst[messages.dst_start[rank] : messages.dst_start[rank + 1]]
    ops, true_ns, message = _operations(shape, clocks, messages, rank, sends, receives)
    later_ns = (shape.repeats - 1) * messages.span_ns
    regions = regions or {}
    end_ns = later_ns + max(int(x.max(initial=0)) for x in (true_ns, *regions.values())) + 1000
    host, pid = f"node{clocks.host[rank]}", _PID + rank
    start_ns = clocks.wall_ns(rank, 0)
    with RankFile(folder, host, pid, start_ns, **_header(shape, clocks, rank)) as file:
        peers = _write_objects(file, shape, clocks, rank)
        file.object("thread", tid=pid, name="main")
        channels = _channels(shape, rank, peers, int(clocks.tsc(rank, 0)))
        file.chunk(Schema.CHANNEL, pid, channels)
        for at in [*range(0, end_ns, 1_000_000_000), end_ns]:
            file.clock(int(clocks.tsc(rank, at)), clocks.wall_ns(rank, at))
        written = _write_events(file, shape, clocks, rank, (ops, true_ns), rng)
        for turn in range(1, shape.repeats):
            again = _again(shape, ops, turn)
            again_ns = true_ns + turn * messages.span_ns
            again["t_tsc"] = clocks.tsc(rank, again_ns)
            _write_events(file, shape, clocks, rank, (again, again_ns), rng)
        if shape.mode == "full":
            whole = {"main loop": np.array([[0, end_ns]])}
            _write_regions(file, pid, clocks, rank, {**whole, **regions})
        file.end(int(clocks.tsc(rank, end_ns)))
    is_send = ops["op"] == Op.SEND
    messages.send_written[message[is_send & written]] = True
    messages.recv_written[message[~is_send & written]] = True
    times = true_ns[written]
    return (int(times[0]), int(times[-1]) + later_ns) if len(times) else (-1, -1)


def _header(shape: Shape, clocks: Clocks, rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "world": shape.ranks,
        "rank_source": "SYNTHETIC",
        "run_id": f"synthetic-{shape.seed}",
        "mode": shape.mode,
        "layers": ["ucp" if shape.tagged else "ofi"],
        "tsc_hz": int(clocks.hz[rank]),
        "calls": _CALLS,
        "command": ["synthetic"],
    }


def _operations(
    shape: Shape,
    clocks: Clocks,
    messages: Messages,
    rank: int,
    sends: np.ndarray,
    receives: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the operations of a rank in time order, their true times, and their messages."""
    message = np.concatenate([sends, receives])
    count = len(sends)
    true_ns = np.concatenate([messages.sent_ns[sends], messages.received_ns[receives]])
    ordinal = np.concatenate([messages.k[sends], messages.in_k[receives]])
    ops = records(Schema.OP, len(message), size_bytes=messages.size[message], ordinal=ordinal)
    ops["channel"][:count] = messages.lane[sends]
    ops["channel"][count:] = messages.lane[receives] + shape.lanes
    ops["op"][:count], ops["op"][count:] = Op.SEND, Op.RECV
    ops["call"][:count], ops["call"][count:] = (3, 4) if shape.tagged else (1, 2)
    posting = np.lexsort((messages.k[receives], messages.received_ns[receives]))
    aux = np.empty(len(receives), np.uint32)
    aux[posting] = np.arange(len(receives), dtype=np.uint32)
    ops["aux"][count:] = aux
    if shape.mode == "full":
        ops["aux"][:count] = 200 + messages.lane[sends]
    order = np.lexsort((ordinal, true_ns))
    ops, true_ns = ops[order], true_ns[order]
    ops["t_tsc"] = clocks.tsc(rank, true_ns)
    return ops, true_ns, message[order]


def _again(shape: Shape, ops: np.ndarray, turn: int) -> np.ndarray:
    """Return the operations as they are numbered in turn ``turn``, counted from 0."""
    again = ops.copy()
    earlier = np.bincount(ops["channel"], minlength=2 * shape.lanes) * turn
    again["ordinal"] += earlier[ops["channel"]].astype(np.uint32)
    is_receive = ops["op"] == Op.RECV
    again["aux"][is_receive] += np.uint32(turn * int(is_receive.sum()))
    return again


def _write_objects(file: RankFile, shape: Shape, clocks: Clocks, rank: int) -> dict[int, int]:
    """Write a rank's objects; return what channels call each peer rank."""
    others = {shape.peer(rank, lane) for lane in range(shape.fan_out)}
    if shape.tagged:
        worker = file.object("ucp_worker", _LOCAL, uid=_UID + rank)
        file.object(
            "library", name="libucp.so.0", layer="ucp", version="1.0", path="", how="symbol"
        )
        return {
            other: file.object("ucp_ep", worker=worker, remote_uid=_UID + other)
            for other in sorted(others)
        }
    others |= {shape.source(rank, lane) for lane in range(shape.fan_out)}
    local = _sockaddr(int(clocks.host[rank]), rank)
    av = _LOCAL + 1
    file.object("ofi_endpoint", _LOCAL, prov="tcp", ep_type="rdm", av=av, local=local, depth=0)
    file.object("ofi_av", av, prov="tcp", av_type="table")
    file.object("library", name="libfabric.so.1", layer="ofi", version="1.0", path="", how="symbol")
    for other in sorted(others):
        address = _sockaddr(int(clocks.host[other]), other)
        file.object("ofi_address", av=av, addr=other, address=address)
    return {other: other for other in others}


_LOCAL = 1
"""Object id of the endpoint or worker, in every rank."""


def _sockaddr(host: int, rank: int) -> bytes:
    ip = socket.inet_aton(f"10.{host >> 16 & 255}.{host >> 8 & 255}.{host & 255}")
    return (
        struct.pack("<H", socket.AF_INET) + struct.pack(">H", 1024 + rank % 60000) + ip + bytes(8)
    )


def _channels(shape: Shape, rank: int, peers: dict[int, int], tsc: int) -> np.ndarray:
    """Return the channels: ``shape.lanes`` out, then as many in."""
    lanes = range(shape.lanes)
    sources = [shape.source(rank, lane) for lane in lanes]
    table = records(
        Schema.CHANNEL,
        2 * shape.lanes,
        t_tsc=tsc,
        id=np.arange(2 * shape.lanes),
        object=_LOCAL,
        kind=Kind.TAG if shape.tagged else Kind.MSG,
        dir=[Dir.OUT] * shape.lanes + [Dir.IN] * shape.lanes,
        layer=Layer.UCP if shape.tagged else Layer.OFI,
    )
    out, into = table[: shape.lanes], table[shape.lanes :]
    out["peer"] = [peers[shape.peer(rank, lane)] for lane in lanes]
    into["peer"] = UNKNOWN_PEER if shape.tagged else [peers[source] for source in sources]
    if shape.tagged:
        tags = np.arange(shape.lanes) // shape.fan_out % TAGS
        table["flags"] = ChannelFlag.HAS_TAG
        out["tag"] = rank << 32 | tags
        into["tag"] = np.array(sources, np.uint64) << np.uint64(32) | tags.astype(np.uint64)
    return table


def _write_events(
    file: RankFile,
    shape: Shape,
    clocks: Clocks,
    rank: int,
    operations: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:
    """Write operations chunk by chunk, some of them not; return which were written."""
    ops, true_ns = operations
    tid = _PID + rank
    written = np.ones(len(ops), bool)
    for start in range(0, len(ops), shape.chunk_records):
        part = slice(start, start + shape.chunk_records)
        if rng.random() < shape.loss:
            file.drop(Schema.OP, tid, len(ops[part]))
            written[part] = False
            continue
        file.chunk(Schema.OP, tid, ops[part])
        if shape.mode == "full":
            file.chunk(
                Schema.COMPLETION, tid, _completions(shape, clocks, rank, ops[part], true_ns[part])
            )
    return written


def _completions(
    shape: Shape, clocks: Clocks, rank: int, ops: np.ndarray, true_ns: np.ndarray
) -> np.ndarray:
    """Return the completions of operations; a receive is seen when it completes."""
    is_send = ops["op"] == Op.SEND
    seen = clocks.tsc(rank, true_ns + np.where(is_send, _COMPLETION_AFTER_NS, 0))
    copied = {name: ops[name] for name in ("size_bytes", "channel", "ordinal", "op")}
    call = 6 if shape.tagged else 5
    return records(Schema.COMPLETION, len(ops), t_tsc=seen, call=call, **copied)


def _write_regions(
    file: RankFile, tid: int, clocks: Clocks, rank: int, regions: Mapping[str, np.ndarray]
) -> None:
    """Write regions, the first one around all others, with a counter in its middle."""
    rows: list[tuple[int, float, int, MarkKind]] = []
    for name, times in regions.items():
        number = file.object("name", name=name)
        begins_ends = times.tolist()
        rows += [(begin, 0.0, number, MarkKind.BEGIN) for begin, _ in begins_ends]
        rows += [(end, 0.0, number, MarkKind.END) for _, end in begins_ends]
        if len(rows) == 2:
            rows.append((begins_ends[0][1] // 2, 0.5, number, MarkKind.COUNTER))
    rows.sort(key=lambda row: row[0])
    true_ns, value, names, kinds = zip(*rows, strict=True)
    times = clocks.tsc(rank, np.array(true_ns))
    marks = records(Schema.MARK, len(rows), t_tsc=times, value=value, name=names, kind=kinds)
    file.chunk(Schema.MARK, tid, marks)
