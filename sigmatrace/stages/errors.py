"""Stage errors: what did not go well, by process, object and status.

Three kinds, which are not to be added up, since one failure may be seen twice:

* ``work completion``: completions of queue pairs (``cqes``) with an error status
  (``enum ibv_wc_status``), those that only say that others failed before (flushed) among them.
* ``completion``: completions of other layers with an error status, the library's own number.
* ``failed operation``: operations that ended with an error (``OpFlag.FAILED``); status 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.lookup import find_objects, object_keys
from sigmatrace.partition import Partition, Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.base import SummaryKind
from sigmatrace.stages.table_stage import TableStage, Told
from sigmatrace.text import counted
from sigmatrace.trace_format import OpFlag

WORK_COMPLETION, COMPLETION, FAILED = "work completion", "completion", "failed operation"
_KEYS = ["proc", "object", "layer", "kind", "status"]


class ErrorSummary(TableStage):
    """Makes ``errors``."""

    name: ClassVar[str] = "errors"
    summary: ClassVar[SummaryKind] = "after"
    requires: ClassVar[Columns] = {
        "ops": {"proc": "i4", "channel": "u4", "flags": "u1"},
        "completions": {"proc": "i4", "channel": "u4", "status": "i4"},
        "cqes": {"proc": "i4", "object": "u4", "status": "u1"},
        "channels": {"object": "u4", "layer": "u1"},
        "endpoints": {"proc": "i4", "object": "u4", "layer": "u1"},
    }
    produces: ClassVar[Columns] = {"errors": STAGE_TABLES["errors"]}

    def summarize(self, part: Partition) -> pa.Table:
        """Count the partition's errors."""
        failed = np.flatnonzero(part.column("ops", "flags") & OpFlag.FAILED)
        found = [_rows(part, "ops", FAILED, failed, np.zeros(failed.size, np.int32))]
        for table, kind in (("completions", COMPLETION), ("cqes", WORK_COMPLETION)):
            status = part.column(table, "status")
            rows = np.flatnonzero(status)
            found.append(_rows(part, table, kind, rows, status[rows].astype(np.int32)))
        return _added(pa.concat_tables(found))

    def combine(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Add both."""
        return _added(pa.concat_tables([left, right]))

    def resolve(self, summary: pa.Table, run: Run) -> Told:
        """Name the layers of queue pairs, and put rows into order."""
        table = summary.set_column(2, "layer", pa.array(_layers(summary, run)))
        table = table.sort_by([(name, "ascending") for name in _KEYS])
        counts = {
            kind: int(pc.sum(table.filter(pc.equal(table["kind"], kind))["count"]).as_py() or 0)
            for kind in (WORK_COMPLETION, COMPLETION, FAILED)
        }
        ledger: dict[str, Any] = {f"{kind}s".replace(" ", "_"): n for kind, n in counts.items()}
        same = {"left": counts[WORK_COMPLETION], "right": "stages.completion.errors"}
        ledger["balance"] = [{"name": "work completions with errors", **same}]
        return Told(table, ledger)

    def lines(self, resolved: Told, run: Run) -> Sequence[str]:
        """Return how many there are of each kind, and in which processes; nothing without any."""
        lines = []
        for kind in (WORK_COMPLETION, COMPLETION, FAILED):
            rows = resolved.table.filter(pc.equal(resolved.table["kind"], kind))
            if rows.num_rows:
                count = int(pc.sum(rows["count"]).as_py())
                where = counted(pc.count_distinct(rows["proc"]).as_py(), "process", "processes")
                what = f"{kind} with an error" if kind != FAILED else kind
                many = f"{kind}s with an error" if kind != FAILED else ""
                lines.append(f"errors     {counted(count, what, many)} in {where}")
        return lines


def _rows(
    part: Partition, table: str, kind: str, rows: NDArray[np.int64], status: NDArray[np.int32]
) -> pa.Table:
    """Return rows of an event table as rows of ``errors``."""
    return pa.table(
        {
            "proc": part.column(table, "proc")[rows],
            **_objects(part, table, rows),
            "kind": pa.array([kind] * rows.size, pa.string()),
            "status": status,
            "count": np.ones(rows.size, np.uint64),
        }
    )


def _objects(part: Partition, table: str, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return object and layer of rows; 0 where they are not known.

    The layers of queue pairs are found once there are few of them (``_layers``).
    """
    if table == "cqes":
        return {
            "object": part.column(table, "object")[rows],
            "layer": np.zeros(rows.size, np.uint8),
        }
    known = part.run.tables["channels"].num_rows
    at = np.minimum(part.column(table, "channel")[rows].astype(np.int64), known)
    found = {}
    for name in ("object", "layer"):
        values = part.run.column("channels", name)
        found[name] = np.append(values, values.dtype.type(0))[at]
    return found


def _added(rows: pa.Table) -> pa.Table:
    added = rows.group_by(_KEYS, use_threads=False).aggregate([("count", "sum")])
    return added.rename_columns([*_KEYS, "count"])


def _layers(table: pa.Table, run: Run) -> NDArray[np.uint8]:
    """Return the layer of each row; that of queue pairs is the one of their endpoint."""
    keys = object_keys(run.column("endpoints", "proc"), run.column("endpoints", "object"))
    order = np.argsort(keys, kind="stable")
    at = find_objects(keys[order], column(table, "proc"), column(table, "object"))
    found = np.append(run.column("endpoints", "layer")[order], np.uint8(0))[at]
    is_work = np.array([kind == WORK_COMPLETION for kind in table["kind"].to_pylist()], bool)
    return np.where(is_work, found, column(table, "layer")).astype(np.uint8)
