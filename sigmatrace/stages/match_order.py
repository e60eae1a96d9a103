"""Posting order of arrivals: restored within a partition, checked between partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from sigmatrace.partition import Partition
from sigmatrace.stages.channels import Channels
from sigmatrace.trace_format import Op

Ints = NDArray[np.int64]


def restored(part: Partition, channels: Channels) -> NDArray[np.uint32]:
    """Return the ordinals of a partition's operations, arrivals in the order of posting."""
    op, ordinal, aux = (part.column("ops", name) for name in ("op", "ordinal", "aux"))
    return restore(channels, op, channels.fate(), ordinal, aux)


def restore(
    channels: Channels,
    op: NDArray[np.uint8],
    fate: NDArray[np.uint8],
    ordinal: NDArray[np.uint32],
    aux: NDArray[np.uint32],
) -> NDArray[np.uint32]:
    """Put the ordinals of arrivals into posting order, channel by channel.

    Within a channel the ordinals that the partition holds are handed out again in the order
    of ``aux``; arrivals into one posted buffer (equal ``aux``) keep theirs. Both numbers count
    modulo 2^32 and are compared by their distance from the channel's first row: right as long
    as a partition's rows of one channel lie less than 2^31 apart.

    Args:
        channels: Of the rows.
        op: ``(n,)`` u1; only RECV is touched.
        fate: ``(channels,)`` u1; only MATCHABLE is touched.
        ordinal: ``(n,)`` u4, as recorded, in order of completion.
        aux: ``(n,)`` u4, posting order.

    Returns:
        ``(n,)`` u4. Costs a sort of the rows of channels with an inversion, else O(n).
    """
    from sigmatrace.stages.kernels.match import inversion_kernel

    last = [np.zeros(2 * channels.size, np.uint32) for _ in range(2)]
    state = np.zeros(2 * channels.size, np.uint8)
    if not inversion_kernel(channels.channel, op, ordinal, aux, channels.low, fate, *last, state):
        return ordinal
    group = channels.channel - np.uint32(channels.low)
    rows = np.flatnonzero((op == Op.RECV) & (state[1::2][group] == 2))
    group = group[rows]
    first = np.empty(channels.size, np.int64)
    first[group[::-1]] = rows[::-1]
    place = (ordinal[rows] - ordinal[first[group]]).view(np.int32)
    posted = (aux[rows] - aux[first[group]]).view(np.int32)
    restored = ordinal.copy()
    restored[rows[np.lexsort((place, posted, group))]] = ordinal[rows[np.lexsort((place, group))]]
    return restored


@dataclass(frozen=True)
class Order:
    """Ranges of arrivals by group and partition, ``(pieces,)`` i8 each.

    A partition restores the order of its own rows only. Where two partitions hold arrivals
    of one group, all arrivals of the one should be posted before all of the other.

    Attributes:
        group: Group.
        low: Smallest ordinal.
        high: Largest ordinal.
        posted_low: Smallest ``aux``.
        posted_high: Largest ``aux``.
        count: Arrivals.
    """

    group: Ints
    low: Ints
    high: Ints
    posted_low: Ints
    posted_high: Ints
    count: Ints


def order_of(span: Ints, count: NDArray[np.uint64]) -> Order:
    """Return the ranges of arrivals from rows of ``runs_kernel`` that have some."""
    _, _, key, low, high, posted_low, posted_high, _ = span.T
    top = 2**32 - 1
    return Order(key >> 2, top - low, high, top - posted_low, posted_high, count.astype(np.int64))


def join_orders(orders: Sequence[Order]) -> Order:
    """Return the pieces of all."""
    names = [one.name for one in fields(Order)]
    return Order(*(np.concatenate([getattr(one, name) for one in orders]) for name in names))


def count_exchanged(order: Order, groups: int) -> Ints:
    """Bound by group how many arrivals may be exchanged over the borders of partitions.

    Args:
        order: All pieces of the run.
        groups: Length of the result.

    Returns:
        ``(groups,)`` i8: 0 where the pieces follow each other in ordinals and in postings. Where
        a counter wraps inside a piece the piece seems to overlap all others: counted, too.
    """
    by = np.lexsort((order.high, order.low, order.group))
    group, count = order.group[by], order.count[by]
    exchanged = np.zeros(groups, np.int64)
    if group.size < 2:
        return exchanged
    rank = np.cumsum(np.concatenate([[0], np.diff(group) != 0])) << 33
    high = np.maximum.accumulate(order.high[by] + rank)[:-1] - rank[1:]
    posted = np.maximum.accumulate(order.posted_high[by] + rank)[:-1] - rank[1:]
    same = group[1:] == group[:-1]
    overlap = same & ((order.low[by][1:] <= high) | (order.posted_low[by][1:] < posted))
    width = np.maximum(posted - order.posted_low[by][1:] + 1, count[1:])
    amount = np.minimum(width, count[1:] + count[:-1])
    np.add.at(exchanged, group[1:][overlap], amount[overlap])
    return exchanged
