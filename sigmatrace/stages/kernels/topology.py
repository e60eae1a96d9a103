# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernel of the topology stage: what is known of a channel, onto each operation."""

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.kernel import I4R, I4W, U1R, U1W, U4R, U4W, kernel


@kernel(types.void(U4R, U1R, I4R, U1R, I4R, I4R, U4R, U1R, U1R, I4W, I4W, U4W, U1W, U1W))
def route_kernel(
    channel,
    op,
    proc,
    op_class,
    src,
    dst,
    group,
    fate,
    layer,
    out_src,
    out_dst,
    out_group,
    out_fate,
    out_layer,
):
    """Gather source, destination, group, fate and layer of each operation's channel.

    Args:
        channel: ``(n,)`` u4, row of the per-channel arrays; beyond them it is not known, and the
            row keeps its own process at its own end.
        op: ``(n,)`` u1, ``trace_format.Op``.
        proc: ``(n,)`` i4, process that recorded the row.
        op_class: ``(256,)`` u1, ``trace_format.OpClass`` by operation.
        src: ``(channels,)`` i4, process numbers, -1 unknown.
        dst: ``(channels,)`` i4, likewise.
        group: ``(channels,)`` u4, 2^32-1 for none.
        fate: ``(channels,)`` u1, ``schema.Fate`` of the channel's messages.
        layer: ``(channels,)`` u1, ``trace_format.Layer``.
        out_src: ``(n,)`` i4, output.
        out_dst: ``(n,)`` i4, output.
        out_group: ``(n,)`` u4, output; 2^32-1 unless the fate is MATCHABLE (0).
        out_fate: ``(n,)`` u1, output; by class: SEND (1) and RECV (2): the channel's;
            ONE_SIDED (3): ONE_SIDED (1); OTHER (0): NOT_A_MESSAGE (2). Sends and receives of a
            channel that is not known: PEER_UNKNOWN (3).
        out_layer: ``(n,)`` u1, output; 0 when the channel is not known.

    Any order. Complexity O(n). Source: docs/format.md 2.1, 2.2.
    """
    none = np.uint32(0xFFFFFFFF)
    for i in range(channel.size):
        c = channel[i]
        what = op_class[op[i]]
        if c < src.size:
            out_src[i] = src[c]
            out_dst[i] = dst[c]
            out_layer[i] = layer[c]
            f, g = fate[c], group[c]
        else:
            out_src[i] = -1 if what == 2 else proc[i]
            out_dst[i] = proc[i] if what == 2 else -1
            out_layer[i] = 0
            f, g = np.uint8(3), none
        if what == 0:
            f = np.uint8(2)
        elif what == 3:
            f = np.uint8(1)
        out_fate[i] = f
        out_group[i] = g if f == 0 else none
