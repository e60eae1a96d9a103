"""Equations of stage doorbell: which numbers can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Run, column

_POSITIONS = 2**32
"""Operations tell their first slot modulo this."""


@dataclass(frozen=True)
class Compared:
    """Both sides of what raw slots and recorded operations say, of queue pairs with all of both.

    Attributes:
        pairs: Queue pairs.
        left_out: Queue pairs with slots of which something is missing.
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


def compare(queues: pa.Table, run: Run) -> Compared:
    """Return the numbers of queue pairs that can be compared.

    Those are the ones whose slots and operations have no gaps, and begin and end alike.
    """
    full = _full(run)
    row = {name: column(queues, name) for name in queues.column_names}
    has_slots = (row["read"] > 0) & full[row["proc"]] if full.size else np.zeros(0, bool)
    whole = row["last_slot"] - row["first_slot"] + 1 == row["read"]
    alike = (row["first_wqe"] == row["first_op"]) & (row["last_wqe"] == row["last_op"])
    use = has_slots & whole & alike & (row["gaps"] == 0) & (row["last_slot"] < _POSITIONS)
    names = ("wqes", "operations", "wqe_bytes", "size_bytes")
    sums = (int(row[name][use].sum()) for name in names)
    return Compared(int(use.sum()), int((has_slots & ~use).sum()), *sums)


def whole_slots(run: Run) -> tuple[int, int] | None:
    """Return the slots that queue pairs counted at their end, and of these the uncopied ones.

    None where a queue pair did not tell, or a process did not end its file or did not record slots.
    """
    proc = run.column("gpu_queues", "proc")
    if proc.size == 0 or not run.column("gpu_queues", "has_totals").all():
        return None
    ends = run.tables["processes"].column("end").to_pylist()
    ended = np.array([end != "" for end in ends])
    if not (_full(run) & ended)[proc].all():
        return None
    slots, uncopied = (run.column("gpu_queues", name) for name in ("slots", "uncopied_slots"))
    return sum(slots.tolist()), sum(uncopied.tolist())


def _full(run: Run) -> NDArray[np.bool_]:
    """Return by process whether it recorded slots."""
    return np.array([mode == "full" for mode in run.tables["processes"].column("mode").to_pylist()])
