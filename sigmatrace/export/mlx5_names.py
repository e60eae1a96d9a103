"""Names of what control segments of mlx5 hold, as in ``mlx5dv.h`` and the PRM."""

from __future__ import annotations

from enum import IntEnum


class WqeOpcode(IntEnum):
    """Opcode of a work queue element of mlx5 (column ``wqes.opcode``)."""

    NOP = 0x00
    SEND_INVAL = 0x01
    RDMA_WRITE = 0x08
    RDMA_WRITE_IMM = 0x09
    SEND = 0x0A
    SEND_IMM = 0x0B
    TSO = 0x0E
    WAIT = 0x0F
    RDMA_READ = 0x10
    ATOMIC_CS = 0x11
    ATOMIC_FA = 0x12
    ATOMIC_MASKED_CS = 0x14
    ATOMIC_MASKED_FA = 0x15
    FMR = 0x19
    LOCAL_INVAL = 0x1B
    CONFIG_CMD = 0x1F
    SET_PSV = 0x20
    DUMP = 0x23
    UMR = 0x25
    TAG_MATCHING = 0x28
    FLOW_TBL_ACCESS = 0x2C
    MMO = 0x2F


class WqeFence(IntEnum):
    """Fence mode of a work queue element (column ``wqes.fence``)."""

    NONE = 0
    INITIATOR_SMALL_FENCE = 1
    FENCE = 2
    STRONG_ORDERING = 3
    FENCE_AND_SMALL_FENCE = 4


class WqeCompletion(IntEnum):
    """When a work queue element asks for a completion (column ``wqes.ce``)."""

    ON_ERROR = 0
    ON_FIRST_ERROR = 1
    ALWAYS = 2
    ALWAYS_WITH_EVENT = 3
