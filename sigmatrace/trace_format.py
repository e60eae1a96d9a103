"""The trace format as the reader knows it: ``docs/format.md``, mirrored by ``st_format.h``.

Constants of the items, enumerations, and the layouts of records.
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
CODEC_RAW, CODEC_PACKED = 0, 1
PACKED_FACTOR = 1024
"""Bytes of records in a packed chunk are at most so many times those of its data."""
UNKNOWN_PEER = 2**64 - 1
SIZE_BITS_UNKNOWN = 255
"""Class of the operations whose size the API does not tell (``aggregates.size_bits``)."""


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
    DOORBELL = 9
    WQE = 10
    KERNEL = 11


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
    NOP = 13


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
INITIATORS = tuple(op for op in Op if OP_CLASS[op] in (OpClass.SEND, OpClass.ONE_SIDED))
"""Operations by which traffic is counted: a RECV is the other end of a send."""


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
    MLX5DV = 5
    CUDA = 6


QUEUE_PAIR_LAYERS = (Layer.VERBS, Layer.MLX5DV)
"""Layers whose operations go through queue pairs. Memory that either registers is either's."""


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


class WrOpcode(IntEnum):
    """Opcode of a ``request``: ``enum ibv_wr_opcode``, and one of the format's own."""

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3
    RDMA_READ = 4
    ATOMIC_CMP_AND_SWP = 5
    ATOMIC_FETCH_AND_ADD = 6
    LOCAL_INV = 7
    BIND_MW = 8
    SEND_WITH_INV = 9
    TSO = 10
    DRIVER1 = 11
    FLUSH = 14
    ATOMIC_WRITE = 15
    RECEIVE = 255


ONE_SIDED = frozenset(
    (
        WrOpcode.RDMA_WRITE,
        WrOpcode.RDMA_WRITE_WITH_IMM,
        WrOpcode.RDMA_READ,
        WrOpcode.ATOMIC_CMP_AND_SWP,
        WrOpcode.ATOMIC_FETCH_AND_ADD,
        WrOpcode.FLUSH,
        WrOpcode.ATOMIC_WRITE,
    )
)
"""Requests that name memory of the other end (``raddr``, ``rkey``)."""
WITH_IMM = frozenset(
    (
        WrOpcode.RDMA_WRITE_WITH_IMM,
        WrOpcode.SEND_WITH_IMM,
        WrOpcode.LOCAL_INV,
        WrOpcode.SEND_WITH_INV,
    )
)
"""Requests with immediate data, or with a key to invalidate (``imm``)."""


class WcOpcode(IntEnum):
    """Opcode of a ``cqe``: ``enum ibv_wc_opcode``, those of receives with bit 7.

    UNKNOWN: of an error whose request is not known.
    """

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    TSO = 7
    FLUSH = 8
    ATOMIC_WRITE = 9
    UNKNOWN = 127
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


CQE_AT_MOST = 128
"""Of the flags of a ``cqe``: it completed when it was seen, or before."""

NO_POSITION = 2**32 - 1
"""A completion does not tell which request of its queue it completes (``cqes.position``)."""


class DoorbellFlag(IntFlag):
    """Flags of a ``doorbell`` record."""

    SYNTHESIZED = 1
    AGAIN = 2
    ALTERNATE = 4
    BLUEFLAME = 8
    WAITED = 16
    LATE = 32
    NOT_READ = 64


class WqeKind(IntEnum):
    """What a slot of a send queue holds (``wqe`` record)."""

    FIRST = 1
    FURTHER = 2
    INVALID = 3


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
        "count:u8 size_bytes:u8 channel:u4 op:u1 size_bits:u1 depth:u1 flags:u1"
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
    Schema.DOORBELL: _layout(
        "t_tsc:u8 value:u8 index:u8 uar:u4 qp:u4 slots:u4 delay_tsc:u4 flags:u4 pad:4u1"
    ),
    Schema.WQE: _layout(
        "t_tsc:u8 index:u8 qp:u4 kind:u1 pad:3u1 w0:u8 w1:u8 w2:u8 w3:u8 w4:u8 w5:u8 w6:u8 w7:u8"
    ),
    Schema.KERNEL: _layout(
        "t_tsc:u8 duration_tsc:u8 name:u4 gpu:u4 context:u4 stream:u4 correlation:u4 blocks:u4"
        " threads:u4 pad:4u1"
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
