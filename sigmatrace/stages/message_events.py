"""Sends and receives as what processes did, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import column
from sigmatrace.stages.pairs import Groups, Ints, groups_of, numbered, size_classes

Places = NDArray[np.int32] | Ints


@dataclass(frozen=True)
class Events:
    """Both ends of n messages, by process and layer in the order of time.

    At one time sends come before receives, and receives in the order in which their messages were
    sent: of completions that were seen together the one that could have come first is first.

    Attributes:
        message: ``(2n,)`` i4, or i8 of more than fit, message of each.
        is_receive: ``(2n,)``.
        t_ns: ``(2n,)`` i8, Unix ns.
        is_first: ``(2n,)``, whether its process did nothing before at this layer.
    """

    message: Places
    is_receive: NDArray[np.bool_]
    t_ns: Ints
    is_first: NDArray[np.bool_]

    @classmethod
    def of(cls, pairs: pa.Table) -> Events:
        """Return those of rows of ``message_pairs``. Complexity O(n log n)."""
        send, receive = (column(pairs, f"{what}_ns") for what in ("send", "receive"))
        layer = column(pairs, "layer")
        procs = [column(pairs, f"{end}_proc") for end in ("src", "dst")]
        none = np.zeros(2 * send.size, np.int32)
        code = groups_of(np.concatenate(procs), none, np.concatenate([layer, layer])).code
        t_ns = np.concatenate([send, receive])
        tie = np.concatenate([np.full(send.size, np.iinfo(np.int64).min), send])
        order = _narrow(np.lexsort((tie, t_ns, code)))
        del tie, none
        own, t_ns = code[order], t_ns[order]
        is_first = np.ones(order.size, bool)
        is_first[1:] = own[1:] != own[:-1]
        is_receive = order >= send.size
        order[is_receive] -= send.size
        return cls(order, is_receive, t_ns, is_first)

    def before_receives(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Return by message what the receiver did last before its receive.

        Returns:
            ``(n,)`` i8, Unix ns of it; ``(n,)``, whether there is such a thing.
        """
        places = np.flatnonzero(self.is_receive)
        before, is_known = np.empty(places.size, np.int64), np.empty(places.size, bool)
        at = self.message[places]
        is_known[at] = ~self.is_first[places]
        before[at] = self.t_ns[np.maximum(places - 1, 0)]
        return before, is_known

    def last_of(self, chosen: NDArray[np.bool_]) -> Places:
        """Return by event the place of the last chosen one of its process, up to it; -1: none.

        Args:
            chosen: ``(2n,)``.
        """
        place = _narrow(np.arange(chosen.size))
        none = np.full_like(place, -1)
        found = np.maximum.accumulate(np.where(chosen, place, none))
        # What lies before the first event of the process is another's.
        first = np.maximum.accumulate(np.where(self.is_first, place, none))
        found[found < first] = -1
        return found


def least_latencies(pairs: pa.Table, own: Groups, latency: Ints) -> Ints:
    """Return by message the least latency of its pair, layer and class of sizes, ``(n,)`` i8.

    Negative ones (clocks) do not count; where all are, it is 2^63 - 1.

    Args:
        pairs: Rows of ``message_pairs``.
        own: Their pairs and layers.
        latency: ``(n,)`` i8.
    """
    key = own.code.astype(np.int64) << 8 | size_classes(pairs)
    known, code = numbered(key)
    least = np.full(known.size, np.iinfo(np.int64).max)
    forward = latency >= 0
    np.minimum.at(least, code[forward], latency[forward])
    found: Ints = least[code]
    return found


def _narrow(places: Ints) -> Places:
    """Return places in half of the memory, where they fit."""
    return places.astype(np.int32) if places.size < 1 << 31 else places
