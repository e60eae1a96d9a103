"""Encodes the slices and instants of one track, and counters, as Perfetto packets.

Field numbers and wire types are those of Perfetto's ``trace_packet.proto``, ``track_event.proto``
and ``debug_annotation.proto``. A row has a name, a flow and any number of arguments; where those
make a packet longer than a one-byte length can say, it gets two-byte lengths afterwards.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.export.kernels.heap import pop, push
from sigmatrace.export.kernels.wire import (
    PADDED_BYTES,
    load,
    lowest,
    put_padded,
    put_varint,
    store,
)
from sigmatrace.kernel import F8R, I4W, I8R, I8R2, I8W, U1W, U2R, U4R, U8R, kernel

ROW_BYTES, ARGUMENT_BYTES = 96, 16
"""Most bytes that one row can take, begin and end of a slice, and each of its arguments."""

NUMBER, TEXT, FLAG = 0, 1, 2
"""How an argument is written: its value, the interning id of the text that its value is the key
of, or nothing (all is in the argument's head)."""

_SINK_BIT = 15
SINK = 1 << _SINK_BIT
"""Bit of a row's ``shown``: its flow ends here. Bit k: argument k is shown."""

(
    BYTES,
    SLICES,
    INSTANTS,
    FLOW_STARTS,
    FLOW_ENDS,
    DISPLACED,
    LANES,
    BORDERS,
    NAMES,
    TEXTS,
    EARLY,
    FIRST_AT,
    DEPTH,
    HEAP,
    IDLE,
    STATS,
) = range(16)
"""Places in the totals of ``encode_track``, and how many there are."""

COUNTER_BYTES = 48
"""Most bytes that one counter value can take."""

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_NEVER = np.int64(2**63 - 1)


@kernel()
def _event(out, at, sequence, kind):
    """Write what stands between a packet's time and the rest of its track event."""
    store(out, at, sequence[0])
    at += np.int64(sequence[1])
    store(out, at, np.uint32(0x0048005A) | np.uint32(kind) << np.uint32(24))
    return at + 4


@kernel()
def _head(out, at, delta, sequence, kind):
    """Write a packet up to its track event's type; the lengths are set by ``_close``."""
    store(out, at, np.uint32(0x0040000A))
    return _event(out, put_varint(out, at + 3, np.uint64(delta)), sequence, kind)


@kernel()
def _first_head(out, at, sequence, kind):
    """The same with a time that is filled in later."""
    store(out, at, np.uint32(0x0040000A))
    return _event(out, put_padded(out, at + 3, 0), sequence, kind)


@kernel()
def _close(out, start, event, at):
    """Set the lengths of a packet that ends at ``at``; return where it ends then."""
    store(out, start + 1, np.uint8(at - start - 2))
    store(out, event + 1, np.uint8(at - event - 2))
    return at if at - start <= 129 else _widen(out, start, event, at)


@kernel(types.int64(U1W, *(types.int64,) * 3), _nrt=False)
def _widen(out, start, event, at):
    """The same for a packet whose length, or also its event's, needs a second byte."""
    for place in (event, start):
        size = at - place - 2
        if size > 127:
            for k in range(at - 1, place + 1, -1):
                out[k + 1] = out[k]
            out[place + 1] = np.uint8(size & 127 | 128)
            out[place + 2] = np.uint8(size >> 7)
            at += 1
    return at


@kernel()
def _track(out, at):
    """Leave room for the number of a track that is chosen later."""
    store(out, at, np.uint8(0x58))
    return put_padded(out, at + 1, 0)


@kernel()
def _lane(out, at, uuid):
    store(out, at, np.uint8(0x58))
    return put_varint(out, at + 1, np.uint64(uuid))


@kernel()
def _id(out, at, stat, which, key, iids, listed):
    """Write the interning id of ``key``: a new one at first sight, noted in ``listed``."""
    if iids[which][key] == 0:
        listed[which][stat[NAMES + which]] = key
        stat[NAMES + which] += 1
        iids[which][key] = stat[NAMES + which]
    iid = iids[which][key]
    if iid < 128:
        store(out, at, np.uint8(iid))
        return at + 1
    return put_varint(out, at, np.uint64(iid))


@kernel()
def _drain(t, at, now, out, stat, sequence, lane_uuid, stack, heap, free, border_end_at):
    """Write the ends up to time ``t``, in time order; innermost first on the main track."""
    while stat[DEPTH] > 0 or stat[HEAP] > 0:
        inner = stack[0][stat[DEPTH] - 1] if stat[DEPTH] > 0 else _NEVER
        beside = heap[0][0] if stat[HEAP] > 0 else _NEVER
        stop = min(inner, beside)
        if stop > t:
            break
        start = at
        at = _head(out, start, stop - now, sequence, _END)
        event = at - 4
        now = stop
        if inner <= beside:
            stat[DEPTH] -= 1
            which = stack[1][stat[DEPTH]]
            if which >= 0:
                at = _track(out, at)
                border_end_at[which] = at - PADDED_BYTES
        else:
            lane = heap[1][0]
            stat[HEAP] = pop(heap[0], heap[1], stat[HEAP])
            free[stat[IDLE]] = lane
            stat[IDLE] += 1
            at = _lane(out, at, lane_uuid + lane)
        at = _close(out, start, event, at)
    return at, now


@kernel()
def _place(t, stop, at, out, stat, border, lane_uuid, nests, stack, heap, free, borders):
    """Choose the track of a slice: the main one where it fits, else a lane."""
    depth = stat[DEPTH]
    if depth == 0 or (nests and stack[0][depth - 1] >= stop):
        which = np.int64(-1)
        if t < border:
            which = stat[BORDERS]
            stat[BORDERS] += 1
            at = _track(out, at)
            borders[0][which] = at - PADDED_BYTES
            borders[2][which] = t
        stack[0][depth] = stop
        stack[1][depth] = which
        stat[DEPTH] += 1
        return at
    stat[DISPLACED] += 1
    if stat[IDLE] > 0:
        stat[IDLE] -= 1
        lane = free[stat[IDLE]]
    else:
        lane = stat[LANES]
        stat[LANES] += 1
    stat[HEAP] = push(heap[0], heap[1], stat[HEAP], stop, lane)
    return _lane(out, at, lane_uuid + lane)


@kernel()
def _describe(row, at, out, stat, columns, arguments, iids, listed):
    """Write the name, the arguments and the flow of a row."""
    name, shown, flow = columns
    store(out, at, np.uint8(0x50))
    at = _id(out, at + 1, stat, 0, name[row], iids, listed)
    bits = np.uint64(shown[row]) & np.uint64(SINK - 1)
    while bits:
        k = lowest(bits)
        bits &= bits - np.uint64(1)
        store(out, at, arguments[k, 0])
        end = at + arguments[k, 1]
        how = arguments[k, 2]
        if how != FLAG:
            value = load(arguments[k, 3], row, arguments[k, 4])
            if how == NUMBER:
                end = put_varint(out, end, value)
            else:
                end = _id(out, end, stat, 1, value, iids, listed)
        store(out, at + 1, np.uint8(end - at - 2))
        at = end
    if flow[row] != 0:
        # Field 47 ``flow_ids`` at the source, 48 ``terminating_flow_ids`` at the sink.
        is_sink = shown[row] >> _SINK_BIT
        stat[FLOW_STARTS] += 1 - is_sink
        stat[FLOW_ENDS] += is_sink
        store(out, at, np.uint16(0x02F9 + is_sink * (0x0381 - 0x02F9)))
        store(out, at + 2, flow[row])
        at += 10
    return at


_COLUMNS = types.Tuple((U4R, U2R, U8R))


_PAIR = types.UniTuple(I8W, 2)


# Without numba's run time, and so without memory of its own: counting references to arrays
# that are handed from helper to helper took 85 % of the time.


@kernel(
    types.void(
        U4R,
        *(I8R,) * 2,
        _COLUMNS,
        I8R2,
        *(types.int64,) * 4,
        U8R,
        U1W,
        types.UniTuple(I8W, 3),
        types.UniTuple(I4W, 2),
        types.UniTuple(I8W, 2),
        types.Tuple((I8W, I8W, _PAIR, _PAIR)),
    ),
    _nrt=False,
)
def encode_track(
    order,
    begin,
    length,
    columns,
    arguments,
    base,
    border,
    lane_uuid,
    nests,
    sequence,
    out,
    borders,
    iids,
    listed,
    room,
):
    """Encode the rows of one track in time order; every row a slice, or an instant.

    Slices that do not fit the track are displaced to lanes: tracks of their own on which nothing
    overlaps. Slices that begin before ``border`` name their track in a padded varint whose place
    is noted, so that it can be chosen when all partitions are known.

    Args:
        order: u4[m], row numbers, sorted by ``sort_rows``.
        begin: i8[n], Unix ns.
        length: i8[n], ns; 0 or less: an instant.
        columns: Arrays of n: ``name`` u4, key of what the row is called; ``shown`` u2, bit k for
            argument k, ``SINK``; ``flow`` u8, 0 = none.
        arguments: i8[a, 5]: the bytes before an argument's value as a little-endian number (the
            second one, the length, is set here), how many they are, ``NUMBER``, ``TEXT`` or
            ``FLAG``, the address of the values, unsigned, and how many bytes each has.
        base: Unix ns; rows that begin before it are counted.
        border: Unix ns, see above.
        lane_uuid: Number of the first lane's track.
        nests: 1 where a slice may stand inside another one on the track; 0: none may.
        sequence: u8[2], the encoded field ``trusted_packet_sequence_id`` as a little-endian
            number, and how many bytes it has.
        out: u1[>= m * (ROW_BYTES + a * ARGUMENT_BYTES) + SLACK_BYTES], gets the packets.
        borders: i8[>= slices] three times, gets of the border slices: the place of the track number
            in the begin packet, in the end packet, and the begin in Unix ns.
        iids: i4[] twice, by name and by text: room for interning ids; all 0 at first, and again
            on return.
        listed: i8[] twice, gets the keys of names and texts in the order of their ids.
        room: ``stat`` i8[STATS], gets the totals, see the constants of this module; then
            i8[>= slices] to work in: one, a pair, a pair.

    The first packet's time is a padded varint at ``FIRST_AT``; the others' are relative to the
    packet before.
    """
    stat, free, heap, stack = room
    stat[:] = 0
    stat[FIRST_AT] = 3
    while stat[EARLY] < order.size and begin[order[stat[EARLY]]] < base:
        stat[EARLY] += 1
    at = now = np.int64(0)
    for i in range(order.size):
        row = order[i]
        t = begin[row]
        at, now = _drain(t, at, now, out, stat, sequence, lane_uuid, stack, heap, free, borders[1])
        start = at
        is_slice = length[row] > 0
        kind = _BEGIN if is_slice else _INSTANT
        if i == 0:
            at = _first_head(out, start, sequence, kind)
        else:
            at = _head(out, start, t - now, sequence, kind)
        event = at - 4
        now = t
        noted = stat[BORDERS]
        if is_slice:
            stat[SLICES] += 1
            stop = t + length[row]
            at = _place(
                t, stop, at, out, stat, border, lane_uuid, nests, stack, heap, free, borders
            )
        open_end = _describe(row, at, out, stat, columns, arguments, iids, listed)
        at = _close(out, start, event, open_end)
        if at != open_end:
            stat[FIRST_AT] += i == 0
            for which in range(noted, stat[BORDERS]):
                borders[0][which] += at - open_end
    stat[INSTANTS] = order.size - stat[SLICES]
    at, now = _drain(_NEVER, at, now, out, stat, sequence, lane_uuid, stack, heap, free, borders[1])
    stat[BYTES] = at
    for k in range(2):
        for i in range(stat[NAMES + k]):
            iids[k][listed[k][i]] = 0


@kernel(types.int64(I8R, I8R, F8R, U1W))
def encode_counters(uuid, t, value, out):
    """Encode counter values on packet sequence 1, with absolute times.

    Args:
        uuid: i8[n], counter track.
        t: i8[n], exported ns, not negative.
        value: f8[n].
        out: u1[>= n * COUNTER_BYTES + SLACK_BYTES], gets the packets.

    Returns:
        Bytes written.
    """
    at = 0
    bits = value.view(np.uint64)
    sequence = np.array([0x0150, 2], np.uint64)
    for i in range(uuid.size):
        start = at
        at = _head(out, at, t[i], sequence, _COUNTER)
        event = at - 4
        store(out, at, np.uint8(0x58))
        at = put_varint(out, at + 1, np.uint64(uuid[i]))
        store(out, at, np.uint16(0x02E1))
        store(out, at + 2, bits[i])
        at += 10
        at = _close(out, start, event, at)
    return at


@kernel(
    types.int64(I8R, I8R, types.int64, U8R, U1W),
)
def encode_values(t, value, base, sequence, out):
    """Encode whole numbers of one counter on a packet sequence of its own.

    Args:
        t: i8[n], Unix ns, ascending.
        value: i8[n], not negative.
        base: Unix ns of the trace's zero, not after any value.
        sequence: u8[2], as in ``encode_track``.
        out: u1[>= n * COUNTER_BYTES + SLACK_BYTES], gets the packets; the sequence's defaults
            name the track.

    Returns:
        Bytes written.
    """
    at, now = 0, base
    for i in range(t.size):
        start = at
        at = _head(out, at, t[i] - now, sequence, _COUNTER)
        event = at - 4
        now = t[i]
        store(out, at, np.uint16(0x01F0))
        at = _close(out, start, event, put_varint(out, at + 2, np.uint64(value[i])))
    return at
