"""Stage in_flight: how many messages of a process were sent and not yet received.

A message is in flight from its send until its receive, that time not included. Those that were
received before they were sent (clocks) are in flight at no time, and are counted.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.pairs import Groups, Ints, groups_of
from sigmatrace.stages.table_stage import TableStage, Told


class InFlight(TableStage):
    """Makes ``in_flight``."""

    name: ClassVar[str] = "in_flight"
    requires: ClassVar[Columns] = {
        "message_pairs": {
            **{"src_proc": "i4", "layer": "u1"},
            **{"send_ns": "i8", "receive_ns": "i8", "latency_ns": "i8"},
        }
    }
    produces: ClassVar[Columns] = {"in_flight": STAGE_TABLES["in_flight"]}

    def survey(self, run: Run) -> Told:
        """Count the messages of each sender and layer over time."""
        pairs = run.tables["message_pairs"]
        forward = column(pairs, "latency_ns") >= 0
        backwards = int(forward.size - forward.sum())
        table = _table(pairs.filter(pa.array(forward)) if backwards else pairs)
        counted = [int(column(table, "messages").sum()), backwards]
        whole = "stages.messages.messages"
        ledger = {
            "messages": counted[0],
            "backwards": backwards,
            "balance": [{"name": "in flight + backwards", "left": counted, "right": whole}],
        }
        return Told(table, ledger)


def _table(pairs: pa.Table) -> pa.Table:
    send, receive = (column(pairs, f"{what}_ns") for what in ("send", "receive"))
    proc = column(pairs, "src_proc")
    own = groups_of(proc, np.zeros_like(proc), column(pairs, "layer"))
    most, span = _most(own, send, receive)
    flown = own.totals(receive - send)[1]
    return pa.table(
        {
            "proc": own.first,
            "layer": own.layer,
            "messages": own.count.astype(np.uint64),
            "max": most,
            "mean": flown / np.maximum(span, 1),
        }
    )


def _most(own: Groups, send: Ints, receive: Ints) -> tuple[Ints, Ints]:
    """Return the most in flight at once, and ns from first send to last receive, by group."""
    if not send.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # At one time receives come first; they stand before sends, and the sort is stable.
    t_ns = np.concatenate([receive, send])
    order = np.lexsort((t_ns, np.concatenate([own.code, own.code])))
    flying = np.cumsum(np.where(order < send.size, np.int8(-1), np.int8(1)), dtype=np.int64)
    until = 2 * np.cumsum(own.count)
    first = until - 2 * own.count
    most = np.maximum(np.maximum.reduceat(flying, first), 0)
    return most, t_ns[order[until - 1]] - t_ns[order[first]]
