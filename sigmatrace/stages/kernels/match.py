# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="assignment"
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

_ROWS = (U4R, U1R, U1R, U4R, U8R, U4R, U1R, U1R, U1R, U4R)


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


@kernel()
def _is_before(number, last):
    """Return 1 if a number (below 2^32) comes before another one, modulo 2^32, else 0.

    Without a branch, like all that depends on the direction of a row: that is a coin's toss to
    the processor, and a wrong guess costs more than the row's whole work.
    """
    return np.uint64(np.int32(number - last) < 0)


@kernel(int64(U4R, U1R, U1R, U4R, U4R, int64, U4W, U4W, U1W))
def inversion_kernel(channel, op, fate, ordinal, aux, low, last_ordinal, last_aux, state):
    """Find the channels whose arrivals did not complete in posting order.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1, ``trace_format.Op``; only RECV (2) counts.
        fate: ``(n,)`` u1, ``schema.Fate``; only MATCHABLE (0) is looked at.
        ordinal: ``(n,)`` u4, modulo 2^32, in order of completion.
        aux: ``(n,)`` u4, posting order, modulo 2^32.
        low: Channel that rows 0 and 1 of the three arrays below stand for.
        last_ordinal: ``(2 * channels,)`` u4, scratch.
        last_aux: ``(2 * channels,)`` u4, scratch.
        state: ``(2 * channels,)`` u1, zeros; output, of arrivals in row
            ``2 * (channel - low) + 1``: 0 none, 1 in order, 2 with an inversion.

    Returns:
        How many channels have an inversion.

    Rows in any order, but rows whose ordinals do not ascend count as inverted, too: they are
    to be sorted. Two values are compared by their distance modulo 2^32, read as signed: right
    as long as neighbouring rows lie less than 2^31 apart. Complexity O(n).
    Source: docs/format.md 2.2, "Ordinals".
    """
    inverted = 0
    for i in range(channel.size):
        if fate[i] != 0:
            continue
        arrival = np.uint64(op[i] == 2)
        c = (np.uint64(channel[i]) - np.uint64(low)) * np.uint64(2) + arrival
        ahead = _is_before(np.int64(ordinal[i]), np.int64(last_ordinal[c]))
        ahead |= _is_before(np.int64(aux[i]), np.int64(last_aux[c]))
        if state[c] == 0:
            state[c] = 1
        elif arrival & ahead & np.uint64(state[c]):
            state[c] = 2
            inverted += 1
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


@kernel()
def _count(nested, layer, op, fate, counts):
    """Count a row; layers and operations that have no place count as 0 (unknown)."""
    where = layer if layer < counts.shape[1] else np.uint8(0)
    what = op if op < counts.shape[2] else np.uint8(0)
    counts[nested, where, what, fate & np.uint8(15)] += 1


@kernel()
def _close(span, cell, run, out_key, out_begin, out_stop):
    """Write the open run of a cell, and take it into the cell's largest ordinal."""
    out_key[run] = span[cell, 2]
    out_begin[run] = span[cell, 0]
    out_stop[run] = span[cell, 1]
    span[cell, 4] = max(span[cell, 4], span[cell, 1] - 1)


@kernel(types.Tuple((int64, int64))(*_ROWS, int64, I8W2, U8W2, I8W4, I8W, I8W, I8W))
def runs_kernel(
    channel,
    op,
    flags,
    aux,
    size_bytes,
    group,
    fate,
    layer,
    lossy,
    ordinal,
    low,
    span,
    sums,
    counts,
    out_key,
    out_begin,
    out_stop,
):
    """Collect which messages were seen, as runs of ordinals, and sum them by channel.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1, ``trace_format.Op``.
        flags: ``(n,)`` u1, ``trace_format.OpFlag``.
        aux: ``(n,)`` u4, of arrivals the posting order.
        size_bytes: ``(n,)`` u8.
        group: ``(n,)`` u4, stream of messages that both ends share.
        fate: ``(n,)`` u1, ``schema.Fate``; rows that are not MATCHABLE (0) are counted alone.
        layer: ``(n,)`` u1, ``trace_format.Layer``.
        lossy: ``(n,)`` u1, 0 or 1.
        ordinal: ``(n,)`` u4, place in the stream.
        low: Channel that the first two rows of ``span`` and ``sums`` stand for.
        span: ``(2 * channels, 8)`` i8, filled with -1, scratch and output, row
            ``2 * (channel - low) + direction`` (0 sent, 1 received): open run's begin, stop and
            key, largest of 2^32 - 1 - ordinal (so: the smallest ordinal), largest ordinal, of
            arrivals the same two of ``aux``, and the last ``aux``.
        sums: ``(2 * channels, 5)`` u8, zeros, output: messages, bytes in two limbs (sum of the
            low 32 bits, sum of the high 32 bits: exact for 2^32 rows of any size),
            uncertain ones (ORDER_UNCERTAIN (2), FAILED (8), or ``lossy``), and those of unknown
            size (SIZE_UNKNOWN (1)).
        counts: ``(2, layers, operations, 16)`` i8, output, added to: rows by nesting (NESTED
            (32)), layer, operation and fate; those without a place there count as 0 (unknown).
        out_key: ``(n,)`` i8, output: ``(group * 2 + direction) * 2 + nested`` of each closed
            run.
        out_begin: ``(n,)`` i8, output: first ordinal.
        out_stop: ``(n,)`` i8, output: one past the last ordinal.

    Returns:
        The number of runs written; they may touch or overlap, in any order. And how many
        arrivals did not complete in posting order, as ``inversion_kernel`` has it.

    Rows in any order; ascending ordinals within a channel make few runs. Complexity O(n).
    """
    runs = inverted = 0
    top = np.int64(0xFFFFFFFF)
    for i in range(channel.size):
        nested = np.uint8(flags[i] >> np.uint8(5)) & np.uint8(1)
        _count(nested, layer[i], op[i], fate[i], counts)
        if fate[i] != 0:
            continue
        direction = np.uint64(op[i] == 2)
        cell = (np.uint64(channel[i]) - np.uint64(low)) * np.uint64(2) + direction
        place, posted = np.int64(ordinal[i]), np.int64(aux[i])
        key = (np.int64(group[i]) * 2 + np.int64(direction)) * 2 + np.int64(nested)
        stop, last = span[cell, 1], span[cell, 7]
        if stop != place or span[cell, 2] != key:
            if stop >= 0:
                inverted += np.int64(direction & _is_before(place, stop - 1))
                _close(span, cell, runs, out_key, out_begin, out_stop)
                runs += 1
            else:
                span[cell, 5] = top - posted
                last = posted
            span[cell, 0] = place
            span[cell, 2] = key
            span[cell, 3] = max(span[cell, 3], top - place)
        if direction & (_is_before(posted, last) | np.uint64(posted < last)):
            inverted += np.int64(_is_before(posted, last))
            span[cell, 5] = max(span[cell, 5], top - posted)
            span[cell, 6] = max(span[cell, 6], last)
        span[cell, 1] = place + 1
        span[cell, 7] = posted
        sums[cell, 0] += np.uint64(1)
        sums[cell, 1] += size_bytes[i] & np.uint64(0xFFFFFFFF)
        if size_bytes[i] >> np.uint64(32):
            sums[cell, 2] += size_bytes[i] >> np.uint64(32)
        doubts = (flags[i] & np.uint8(11)) | (lossy[i] << np.uint8(1))
        if doubts:
            sums[cell, 3] += np.uint64((doubts & 10) != 0)
            sums[cell, 4] += np.uint64(doubts & 1)
    for row in range(span.shape[0]):
        if span[row, 1] >= 0:
            _close(span, row, runs, out_key, out_begin, out_stop)
            span[row, 6] = max(span[row, 6], span[row, 7])
            runs += 1
    return runs, inverted


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
