# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels of the topology stage: what is known of a channel, onto each operation.

In all of them ``channel`` is ``(n,)`` u4, row of the per-channel arrays; beyond them it is not
known. Any order. Complexity O(n). Source: docs/format.md 2.1, 2.2.
"""

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.kernel import I4R, I4W, U1R, U1W, U4R, U4W, kernel


@kernel(types.void(U4R, U1R, I4R, U1R, I4R, I4R, I4W, I4W))
def ends_kernel(channel, op, proc, op_class, src, dst, out_src, out_dst):
    """Gather source and destination.

    Args:
        channel: See the module's text; a row of none keeps its own process at its own end.
        op: ``(n,)`` u1, ``trace_format.Op``.
        proc: ``(n,)`` i4, process that recorded the row.
        op_class: ``(256,)`` u1, ``trace_format.OpClass`` by operation.
        src: ``(channels,)`` i4, process numbers, -1 unknown.
        dst: ``(channels,)`` i4, likewise.
        out_src: ``(n,)`` i4, output.
        out_dst: ``(n,)`` i4, output.
    """
    for i in range(channel.size):
        c = channel[i]
        if c < src.size:
            out_src[i], out_dst[i] = src[c], dst[c]
        else:
            received = op_class[op[i]] == 2
            out_src[i] = -1 if received else proc[i]
            out_dst[i] = proc[i] if received else -1


@kernel(types.void(U4R, U1R, U1R, U4R, U1R, U4W, U1W))
def fate_kernel(channel, op, op_class, group, fate, out_group, out_fate):
    """Gather group and fate.

    Args:
        channel: See the module's text.
        op: ``(n,)`` u1, ``trace_format.Op``.
        op_class: ``(256,)`` u1, ``trace_format.OpClass`` by operation.
        group: ``(channels,)`` u4, 2^32-1 for none.
        fate: ``(channels,)`` u1, ``schema.Fate`` of the channel's messages.
        out_group: ``(n,)`` u4, output; 2^32-1 unless the fate is MATCHABLE (0).
        out_fate: ``(n,)`` u1, output; by class: SEND (1) and RECV (2): the channel's;
            ONE_SIDED (3): ONE_SIDED (1); OTHER (0): NOT_A_MESSAGE (2). Sends and receives of a
            channel that is not known: PEER_UNKNOWN (3).
    """
    none = np.uint32(0xFFFFFFFF)
    for i in range(channel.size):
        c = channel[i]
        what = op_class[op[i]]
        f, g = np.uint8(3), none
        if c < fate.size:
            f, g = fate[c], group[c]
        if what == 0:
            f = np.uint8(2)
        elif what == 3:
            f = np.uint8(1)
        out_fate[i] = f
        out_group[i] = g if f == 0 else none


@kernel(types.void(U4R, U1R, U1R, U1W, U1W))
def transport_kernel(channel, layer, lossy, out_layer, out_lossy):
    """Gather layer, and whether the transport may lose messages; 0 where that is not known.

    Args:
        channel: See the module's text.
        layer: ``(channels,)`` u1, ``trace_format.Layer``.
        lossy: ``(channels,)`` u1, 0 or 1.
        out_layer: ``(n,)`` u1, output.
        out_lossy: ``(n,)`` u1, output.
    """
    for i in range(channel.size):
        c = channel[i]
        out_layer[i] = layer[c] if c < layer.size else 0
        out_lossy[i] = lossy[c] if c < lossy.size else 0
