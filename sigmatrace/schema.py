"""Names, dtypes and units: the one place that says what a column is.

Two families: the **record layouts** of the trace format (``docs/format.md``
section 2, mirrored by ``capture/native/st_format.h``) and the **tables** that
flow through the pipeline. Columns carry their unit in their name: ``_ns``,
``_bytes``, ``_tsc``.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

FORMAT_NAME = "sigmatrace"
FORMAT_VERSION = (1, 0)
ITEM_MAGIC = bytes((0x95, 0xA4)) + b"STRC"
ITEM_PREFIX_BYTES = 17
ITEM_BODY_MAX_BYTES = 64 << 20
UNKNOWN_PEER = 2**64 - 1


class Item(IntEnum):
    """Kind of a top-level item of a rank file (format.md section 1)."""

    HEADER = 0
    CHUNK = 1
    OBJECT = 2
    CLOCK = 3
    END = 4


class Schema(IntEnum):
    """Number of a record layout (format.md section 2)."""

    OP = 1
    CHANNEL = 2
    COMPLETION = 3
    MARK = 4
    AGGREGATE = 5
    TARGET = 6
    REQUEST = 7
    CQE = 8


class Op(IntEnum):
    """What an operation does."""

    SEND = 1
    RECV = 2
    PUT = 3
    GET = 4
    ATOMIC = 5
    ATOMIC_FETCH = 6
    FLUSH = 7
    CANCEL = 8
    PROBE = 9
    PUT_DATA = 10
    BIND = 11
    INVALIDATE = 12


class OpClass(IntEnum):
    """What an operation means to the matching and to traffic."""

    OTHER = 0
    SEND = 1
    RECV = 2
    ONE_SIDED = 3


OP_CLASS = np.zeros(256, np.uint8)
"""``(256,)`` u1, ``OpClass`` by ``Op``. A PUT_DATA sends: its data arrives as a RECV."""
OP_CLASS[[Op.SEND, Op.PUT_DATA]] = OpClass.SEND
OP_CLASS[Op.RECV] = OpClass.RECV
OP_CLASS[[Op.PUT, Op.GET, Op.ATOMIC, Op.ATOMIC_FETCH]] = OpClass.ONE_SIDED


class OpFlag(IntFlag):
    """Flags of an ``op`` record."""

    SIZE_UNKNOWN = 1
    ORDER_UNCERTAIN = 2
    INLINE = 4
    FAILED = 8
    SYNC = 16
    NESTED = 32
    SIGNALED = 64


class Kind(IntEnum):
    """Kind of a channel."""

    MSG = 1
    TAG = 2
    RMA = 3
    AM = 4
    STREAM = 5


class Dir(IntEnum):
    """Direction of a channel, seen from its own process."""

    OUT = 1
    IN = 2


class Layer(IntEnum):
    """API at which an operation was seen."""

    OFI = 1
    UCP = 2
    UCT = 3
    VERBS = 4


def layer_text(layer: int) -> str:
    """Return the name of a layer; a number that is none names itself."""
    return Layer(layer).name.lower() if layer in list(Layer) else f"layer {layer}"


class ChannelFlag(IntFlag):
    """Flags of a ``channel`` record."""

    HAS_TAG = 1
    HAS_DATA = 2
    OVERFLOW = 4
    REPLY = 8
    TAG_UNKNOWN = 16


class Queue(IntEnum):
    """Which queue of a queue pair a ``request`` or ``cqe`` belongs to."""

    SEND = 1
    RECV = 2
    SHARED = 3


NO_POSITION = 2**32 - 1
"""A completion does not tell which request of its queue it completes (``cqes.position``)."""


class MarkKind(IntEnum):
    """Kind of a ``mark`` record."""

    BEGIN = 1
    END = 2
    COUNTER = 3
    INSTANT = 4


def _layout(text: str) -> np.dtype:
    """Return the packed little-endian dtype of ``"name:type ..."``; ``pad:3u1`` is an array."""
    fields: list[tuple[Any, ...]] = []
    for name, _, kind in (field.partition(":") for field in text.split()):
        count, kind = (kind[:-2], kind[-2:])
        fields.append((name, f"<{kind}", (int(count),)) if count else (name, f"<{kind}"))
    return np.dtype(fields)


RECORDS: dict[Schema, np.dtype] = {
    Schema.OP: _layout(
        "t_tsc:u8 size_bytes:u8 channel:u4 ordinal:u4 op:u1 call:u1 depth:u1 flags:u1 aux:u4"
    ),
    Schema.CHANNEL: _layout(
        "t_tsc:u8 peer:u8 tag:u8 data:u8 id:u4 object:u4 kind:u1 dir:u1 layer:u1 flags:u1"
        " thread_shared:u4"
    ),
    Schema.COMPLETION: _layout(
        "t_tsc:u8 size_bytes:u8 channel:u4 ordinal:u4 status:i4 op:u1 call:u1 depth:u1 flags:u1"
    ),
    Schema.MARK: _layout("t_tsc:u8 value:f8 name:u4 kind:u1 pad:3u1"),
    Schema.AGGREGATE: _layout(
        "count:u8 size_bytes:u8 channel:u4 op:u1 depth:u1 pad:2u1 size_log2_max:u1"
        " size_log2_min:u1 pad2:6u1"
    ),
    Schema.TARGET: _layout("raddr:u8 rkey:u8 context:u8 channel:u4 ordinal:u4"),
    Schema.REQUEST: _layout(
        "t_tsc:u8 wr_id:u8 raddr:u8 size_bytes:u4 rkey:u4 imm:u4 object:u4 position:u4"
        " opcode:u1 sges:u1 flags:u1 queue:u1"
    ),
    Schema.CQE: _layout(
        "t_tsc:u8 posted_tsc:u8 wr_id:u8 size_bytes:u4 imm:u4 object:u4 position:u4 first:u4"
        " opcode:u1 status:u1 flags:u1 queue:u1"
    ),
}
"""Record layouts, packed and little-endian, by schema number."""


def record_fields(dtype: np.dtype) -> list[tuple[str, str]]:
    """Return name and dtype of each field of a record, spelled as in a file's header.

    Several equal padding bytes are spelled ``"3u1"`` (format.md section 1.1).
    """
    spelled = []
    for name in dtype.names or ():
        one = dtype[name]
        text = one.base.str.lstrip("|")
        spelled.append((name, text if one.subdtype is None else f"{one.shape[0]}{text}"))
    return spelled


Columns = dict[str, dict[str, str]]
"""Table name to column name to dtype, as numpy spells it ("u4", "i8", "f8", "str")."""

INDEX_TABLES: Columns = {
    # One row per process (rank file). `proc` is its number in the run: 0..n-1, ordered by
    # (rank known first, rank, host, pid, start). `label` is what a user sees ("rank 3", "pid 812").
    "processes": {
        "proc": "i4",
        "label": "str",
        "rank": "i4",
        "world": "i4",
        "host": "str",
        "boot_id": "str",
        "pid": "i8",
        "ppid": "i8",
        "start_ns": "i8",
        "run_id": "str",
        "mode": "str",
        "layers": "str",
        "command": "str",
        "tsc_hz": "u8",
        "path": "str",
        "end": "str",
    },
    # Threads that recorded something; `thread` is dense over the whole run.
    "threads": {"thread": "u4", "proc": "i4", "tid": "u4", "name": "str"},
    "clocks": {"proc": "i4", "tsc": "u8", "wall_ns": "i8", "width_tsc": "u8", "source": "str"},
    # `channel` is dense over the whole run; `id` is the number in its process.
    "channels": {
        "channel": "u4",
        "proc": "i4",
        "id": "u4",
        "object": "u4",
        "peer": "u8",
        "tag": "u8",
        "data": "u8",
        "kind": "u1",
        "dir": "u1",
        "layer": "u1",
        "flags": "u1",
    },
    # Endpoint-like objects with canonical names that are equal at both ends ("" = unknown).
    # `local`: its own name; `peer`: the other end's, of connected endpoints; `owner`: the
    # object whose name is meant when this one has none (a ucp_ep's worker, a uct_ep's iface);
    # `av`: the address vector that resolves its channels' `peer`; `life`: how many connections of
    # the same two names came before in this process; `gone_tsc`: 0 when it was never closed.
    "endpoints": {
        "proc": "i4",
        "object": "u4",
        "layer": "u1",
        "type": "str",
        "local": "str",
        "peer": "str",
        "owner": "u4",
        "av": "u4",
        "depth": "u1",
        "life": "u4",
        "born_tsc": "u8",
        "gone_tsc": "u8",
    },
    # Registered memory; `key` is what the other end names it by (rkey, fi_mr_key).
    "regions": {
        "proc": "i4",
        "object": "u4",
        "layer": "u1",
        "key": "u8",
        "address": "u8",
        "length_bytes": "u8",
        "born_tsc": "u8",
        "gone_tsc": "u8",
    },
    # Ports of NICs, by the process that opened them (layer verbs); numa: 2^32-1 when unknown.
    "ports": {
        "proc": "i4",
        "object": "u4",
        "device": "str",
        "node_guid": "u8",
        "numa": "u4",
        "port": "u1",
        "lid": "u4",
        "link_layer": "str",
        "mtu_bytes": "u4",
        "rate_mbps": "u4",
        "netdev": "str",
    },
    "gids": {"proc": "i4", "port": "u4", "index": "u4", "gid": "str", "type": "str"},
    "addresses": {"proc": "i4", "av": "u4", "addr": "u8", "name": "str"},
    "names": {"proc": "i4", "name": "u4", "text": "str"},
    "libraries": {
        "proc": "i4",
        "layer": "str",
        "name": "str",
        "version": "str",
        "path": "str",
        "how": "str",
    },
    "calls": {"call": "u1", "text": "str"},
    # Everything that is not a whole, checksummed item: `what` is "damaged", "cut" or "unknown".
    "damage": {"proc": "i4", "path": "str", "offset": "i8", "size_bytes": "i8", "what": "str"},
}
"""Whole-run tables that the index provides (object data only, no event bytes)."""

EVENT_NAMES = {
    Schema.OP: "ops",
    Schema.COMPLETION: "completions",
    Schema.MARK: "marks",
    Schema.TARGET: "targets",
    Schema.AGGREGATE: "aggregates",
    Schema.REQUEST: "requests",
    Schema.CQE: "cqes",
}
"""Event table by schema. Channels are not events; the index holds them."""


def _event_columns(dtype: np.dtype) -> dict[str, str]:
    fields = {name: dtype[name] for name in dtype.names or ()}
    own = {name: one.str[1:] for name, one in fields.items() if one.subdtype is None}
    return {"proc": "i4", "thread": "u4", **own}


EVENT_TABLES: Columns = {
    name: _event_columns(RECORDS[schema]) for schema, name in EVENT_NAMES.items()
}
"""Tables of a partition as the reader delivers them: process and thread, then the record's
fields without padding. Stages add columns."""


class Fate(IntEnum):
    """What the matching can say of an operation (column ``ops.fate``)."""

    MATCHABLE = 0
    ONE_SIDED = 1
    NOT_A_MESSAGE = 2
    PEER_UNKNOWN = 3
    PEER_NOT_TRACED = 4
    SOURCE_AMBIGUOUS = 5
    BYTE_STREAM = 6
    TOO_MANY_CHANNELS = 7
    TAG_UNKNOWN = 8


class Owner(IntEnum):
    """What is known of the memory that a request names (column ``requests.owner``)."""

    NOT_ONE_SIDED = 0
    REGION = 1
    NO_REGION = 2
    AMBIGUOUS = 3
    TARGET_UNKNOWN = 4


NO_REGION = 2**32 - 1
"""No region is known (column ``requests.region``)."""

NO_GROUP = 2**32 - 1
"""No stream of messages that both ends share (column ``ops.group``)."""

STAGE_TABLES: Columns = {
    # topology: one row per channel, in the order of `channel`.
    "routes": {
        "channel": "u4",
        "src_proc": "i4",
        "dst_proc": "i4",
        "src_name": "str",
        "dst_name": "str",
        "group": "u4",
        "fate": "u1",
    },
    # clock: one row per process.
    "clock_quality": {
        "proc": "i4",
        "pairs": "i4",
        "bad_pairs": "i4",
        "offset_ns": "i8",
        "drift_ppm": "f8",
        "error_ns": "f8",
        "calibrated": "bool",
    },
    # match: one row per group that carried messages. Operations of unknown size add 0 bytes;
    # `size_unknown` counts those of both ends, and `uncertain` those whose order is not sure.
    "messages": {
        "group": "u4",
        "src_proc": "i4",
        "dst_proc": "i4",
        "layer": "u1",
        "kind": "u1",
        "sent": "u8",
        "received": "u8",
        "matched": "u8",
        "sent_bytes": "u8",
        "received_bytes": "u8",
        "size_unknown": "u8",
        "uncertain": "u8",
    },
    # traffic: operations the application itself asked for have nested = 0.
    "traffic": {
        "src_proc": "i4",
        "dst_proc": "i4",
        "layer": "u1",
        "op": "u1",
        "nested": "u1",
        "count": "u8",
        "size_bytes": "u8",
        "size_unknown": "u8",
    },
    # traffic over time: bin b begins at the fact `timeline_ns` + b * the fact `bin_ns`. Bins are
    # aligned to multiples of `bin_ns`, so bin 0 may begin a part of a bin before `base_ns`.
    # Each layer's outermost operations; op as in `ops`.
    "timeline": {
        "bin": "u4",
        "proc": "i4",
        "layer": "u1",
        "op": "u1",
        "count": "u8",
        "size_bytes": "u8",
    },
    # completion: one row per process, object (ib_qp, ib_srq) and ``schema.Queue``. `joined`:
    # completions of a known request; `retired`: requests that they completed.
    "queues": {
        "proc": "i4",
        "object": "u4",
        "queue": "u1",
        "requests": "i8",
        "cqes": "i8",
        "joined": "i8",
        "retired": "i8",
        "errors": "i8",
    },
    # completion: from post to completion; `timed` of the `count` completions tell, `min_ns` and
    # `max_ns` are limits of i8 when none does. opcode: format.md 2.8.
    "latencies": {
        "proc": "i4",
        "queue": "u1",
        "opcode": "u1",
        "status": "u1",
        "count": "i8",
        "size_bytes": "i8",
        "timed": "i8",
        "total_ns": "i8",
        "min_ns": "i8",
        "max_ns": "i8",
    },
    # wire (with validate.pcap): one row per flow and operation. Ends by IP address; qpn: the
    # receiving queue pair; verdict: ``validate.compare.Verdict``.
    "wire_flows": {
        "source": "str",
        "destination": "str",
        "qpn": "u4",
        "op": "u1",
        "traced": "u8",
        "traced_bytes": "u8",
        "captured": "u8",
        "captured_bytes": "u8",
        "verdict": "str",
    },
    # messages (an exchange, opt-in): one row per message seen at both ends.
    "message_pairs": {
        "flow": "u8",
        "src_proc": "i4",
        "dst_proc": "i4",
        "layer": "u1",
        "size_bytes": "u8",
        "received_bytes": "u8",
        "sizes_known": "bool",
        "send_ns": "i8",
        "receive_ns": "i8",
        "latency_ns": "i8",
    },
}
"""Whole-run tables that the built-in stages add."""
