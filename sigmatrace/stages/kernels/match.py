# mypy: allow-untyped-defs
"""Kernels of the match stage: posting order, flows, and which messages were seen."""

from __future__ import annotations

import numpy as np
from numba import int64, void

from sigmatrace.stages.kernels.jit import I8R, I8W, I8W2, U1R, U1W, U4R, U4W, U8R, U8W, U8W2, kernel


@kernel(int64(U4R, U1R, U4R, U4R, U4W, U4W, U1W))
def inversion_kernel(channel, op, ordinal, aux, last_ordinal, last_aux, state):
    """Find the channels whose arrivals did not complete in posting order.

    Args:
        channel: ``(n,)`` u4, less the smallest one: indexes the three arrays below.
        op: ``(n,)`` u1, ``schema.Op``; only RECV (2) is looked at.
        ordinal: ``(n,)`` u4, modulo 2^32, in order of completion.
        aux: ``(n,)`` u4, posting order, modulo 2^32.
        last_ordinal: ``(channels,)`` u4, scratch.
        last_aux: ``(channels,)`` u4, scratch.
        state: ``(channels,)`` u1, zeros; output: 0 no arrival, 1 in order, 2 with an inversion.

    Returns:
        How many channels have an inversion.

    Rows in any order, but rows whose ordinals do not ascend count as inverted, too: they are
    to be sorted. Two values are compared by their distance modulo 2^32, read as signed: right
    as long as neighbouring rows lie less than 2^31 apart. Complexity O(n).
    Source: docs/format.md 2.2, "Ordinals".
    """
    inverted = 0
    for i in range(channel.size):
        if op[i] != 2:
            continue
        c = channel[i]
        if state[c] == 1:
            forward = np.int32(ordinal[i] - last_ordinal[c]) >= 0
            if not forward or np.int32(aux[i] - last_aux[c]) < 0:
                state[c] = 2
                inverted += 1
        elif state[c] == 0:
            state[c] = 1
        last_ordinal[c] = ordinal[i]
        last_aux[c] = aux[i]
    return inverted


@kernel(void(U1R, U4R, U1R, U4R, U8W))
def flow_kernel(op, group, fate, ordinal, out_flow):
    """Give both ends of a message the same number.

    Args:
        op: ``(n,)`` u1, ``schema.Op``.
        group: ``(n,)`` u4, stream of messages that both ends share.
        fate: ``(n,)`` u1, ``schema.Fate``.
        ordinal: ``(n,)`` u4, place in the stream, modulo 2^32, arrivals in posting order.
        out_flow: ``(n,)`` u8, output: ``(group + 1) << 32 | ordinal``; 0, the sentinel "none",
            unless a SEND (1) or RECV (2) is MATCHABLE (0).

    Any order. Complexity O(n).
    """
    for i in range(op.size):
        if fate[i] == 0 and (op[i] == 1 or op[i] == 2):
            high = (np.uint64(group[i]) + np.uint64(1)) << np.uint64(32)
            out_flow[i] = high | np.uint64(ordinal[i])
        else:
            out_flow[i] = 0


@kernel(int64(U4R, U1R, U1R, U4R, U8R, U8R, I8W2, U8W2, I8W, I8W, I8W))
def runs_kernel(
    channel, op, flags, aux, flow, size_bytes, span, sums, out_key, out_begin, out_stop
):
    """Collect which messages were seen, as runs of ordinals, and sum them by channel.

    Args:
        channel: ``(n,)`` u4, less the smallest one: indexes ``span`` and ``sums``.
        op: ``(n,)`` u1, ``schema.Op``.
        flags: ``(n,)`` u1, ``schema.OpFlag``.
        aux: ``(n,)`` u4, of arrivals the posting order.
        flow: ``(n,)`` u8, 0 for rows that are left out.
        size_bytes: ``(n,)`` u8.
        span: ``(2 * channels, 7)`` i8, filled with -1, scratch and output, row
            ``2 * channel + direction``: open run's begin and stop, ``group * 2 + direction``
            (0 sent, 1 received), and of arrivals the smallest and largest ordinal, the
            smallest and largest ``aux``.
        sums: ``(2 * channels, 4)`` u8, zeros, output: messages, bytes in two limbs (sum of the
            low 32 bits, sum of the high 32 bits: exact for 2^32 rows of any size), and
            uncertain ones (ORDER_UNCERTAIN (2) or FAILED (8)).
        out_key: ``(n,)`` i8, output: ``group * 2 + direction`` of each closed run.
        out_begin: ``(n,)`` i8, output: first ordinal.
        out_stop: ``(n,)`` i8, output: one past the last ordinal.

    Returns:
        The number of runs written; they may touch or overlap, in any order.

    Rows in any order; ascending ordinals within a channel make few runs. Complexity O(n).
    """
    runs = 0
    low = np.uint64(0xFFFFFFFF)
    for i in range(channel.size):
        if flow[i] == 0:
            continue
        direction = np.int64(op[i] == 2)
        cell = np.int64(channel[i]) * 2 + direction
        ordinal = np.int64(flow[i] & low)
        if span[cell, 1] != ordinal:
            if span[cell, 1] >= 0:
                out_key[runs] = span[cell, 2]
                out_begin[runs] = span[cell, 0]
                out_stop[runs] = span[cell, 1]
                runs += 1
            span[cell, 0] = ordinal
            span[cell, 2] = (np.int64(flow[i] >> np.uint64(32)) - 1) * 2 + direction
        span[cell, 1] = ordinal + 1
        if direction == 1:
            posted = np.int64(aux[i])
            if span[cell, 3] < 0:
                span[cell, 3] = ordinal
                span[cell, 5] = posted
            span[cell, 3] = min(span[cell, 3], ordinal)
            span[cell, 4] = max(span[cell, 4], ordinal)
            span[cell, 5] = min(span[cell, 5], posted)
            span[cell, 6] = max(span[cell, 6], posted)
        sums[cell, 0] += np.uint64(1)
        sums[cell, 1] += size_bytes[i] & low
        sums[cell, 2] += size_bytes[i] >> np.uint64(32)
        if flags[i] & 10:
            sums[cell, 3] += np.uint64(1)
    for row in range(span.shape[0]):
        if span[row, 1] >= 0:
            out_key[runs] = span[row, 2]
            out_begin[runs] = span[row, 0]
            out_stop[runs] = span[row, 1]
            runs += 1
    return runs


@kernel(int64(I8R, I8R, I8R, I8W, I8W, I8W))
def union_kernel(key, begin, stop, out_key, out_begin, out_stop):
    """Merge runs that touch or overlap.

    Args:
        key: ``(n,)`` i8; rows are sorted by (key, begin).
        begin: ``(n,)`` i8.
        stop: ``(n,)`` i8, exclusive, above ``begin``.
        out_key: ``(n,)`` i8, output.
        out_begin: ``(n,)`` i8, output.
        out_stop: ``(n,)`` i8, output.

    Returns:
        The number of runs written: disjoint, with gaps between them, in the same order.

    Complexity O(n).
    """
    runs = 0
    for i in range(key.size):
        if runs > 0 and out_key[runs - 1] == key[i] and begin[i] <= out_stop[runs - 1]:
            out_stop[runs - 1] = max(out_stop[runs - 1], stop[i])
        else:
            out_key[runs] = key[i]
            out_begin[runs] = begin[i]
            out_stop[runs] = stop[i]
            runs += 1
    return runs


@kernel(void(U1R, U1R, I8W2))
def count_kernel(op, fate, out_count):
    """Count rows by operation and fate.

    Args:
        op: ``(n,)`` u1, ``schema.Op``; values from 10 on count as 0 (unknown).
        fate: ``(n,)`` u1, ``schema.Fate``, below 16.
        out_count: ``(10, 16)`` i8, output, added to.

    Any order. Complexity O(n).
    """
    for i in range(op.size):
        what = op[i] if op[i] < 10 else 0
        out_count[what, fate[i] & 15] += 1
