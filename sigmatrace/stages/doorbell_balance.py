"""Equations of stage doorbell: which numbers can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Run, column

_POSITIONS = 2**32
"""Operations tell their first slot modulo this."""
_COMPLETE = ("exit", "stop")
"""Ends of a process after which nothing is missing."""


@dataclass(frozen=True)
class Compared:
    """Both sides of what raw slots and recorded operations say, of queue pairs with all of both.

    Attributes:
        pairs: Queue pairs.
        left_out: Queue pairs of which something is missing, and whose process says so.
        wqes: Work queue elements decoded from slots.
        operations: Operations recorded.
        wqe_bytes: Bytes of the former.
        size_bytes: Bytes of the latter.
    """

    pairs: int
    left_out: int
    wqes: int
    operations: int
    wqe_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Counted:
    """Slots of processes all of whose queue pairs told their totals, and which lack no record.

    Attributes:
        processes: Of these.
        left_out: Other processes with queue pairs that recorded slots.
        slots: Announced, by the queue pairs' own count.
        recorded: In the trace.
        uncopied: Not recorded, by the queue pairs' own count.
    """

    processes: int
    left_out: int
    slots: int
    recorded: int
    uncopied: int

    def equations(self, read: int) -> list[dict[str, Any]]:
        """Return those of slots; ``read``: in the trace, of all processes."""
        name = "slots that queue pairs counted = recorded + uncopied, by process"
        return [
            {"name": "slots counted here = recorded", "left": read, "right": "records.wqe"},
            {"name": name, "left": self.slots, "right": [self.recorded, self.uncopied]},
        ]


def compare(queues: pa.Table, run: Run) -> Compared:
    """Return the numbers of queue pairs that can be compared.

    Those of a process that lacks nothing are; of another one those whose slots and operations have
    no gaps, and begin and end alike.
    """
    row = {name: column(queues, name) for name in queues.column_names}
    proc = row["proc"]
    has_some = _full(run)[proc] & ((row["read"] > 0) | (row["operations"] > 0))
    whole = row["last_slot"] - row["first_slot"] + 1 == row["read"]
    alike = (row["first_wqe"] == row["first_op"]) & (row["last_wqe"] == row["last_op"])
    seems_whole = whole & alike & (row["gaps"] == 0) & (row["last_slot"] < _POSITIONS)
    lost = run.column("processes", "lost") > 0
    use = has_some & (seems_whole | (_is_complete(run) & ~lost)[proc])
    names = ("wqes", "operations", "wqe_bytes", "size_bytes")
    sums = (int(row[name][use].sum()) for name in names)
    return Compared(int(use.sum()), int((has_some & ~use).sum()), *sums)


def whole_slots(queues: pa.Table, run: Run) -> Counted:
    """Return what queue pairs counted at their end, beside what is recorded of their processes."""
    names = ("proc", "has_totals", "slots", "uncopied_slots")
    proc, told, slots, uncopied = (run.column("gpu_queues", name) for name in names)
    full = _full(run)
    has_some, silent = np.zeros(full.size, bool), np.zeros(full.size, bool)
    has_some[proc] = True
    silent[proc[~told]] = True
    use = has_some & full & _is_complete(run) & ~silent
    mine, recorded = use[proc], column(queues, "read")[use[column(queues, "proc")]]
    left_out = int((has_some & full & ~use).sum())
    sums = (sum(values.tolist()) for values in (slots[mine], recorded, uncopied[mine]))
    return Counted(int(use.sum()), left_out, *sums)


def _is_complete(run: Run) -> NDArray[np.bool_]:
    """Return by process whether all that it recorded is in the trace."""
    ends = run.tables["processes"].column("end").to_pylist()
    complete = np.array([end in _COMPLETE for end in ends], bool)
    complete &= run.column("processes", "absent") == 0
    damaged = run.column("damage", "proc")
    complete[damaged[damaged >= 0]] = False
    complete &= run.window_ns is None
    return complete


def _full(run: Run) -> NDArray[np.bool_]:
    """Return by process whether it recorded slots."""
    modes = run.tables["processes"].column("mode").to_pylist()
    return np.array([mode == "full" for mode in modes], bool)
