"""Operations whose target sees nothing of them: which queue pair they reach, and their arrows."""

from __future__ import annotations

import numpy as np

from sigmatrace.export.perfetto_tracks import Tracks
from sigmatrace.partition import Partition
from sigmatrace.trace_format import OP_CLASS, Op, OpClass, OpFlag

_ARROW = np.uint64(1 << 63)
"""Bit of arrows of one-sided operations; flows of messages have it not (group numbers)."""


def silent_targets(part: Partition, tracks: Tracks) -> np.ndarray:
    """Return the queue pair i4[n] that each operation reaches unseen, -1: none, or not known.

    Those are one-sided operations; messages only where no arrival can be seen, at queue pairs of
    GPUs. A write with immediate data arrives as a RECV.
    """
    target = tracks.qps.target[part.column("ops", "channel")]
    op = part.column("ops", "op")
    one_sided = (OP_CLASS[op] == OpClass.ONE_SIDED) & (part.column("ops", "flow") == 0)
    is_message = (op == Op.SEND) | (op == Op.PUT_DATA)
    is_silent = one_sided | (is_message & np.append(tracks.qps.is_blind, False)[target])
    return np.where(is_silent & ~has_flag(part, OpFlag.FAILED), target, -1)


def arrow_ids(part: Partition, rows: np.ndarray) -> np.ndarray:
    """Return the flows u8 of operations that ``silent_targets`` has: channel and ordinal.

    Args:
        part: The partition.
        rows: i8, rows of its operations.
    """
    channel = part.column("ops", "channel")[rows].astype(np.uint64)
    ids: np.ndarray = _ARROW | channel << np.uint64(32) | part.column("ops", "ordinal")[rows]
    return ids


def has_flag(part: Partition, flag: OpFlag) -> np.ndarray:
    """Return bool[n], which operations have a flag."""
    found: np.ndarray = part.column("ops", "flags") & np.uint8(flag) > 0
    return found
