"""Stage stragglers: which processes others waited for, at barriers and for messages.

At a barrier all wait for the one that comes last; of several at the same time, the one with the
highest number counts, and where all come at once, none does. What receivers waited until messages
were sent is that of ``waits``; a message that is seen at several layers is waited for once, so that
the layer counts at which it is most.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.pairs import Ints
from sigmatrace.stages.table_stage import TableStage, Told


class Stragglers(TableStage):
    """Makes ``stragglers``."""

    name: ClassVar[str] = "stragglers"
    requires: ClassVar[Columns] = {
        "barriers": {"barrier": "i4", "last_ns": "i8", "spread_ns": "i8", "last_proc": "i4"},
        "barrier_arrivals": {"barrier": "i4", "proc": "i4", "arrival_ns": "i8", "late_ns": "i8"},
        "waits": {"src_proc": "i4", "layer": "u1", "late_sender_ns": "i8"},
        "processes": {"proc": "i4"},
    }
    produces: ClassVar[Columns] = {"stragglers": STAGE_TABLES["stragglers"]}

    def survey(self, run: Run) -> Told:
        """Add up what was waited for each process."""
        processes = run.tables["processes"].num_rows
        barriers, arrivals = run.tables["barriers"], run.tables["barrier_arrivals"]
        number, proc = column(arrivals, "barrier"), column(arrivals, "proc")
        came = np.unique(proc.astype(np.int64) << 32 | number) >> 32  # once, of several GPUs
        spread = column(barriers, "spread_ns") > 0
        waited = np.zeros(barriers.num_rows, np.int64)
        np.add.at(
            waited, number, column(barriers, "last_ns")[number] - column(arrivals, "arrival_ns")
        )
        last = column(barriers, "last_proc")[spread]
        table = {
            "proc": np.arange(processes, dtype=np.int32),
            "barriers": np.bincount(came, minlength=processes),
            "last": np.bincount(last, minlength=processes),
            "caused_ns": _sums(last, waited[spread], processes),
            "late_ns": _sums(proc, column(arrivals, "late_ns"), processes),
            "late_sender_ns": _late_sends(run.tables["waits"], processes),
        }
        ledger = {
            "barriers": barriers.num_rows,
            "barriers_all_at_once": int((~spread).sum()),
            "caused_ns": int(waited[spread].sum()),
        }
        return Told(pa.table(table), ledger)


def _sums(proc: Ints, ns: Ints, processes: int) -> Ints:
    """Return sums by process, ``(processes,)`` i8."""
    total = np.zeros(processes, np.int64)
    np.add.at(total, proc, ns)
    return total


def _late_sends(waits: pa.Table, processes: int) -> Ints:
    """Return what was waited for sends, by process, at the layer where that is most."""
    src, layer, ns = (column(waits, name) for name in ("src_proc", "layer", "late_sender_ns"))
    most = np.zeros(processes, np.int64)
    for one in np.unique(layer).tolist():
        most = np.maximum(most, _sums(src[layer == one], ns[layer == one], processes))
    return most
