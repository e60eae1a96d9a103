"""Which arrows from send to receive a trace really has."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import numpy as np
from numba import types

from sigmatrace.export.kernels.packets import SINK
from sigmatrace.kernel import I8R, I8W, I8W2, U2R, U8R, kernel

BUCKETS = 256
"""Parts into which ends of arrows are sorted, so that only one part must fit memory."""

_MIX = np.uint64(0x9E3779B97F4A7C15)


@kernel()
def _mixed(flow, bits):
    """Return the top ``bits`` of a hash; buckets use the bits at the top, cells those below."""
    mixed = (np.uint64(flow) ^ (np.uint64(flow) >> np.uint64(32))) * _MIX
    return np.int64(mixed >> np.uint64(64 - bits))


@kernel(types.void(I8R, U8R, I8R, U2R, I8W2))
def collect_ends(order, flow, t, shown, out):
    """Note the ends of arrows of one track, in the order in which they are written.

    Args:
        order: i8[m], row numbers.
        flow: u8[n], 0 = none.
        t: i8[n], ns.
        shown: u2[n]; those with the bit ``SINK`` are receives.
        out: i8[k, 3], one for each row with a flow: flow, time, 1 for a receive.
    """
    used = 0
    for i in range(order.size):
        row = order[i]
        if flow[row] != 0:
            out[used, 0] = np.int64(flow[row])
            out[used, 1] = t[row]
            out[used, 2] = (shown[row] & SINK) != 0
            used += 1


@kernel(types.void(I8W2, I8W, I8W2))
def split_ends(ends, starts, out):
    """Sort ends of arrows into buckets by flow; the order within a bucket stays.

    Args:
        ends: i8[n, 3], as ``collect_ends`` makes them.
        starts: i8[BUCKETS + 1], zeros; output: where each bucket begins.
        out: i8[n, 3], output.
    """
    for i in range(ends.shape[0]):
        starts[_mixed(ends[i, 0], 8) + 1] += 1
    for k in range(BUCKETS):
        starts[k + 1] += starts[k]
    at = starts[:-1].copy()
    for i in range(ends.shape[0]):
        k = _mixed(ends[i, 0], 8)
        out[at[k], 0], out[at[k], 1], out[at[k], 2] = ends[i, 0], ends[i, 1], ends[i, 2]
        at[k] += 1


@kernel(types.Tuple((types.int64, types.int64))(I8W2))
def count_arrows(ends):
    """Count the messages with an arrow, and those with both ends but none.

    The viewer takes events by time, of equal times in the order of the file. An arrow begins at
    a send and ends at the next receive of the same flow; a receive before its send gets none.

    Args:
        ends: i8[n, 3], all of some flows, in the order of the file.
    """
    bits = 4
    while 1 << bits < 2 * ends.shape[0]:
        bits += 1
    mask = (1 << bits) - 1
    # By cell: flow; first send: time and place + 1; last receive: time and place + 1.
    cells = np.zeros((1 << bits, 5), np.int64)
    for i in range(ends.shape[0]):
        flow, t = ends[i, 0], ends[i, 1]
        at = _mixed(flow, bits + 8) & mask
        while cells[at, 0] != flow and cells[at, 0] != 0:
            at = (at + 1) & mask
        cells[at, 0] = flow
        if ends[i, 2] == 0:
            if cells[at, 2] == 0 or t < cells[at, 1]:
                cells[at, 1], cells[at, 2] = t, i + 1
        elif cells[at, 4] == 0 or t >= cells[at, 3]:
            cells[at, 3], cells[at, 4] = t, i + 1
    arrows = backwards = 0
    for at in range(mask + 1):
        _, sent, send, received, receive = cells[at]
        if send and receive:
            is_shown = sent < received or (sent == received and send < receive)
            arrows += is_shown
            backwards += not is_shown
    return arrows, backwards
