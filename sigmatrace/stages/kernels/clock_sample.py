# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="assignment"
"""Kernel of the clock stage: which messages are looked at."""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint32, uint64, void

from sigmatrace.kernel import I8W, U1R, U1W, U4R, U4W, U8R, U8W, kernel

_UNSURE = np.uint8(2 | 8)
"""``trace_format.OpFlag``: ORDER_UNCERTAIN, FAILED."""


@kernel(
    types.Tuple((int64, int64))(
        *(U4R, U1R, U1R, U4R, U4R, uint32, U1R, U4R, U8R, U8R), *(U4W, U4W, U1W, I8W, U8W)
    )
)
def sample_kernel(
    channel,
    op,
    flags,
    ordinal,
    aux,
    low,
    op_class,
    group,
    limit,
    quota,
    last_ordinal,
    last_aux,
    state,
    out_row,
    out_flow,
):
    """Choose messages by a hash of their flow, so that both ends choose the same.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1, ``trace_format.Op``.
        flags: ``(n,)`` u1, ``trace_format.OpFlag``.
        ordinal: ``(n,)`` u4, place in the stream, modulo 2^32, arrivals in posting order.
        aux: ``(n,)`` u4, of arrivals the posting order.
        low: Smallest channel, that the first rows of all that follow stand for.
        op_class: ``(256,)`` u1, ``trace_format.OpClass`` by operation.
        group: ``(channels,)`` u4, stream that both ends share.
        limit: ``(channels,)`` u8: of all messages of a stream about ``limit / 2^32`` are chosen.
        quota: ``(channels,)`` u8: beside these, of the k-th ones about ``quota / (2^32 * k)``; 0:
            the channel is not looked at.
        last_ordinal: ``(channels,)`` u4, scratch.
        last_aux: ``(channels,)`` u4, scratch.
        state: ``(channels,)`` u1, zeros, scratch.
        out_row: ``(n,)`` i8, output: chosen rows, ascending.
        out_flow: ``(n,)`` u8, output: their flows, as ``match.flow_kernel`` has them.

    Returns:
        How many were chosen, and how many arrivals did not complete in posting order, as
        ``match.inversion_kernel`` has it: their ordinals are to be restored first.

    Any order. Complexity O(n).
    """
    count = inverted = 0
    for i in range(channel.size):
        own = np.uint64(channel[i] - low)
        if quota[own] == 0:
            continue
        kind, place, posted = op_class[op[i]], ordinal[i], aux[i]
        if np.uint8(np.uint8(kind - np.uint8(1)) > 1) | np.uint8(flags[i] & _UNSURE):
            continue
        # Without a branch: which end it is is a coin's toss.
        back = np.uint8(np.int32(place - last_ordinal[own]) < 0)
        back |= np.uint8(np.int32(posted - last_aux[own]) < 0)
        inverted += np.int64(back & np.uint8(kind == 2) & state[own])
        state[own] = 1
        last_ordinal[own] = place
        last_aux[own] = posted
        flow = (np.uint64(group[own]) + np.uint64(1)) << np.uint64(32) | np.uint64(place)
        mixed = flow * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed >>= np.uint64(32)
        if mixed < limit[own] or mixed * (np.uint64(place) + np.uint64(1)) < quota[own]:
            out_row[count] = i
            out_flow[count] = flow
            count += 1
    return count, inverted


@kernel(void(U4R, uint64, uint64, U1W))
def candidates_kernel(ordinal, limit, quota, out_chosen):
    """Choose places in streams, the same ones of all streams.

    Args:
        ordinal: ``(n,)`` u4, place in the stream, modulo 2^32.
        limit: Of all places about ``limit / 2^32`` are chosen.
        quota: Beside these, of the k-th ones about ``quota / (2^32 * k)``.
        out_chosen: ``(n,)`` u1, output: 1 where a hash of the place says so, else 0.

    Any order. Complexity O(n), several rows at a time.
    """
    for i in range(ordinal.size):
        mixed = np.uint32(ordinal[i] * np.uint32(0x9E3779B1))
        mixed = np.uint32((mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x85EBCA77))
        wide = np.uint64(mixed ^ (mixed >> np.uint32(13)))
        near = wide * (np.uint64(ordinal[i]) + np.uint64(1)) < quota
        out_chosen[i] = np.uint8(near) | np.uint8(wide < limit)
