"""What the rows of operations show, as ``encode_track`` takes it, in one pass."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.export.kernels.packets import SINK
from sigmatrace.kernel import I4R, U1R, U2W, U4W, kernel

_SIZE_UNKNOWN, _FAILED, _RECV, _PEER_UNKNOWN = 1, 8, 2, 3


@kernel(
    types.void(*(I4R,) * 3, *(U1R,) * 4, types.int64, U4W, U2W, U4W, U4W),
)
def describe_operations(
    proc, src_proc, dst_proc, op, call, fate, flags, processes, name, shown, peer, why
):
    """Fill in name and arguments of operations.

    Args:
        proc: i4[n], the row's own process.
        src_proc: i4[n], process that sends, -1 unknown.
        dst_proc: i4[n], process that receives, -1 unknown.
        op: u1[n], ``trace_format.Op``.
        call: u1[n].
        fate: u1[n], ``schema.Fate``; from PEER_UNKNOWN on it says why nothing was matched.
        flags: u1[n], ``trace_format.OpFlag``.
        processes: How many processes the run has; texts from there on are fates.
        name: u4[n], output: op << 8 | call.
        shown: u2[n], output: bits of size (0), peer (1), fate (2), failed (3); ``SINK``.
        peer: u4[n], output: key of the peer's text.
        why: u4[n], output: key of the fate's text.
    """
    for i in range(proc.size):
        other = dst_proc[i] if src_proc[i] == proc[i] else src_proc[i]
        name[i] = np.uint32(op[i]) << np.uint32(8) | np.uint32(call[i])
        bits = np.int64(flags[i] & _SIZE_UNKNOWN == 0) | np.int64(other >= 0) << 1
        bits |= np.int64(fate[i] >= _PEER_UNKNOWN) << 2 | np.int64(flags[i] & _FAILED != 0) << 3
        shown[i] = bits | (SINK if op[i] == _RECV else 0)
        peer[i] = max(other, 0)
        why[i] = processes + fate[i]
