# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="assignment"
"""Kernels of the match stage: posting order, flows, and which messages were seen."""

from __future__ import annotations

import numpy as np
from numba import int64, types, uint32, void

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

_ROWS = (U4R, U1R, U1R, U4R, U8R, U4R)
_WAYS = (U1R, U4R, U1R, U1R, U1R)
_STOP = (1 << 40) - 1


@kernel()
def _fate_of(op, fate, op_class):
    """Return the fate of an operation on a channel of this fate, as ``fate_kernel`` does."""
    what = op_class[op]
    return np.uint8(2) if what == 0 else np.uint8(1) if what == 3 else fate


@kernel()
def _is_before(number, last):
    """Return 1 if a number (below 2^32) comes before another one, modulo 2^32, else 0.

    Without a branch, like all that depends on the direction of a row: that is a coin's toss to
    the processor, and a wrong guess costs more than the row's whole work.
    """
    return np.uint64(np.int32(number - last) < 0)


@kernel(int64(U4R, U1R, U4R, U4R, uint32, U1R, U4W, U4W, U1W))
def inversion_kernel(channel, op, ordinal, aux, low, fate, last_ordinal, last_aux, state):
    """Find the channels whose arrivals did not complete in posting order.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1, ``trace_format.Op``; only RECV (2) counts.
        ordinal: ``(n,)`` u4, modulo 2^32, in order of completion.
        aux: ``(n,)`` u4, posting order, modulo 2^32.
        low: Smallest channel, that rows 0 and 1 of the last three arrays stand for.
        fate: ``(channels,)`` u1, ``schema.Fate`` by channel from ``low``; only MATCHABLE (0) is
            looked at.
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
        own = channel[i] - low
        if fate[own] != 0:
            continue
        arrival = np.uint64(op[i] == 2)
        c = np.uint64(own) * np.uint64(2) + arrival
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


@kernel(void(U4R, U1R, U4R, uint32, U1R, U4R, U1R, U8W))
def flow_kernel(channel, op, ordinal, low, op_class, group, fate, out_flow):
    """Give both ends of a message the same number.

    Args:
        channel: ``(n,)`` u4.
        op: ``(n,)`` u1, ``trace_format.Op``.
        ordinal: ``(n,)`` u4, place in the stream, modulo 2^32, arrivals in posting order.
        low: Smallest channel.
        op_class: ``(256,)`` u1, ``trace_format.OpClass`` by operation.
        group: ``(channels,)`` u4, by channel from ``low``: stream that both ends share.
        fate: ``(channels,)`` u1, likewise, ``schema.Fate``.
        out_flow: ``(n,)`` u8, output: ``(group + 1) << 32 | ordinal``; 0, the sentinel "none",
            unless the operation is MATCHABLE (0).

    Any order. Complexity O(n).
    """
    for i in range(channel.size):
        own = channel[i] - low
        high = (np.uint64(group[own]) + np.uint64(1)) << np.uint64(32)
        is_message = _fate_of(op[i], fate[own], op_class) == 0
        out_flow[i] = high | np.uint64(ordinal[i]) if is_message else np.uint64(0)


@kernel()
def _count(nested, layer, op, fate, number, counts):
    """Count rows; layers and operations that have no place count as 0 (unknown)."""
    where = layer if layer < counts.shape[1] else np.uint8(0)
    what = op if op < counts.shape[2] else np.uint8(0)
    counts[nested, where, what, fate & np.uint8(15)] += number


_BLOCK = 1024
"""Rows whose cells are found together, in a loop that a processor does several rows at a time."""


@kernel()
def _cells(channel, op, flags, aux, size, ordinal, low, out_cell, out_next, out_posted):
    """Find each row's cell, what the cell must expect if the row just continues, and its posting.

    What it must expect is the ordinal, with NESTED in bit 40, and no number at all for rows of
    which more is to be said: of another operation, in doubt, or of 2^32 bytes and more.
    """
    for i in range(channel.size):
        is_arrival = op[i] == 2
        out_cell[i] = (channel[i] - low) * np.uint32(2) + np.uint32(is_arrival)
        out_posted[i] = aux[i] if is_arrival else np.uint32(0)
        more = np.uint64((op[i] - np.uint8(1)) & np.uint8(0xFE)) | (size[i] >> np.uint64(32))
        marks = np.uint64(flags[i] & np.uint8(43)) << np.uint64(35)
        out_next[i] = np.uint64(ordinal[i]) | marks | np.uint64(more != 0) << np.uint64(50)


@kernel()
def _is_message(what, nested, own, op_class, fate, layer, counts):
    """Return whether a row is of a run, which counts it; count it here if it is not."""
    if fate[own] == 0 and (what == 1 or what == 2):
        return True
    result = _fate_of(what, fate[own], op_class)
    _count(nested, layer[own], what, result, 1, counts)
    if result == 0:
        _count(nested, layer[own], np.uint8(1), result, -1, counts)  # as which its run counts
    return result == 0


@kernel()
def _look_back(cell, posted, last, span):
    """Take an arrival's posting into the ranges of its cell; return 1 if it is out of order."""
    before = np.int64(_is_before(posted, last))
    if cell & np.uint64(1) and (before or posted < last):
        span[cell, 5] = max(span[cell, 5], np.int64(0xFFFFFFFF) - posted)
        span[cell, 6] = max(span[cell, 6], last)
        return before
    return 0


@kernel()
def _continue(k, cell_of, next_of, posted_of, size, span, sums):
    """Take in rows that just continue the runs of their cells; return the first that does not."""
    while k < size.size:
        at = np.uint64(k)
        cell, posted, row = np.uint64(cell_of[at]), np.int64(posted_of[at]), np.int64(next_of[at])
        ahead = np.uint64(posted - span[cell, 7])
        if (span[cell, 1] ^ row) | np.int64(ahead >> np.uint64(31)):
            break
        span[cell, 1] = row + 1
        span[cell, 7] = posted
        sums[cell, 1] += size[at]
        k += 1
    return k


@kernel()
def _add(sums, cell, size, doubts):
    """Add a message's bytes to those of its cell, and say what is not sure of it."""
    sums[cell, 1] += size & np.uint64(0xFFFFFFFF)
    if size >> np.uint64(32):
        sums[cell, 2] += size >> np.uint64(32)
    if doubts:
        sums[cell, 3] += np.uint64((doubts & 10) != 0)
        sums[cell, 4] += np.uint64(doubts & 1)


@kernel()
def _close(span, cell, run, out_key, out_begin, out_stop, layer, sums, counts):
    """Write the open run of a cell, count it, and take it into the cell's largest ordinal."""
    key, stop = span[cell, 2], span[cell, 1] & _STOP
    out_key[run] = key
    out_begin[run] = span[cell, 0]
    out_stop[run] = stop
    span[cell, 4] = max(span[cell, 4], stop - 1)
    number = stop - span[cell, 0]
    sums[cell, 0] += np.uint64(number)
    op = np.uint8(cell & np.uint64(1)) + np.uint8(1)
    _count(key & 1, layer[cell >> np.uint64(1)], op, np.uint8(0), number, counts)


@kernel(types.Tuple((int64, int64))(*_ROWS, uint32, *_WAYS, I8W2, U8W2, I8W4, I8W, I8W, I8W))
def runs_kernel(
    channel,
    op,
    flags,
    aux,
    size_bytes,
    ordinal,
    low,
    op_class,
    group,
    fate,
    layer,
    lossy,
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
        ordinal: ``(n,)`` u4, place in the stream.
        low: Smallest channel, that the first two rows of ``span`` and ``sums`` stand for.
        op_class: ``(256,)`` u1, ``trace_format.OpClass`` by operation.
        group: ``(channels,)`` u4, by channel from ``low``, like all that follow: stream of
            messages that both ends share.
        fate: ``(channels,)`` u1, ``schema.Fate``; operations that are not MATCHABLE (0) are
            counted alone.
        layer: ``(channels,)`` u1, ``trace_format.Layer``.
        lossy: ``(channels,)`` u1, 0 or 1.
        span: ``(2 * channels, 8)`` i8, filled with -1, scratch and output, row
            ``2 * (channel - low) + direction`` (0 sent, 1 received): open run's begin, stop
            (with NESTED in bit 40) and key, largest of 2^32 - 1 - ordinal (so: the smallest
            ordinal), largest ordinal, of arrivals the same two of ``aux``, and the last ``aux``.
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
    cell_of, posted_of = np.empty(_BLOCK, np.uint32), np.empty(_BLOCK, np.uint32)
    next_of = np.empty(_BLOCK, np.uint64)
    for begin in range(0, channel.size, _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        size = size_bytes[rows]
        columns = channel[rows], op[rows], flags[rows], aux[rows], size, ordinal[rows]
        _cells(*columns, low, cell_of, next_of, posted_of)
        k = 0
        while True:
            k = _continue(k, cell_of, next_of, posted_of, size, span, sums)
            if k == size.size:
                break
            cell, posted = np.uint64(cell_of[k]), np.int64(posted_of[k])
            i, k = begin + k, k + 1
            own, what = channel[i] - low, op[i]
            nested = np.uint8(flags[i] >> np.uint8(5)) & np.uint8(1)
            if not _is_message(what, nested, own, op_class, fate, layer, counts):
                continue
            direction, place = cell & np.uint64(1), np.int64(ordinal[i])
            expected, last = span[cell, 1], span[cell, 7]
            if expected != place | np.int64(nested) << 40:
                if expected >= 0:
                    inverted += np.int64(direction & _is_before(place, (expected & _STOP) - 1))
                    _close(span, cell, runs, out_key, out_begin, out_stop, layer, sums, counts)
                    runs += 1
                else:
                    span[cell, 5] = top - posted
                    last = posted
                span[cell, 0] = place
                key = (np.int64(group[own]) * 2 + np.int64(direction)) * 2 + np.int64(nested)
                span[cell, 2] = key
                span[cell, 3] = max(span[cell, 3], top - place)
            inverted += _look_back(cell, posted, last, span)
            span[cell, 1] = (place | np.int64(nested) << 40) + 1
            span[cell, 7] = posted
            _add(sums, cell, size_bytes[i], flags[i] & np.uint8(11))
    for row in range(span.shape[0]):
        cell = np.uint64(row)
        if span[cell, 1] >= 0:
            _close(span, cell, runs, out_key, out_begin, out_stop, layer, sums, counts)
            span[cell, 6] = max(span[cell, 6], span[cell, 7])
            runs += 1
        if lossy[cell >> np.uint64(1)]:
            sums[cell, 3] = sums[cell, 0]
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
