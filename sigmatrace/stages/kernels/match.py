# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels of the match stage: posting order, flows, and which messages were seen."""

from __future__ import annotations

import numpy as np
from numba import int64, types, void

from sigmatrace.kernel import (
    I8R,
    I8W,
    I8W2,
    I8W4,
    U1R,
    U1W,
    U4R,
    U4W,
    U8R,
    U8W,
    U8W2,
    kernel,
)


@kernel(types.Tuple((int64, int64))(U4R, U1R))
def span_kernel(channel, fate):
    """Return the smallest channel of matchable rows, and how many numbers they span.

    Args:
        channel: ``(n,)`` u4.
        fate: ``(n,)`` u1, ``schema.Fate``; other rows may name channels that do not exist.

    Returns:
        The smallest number and the span; 0 and 0 when no row is MATCHABLE (0).

    Any order. Complexity O(n).
    """
    low, high = np.int64(0xFFFFFFFF), np.int64(-1)
    for i in range(channel.size):
        c = np.int64(channel[i])
        low = min(low, c if fate[i] == 0 else np.int64(0xFFFFFFFF))
        high = max(high, c if fate[i] == 0 else np.int64(-1))
    if high < 0:
        return np.int64(0), np.int64(0)
    return low, high - low + 1


@kernel(int64(U4R, U1R, U1R, U4R, U4R, int64, U4W, U4W, U1W))
def inversion_kernel(channel, op, fate, ordinal, aux, low, last_ordinal, last_aux, state):
    """Find the channels whose arrivals did not complete in posting order.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1, ``trace_format.Op``; only RECV (2) is looked at.
        fate: ``(n,)`` u1, ``schema.Fate``; only MATCHABLE (0) is looked at.
        ordinal: ``(n,)`` u4, modulo 2^32, in order of completion.
        aux: ``(n,)`` u4, posting order, modulo 2^32.
        low: Channel that row 0 of the three arrays below stands for.
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
        if op[i] != 2 or fate[i] != 0:
            continue
        c = np.int64(channel[i]) - low
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


@kernel(void(U4R, U1R, U4R, U8W))
def flow_kernel(group, fate, ordinal, out_flow):
    """Give both ends of a message the same number.

    Args:
        group: ``(n,)`` u4, stream of messages that both ends share.
        fate: ``(n,)`` u1, ``schema.Fate``.
        ordinal: ``(n,)`` u4, place in the stream, modulo 2^32, arrivals in posting order.
        out_flow: ``(n,)`` u8, output: ``(group + 1) << 32 | ordinal``; 0, the sentinel "none",
            unless the row is MATCHABLE (0).

    Any order. Complexity O(n).
    """
    for i in range(group.size):
        if fate[i] == 0:
            high = (np.uint64(group[i]) + np.uint64(1)) << np.uint64(32)
            out_flow[i] = high | np.uint64(ordinal[i])
        else:
            out_flow[i] = 0


@kernel(int64(U4R, U1R, U1R, U4R, U8R, U8R, int64, I8W2, U8W2, I8W, I8W, I8W))
def runs_kernel(
    channel, op, flags, aux, flow, size_bytes, low, span, sums, out_key, out_begin, out_stop
):
    """Collect which messages were seen, as runs of ordinals, and sum them by channel.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1, ``trace_format.Op``.
        flags: ``(n,)`` u1, ``trace_format.OpFlag``.
        aux: ``(n,)`` u4, of arrivals the posting order.
        flow: ``(n,)`` u8, 0 for rows that are left out.
        size_bytes: ``(n,)`` u8.
        low: Channel that the first two rows of ``span`` and ``sums`` stand for.
        span: ``(2 * channels, 7)`` i8, filled with -1, scratch and output, row
            ``2 * (channel - low) + direction`` (0 sent, 1 received): open run's begin, stop and
            key, largest of 2^32 - 1 - ordinal (so: the smallest ordinal), largest ordinal, and
            the same two of ``aux``.
        sums: ``(2 * channels, 5)`` u8, zeros, output: messages, bytes in two limbs (sum of the
            low 32 bits, sum of the high 32 bits: exact for 2^32 rows of any size),
            uncertain ones (ORDER_UNCERTAIN (2) or FAILED (8)), and those of unknown size
            (SIZE_UNKNOWN (1)).
        out_key: ``(n,)`` i8, output: ``(group * 2 + direction) * 2 + nested`` of each closed
            run; nested is 1 for rows with NESTED (32).
        out_begin: ``(n,)`` i8, output: first ordinal.
        out_stop: ``(n,)`` i8, output: one past the last ordinal.

    Returns:
        The number of runs written; they may touch or overlap, in any order.

    Rows in any order; ascending ordinals within a channel make few runs. Complexity O(n).
    """
    runs = 0
    limb, top = np.uint64(0xFFFFFFFF), np.int64(0xFFFFFFFF)
    for i in range(channel.size):
        if flow[i] == 0:
            continue
        direction = np.int64(op[i] == 2)
        cell = (np.int64(channel[i]) - low) * 2 + direction
        ordinal, posted = np.int64(flow[i] & limb), np.int64(aux[i])
        group = np.int64(flow[i] >> np.uint64(32)) - 1
        key = (group * 2 + direction) * 2 + np.int64((flags[i] & 32) != 0)
        if span[cell, 1] != ordinal or span[cell, 2] != key:
            if span[cell, 1] >= 0:
                out_key[runs] = span[cell, 2]
                out_begin[runs] = span[cell, 0]
                out_stop[runs] = span[cell, 1]
                runs += 1
            span[cell, 0] = ordinal
            span[cell, 2] = key
            span[cell, 3] = max(span[cell, 3], top - ordinal)
        span[cell, 1] = ordinal + 1
        span[cell, 4] = max(span[cell, 4], ordinal)
        span[cell, 5] = max(span[cell, 5], top - posted)
        span[cell, 6] = max(span[cell, 6], posted)
        sums[cell, 0] += np.uint64(1)
        sums[cell, 1] += size_bytes[i] & limb
        sums[cell, 2] += size_bytes[i] >> np.uint64(32)
        sums[cell, 3] += np.uint64((flags[i] & 10) != 0)
        sums[cell, 4] += np.uint64(flags[i] & 1)
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


@kernel(void(U1R, U1R, U1R, U1R, I8W4))
def count_kernel(flags, layer, op, fate, out_count):
    """Count rows by nesting, layer, operation and fate.

    Args:
        flags: ``(n,)`` u1, ``trace_format.OpFlag``.
        layer: ``(n,)`` u1, ``trace_format.Layer``; values that have no plane count as 0 (unknown).
        op: ``(n,)`` u1, ``trace_format.Op``; values that have no row count as 0 (unknown).
        fate: ``(n,)`` u1, ``schema.Fate``, below 16.
        out_count: ``(2, layers, operations, 16)`` i8, output, added to; first the program's own,
            then those with NESTED (32).

    Any order. Complexity O(n).
    """
    for i in range(op.size):
        nested = 1 if flags[i] & 32 else 0
        where = layer[i] if layer[i] < out_count.shape[1] else 0
        what = op[i] if op[i] < out_count.shape[2] else 0
        out_count[nested, where, what, fate[i] & 15] += 1
