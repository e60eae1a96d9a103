"""Stage waits: who may have waited for whom, by message.

A receive is recorded when it completes, so that a receiver may have waited from what it did last
before (``message_events``) until then.

* Late sender: the message was sent after that; it may have waited from then until the send.
* Transfer: from the send, or from what the receiver did last before where that was later, until the
  receive; it may have waited while the message was under way.
* Late receiver: had the message been as quick as the quickest one of its pair, layer and class of
  sizes, it would have come before what the receiver did last. What it took longer than that it may
  have waited for the receiver.

All are upper bounds: what happened in between may as well have been work. Of the first thing that
a process does it is not known since when it waited; messages that were received before they were
sent (clocks) say nothing. Both are counted.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.message_events import Events, least_latencies
from sigmatrace.stages.pairs import Groups, Ints, pairs_of
from sigmatrace.stages.table_stage import TableStage, Told


class Waits(TableStage):
    """Makes ``waits``."""

    name: ClassVar[str] = "waits"
    requires: ClassVar[Columns] = {
        "message_pairs": {
            **{"src_proc": "i4", "dst_proc": "i4", "layer": "u1", "size_bytes": "u8"},
            **{"sizes_known": "bool", "send_ns": "i8", "receive_ns": "i8", "latency_ns": "i8"},
        }
    }
    produces: ClassVar[Columns] = {"waits": STAGE_TABLES["waits"]}

    def survey(self, run: Run) -> Told:
        """Look at each message together with what its receiver did before."""
        pairs = run.tables["message_pairs"]
        own = pairs_of(pairs)
        before, is_known = Events.of(pairs).before_receives()
        send, receive, latency = (
            column(pairs, f"{what}_ns") for what in ("send", "receive", "latency")
        )
        backwards = latency < 0
        first = ~is_known & ~backwards
        told_of = is_known & ~backwards
        sender = told_of & (send > before)
        least = least_latencies(pairs, own, latency)
        receiver = told_of & (before - send > least)
        told = {
            name: int(rows.sum())
            for name, rows in (
                ("late_sender", sender),
                ("late_receiver", receiver),
                ("backwards", backwards),
                ("nothing_before", first),
                ("neither", told_of & ~sender & ~receiver),
            )
        }
        sums = {"name": "kinds = messages", "left": list(told.values())}
        balance = [{**sums, "right": "stages.messages.messages"}]
        table = {
            "src_proc": own.first,
            "dst_proc": own.second,
            "layer": own.layer,
            "messages": own.count.astype(np.uint64),
            **_amounts("late_sender", own, sender, send - before),
            **_amounts("late_receiver", own, receiver, latency - least),
            "transfer_ns": own.totals(np.where(told_of, receive - np.maximum(send, before), 0))[0],
        }
        return Told(pa.table(table), {**told, "balance": balance})


def _amounts(
    name: str, own: Groups, rows: NDArray[np.bool_], ns: Ints
) -> dict[str, NDArray[np.uint64] | Ints]:
    """Return how many rows are of a kind, and their time."""
    return {name: own.sums(rows), f"{name}_ns": own.totals(np.where(rows, ns, 0))[0]}
