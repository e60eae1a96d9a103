"""Stage doorbell: what doorbells announced, and whether the slots behind them say the same.

Capture decodes slots when it records operations; stage wqe decoded them once more. Here both are
counted by queue pair. Where everything of a queue pair is there, operations and bytes must be
equal: that is an equation of the ledger. Source: docs/gpu.md section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.partition import Partition, Run, column
from sigmatrace.queue_pairs import DESCRIBED, described
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.stages.doorbell_balance import Compared, Counted, compare, whole_slots
from sigmatrace.stages.doorbell_sums import (
    BATCH,
    QUEUE,
    add_batches,
    add_channels,
    add_queues,
    of_channels,
    of_doorbells,
    of_operations,
    of_slots,
)
from sigmatrace.table_order import in_order
from sigmatrace.text import count_text, counted
from sigmatrace.trace_format import Layer, WqeKind

_KINDS = len(WqeKind) + 1
_TOTALS = (
    *("doorbells", "again", "synthesized", "late", "slots", "not_read", "read", "invalid"),
    *("wqes", "wqe_bytes", "operations", "size_bytes"),
)


@dataclass(frozen=True)
class Rung:
    """What some partitions saw.

    Attributes:
        queues: By process and object (``doorbell_sums``).
        batches: By process, object and log2 of the slots: doorbells.
        channels: By channel of layer mlx5dv: operations, bytes, ordinals, positions.
        kinds: ``(4, 4)`` i8, slots by ``WqeKind`` as recorded, and as decoded here (0: unknown
            queue pair).
        unknown: Doorbells of no known queue pair.
        astray: Doorbells whose value does not lead to the index that was recorded.
        compared: After all partitions: which queue pairs are comparable.
        counted: After all partitions: the slots that queue pairs themselves counted.
    """

    queues: pa.Table
    batches: pa.Table
    channels: pa.Table
    kinds: NDArray[np.int64]
    unknown: int
    astray: int
    compared: Compared | None = None
    counted: Counted | None = None


class Doorbell(Stage):
    """Makes the tables ``doorbells_by_qp`` and ``doorbell_batches``."""

    name: ClassVar[str] = "doorbell"
    summary: ClassVar[SummaryKind] = "after"
    requires: ClassVar[Columns] = {
        "doorbells": {
            **{"proc": "i4", "qp": "u4", "value": "u8", "index": "u8", "slots": "u4"},
            **{"flags": "u4", "delay_ns": "i8"},
        },
        "wqes": {
            **{"proc": "i4", "qp": "u4", "index": "u8", "kind": "u1"},
            **{"decoded": "u1", "slots": "u1", "size_bytes": "u8"},
        },
        "ops": {"channel": "u4", "ordinal": "u4", "aux": "u4", "size_bytes": "u8"},
        "channels": {"proc": "i4", "object": "u4", "layer": "u1"},
        **DESCRIBED,
        "gpu_queues": {
            **DESCRIBED["gpu_queues"],
            **{"has_totals": "bool", "slots": "u8", "uncopied_slots": "u8"},
        },
        "processes": {"mode": "str", "end": "str", "absent": "u8", "lost": "u8"},
        "damage": {"proc": "i4"},
    }
    produces: ClassVar[Columns] = {
        "doorbells_by_qp": STAGE_TABLES["doorbells_by_qp"],
        "doorbell_batches": STAGE_TABLES["doorbell_batches"],
    }

    def is_concerned(self, part: Partition) -> bool:
        """Return whether a partition has doorbells, slots, or operations of layer mlx5dv."""
        rows = part.tables["doorbells"].num_rows + part.tables["wqes"].num_rows
        return rows > 0 or Layer.MLX5DV in part.run.column("channels", "layer")

    def summarize(self, part: Partition) -> Rung:
        """Add up the partition's doorbells, slots and operations."""
        doorbells, batches, unknown, astray = of_doorbells(part)
        both = (part.column("wqes", name).astype(np.int64) for name in ("kind", "decoded"))
        kind, decoded = (np.where(one < _KINDS, one, 0) for one in both)
        return Rung(
            add_queues([doorbells, of_slots(part)]),
            add_batches([batches]),
            add_channels([of_operations(part, int(Layer.MLX5DV))]),
            np.bincount(kind * _KINDS + decoded, minlength=_KINDS**2).reshape(_KINDS, _KINDS),
            unknown,
            astray,
        )

    def combine(self, left: Rung, right: Rung) -> Rung:
        """Add both."""
        return Rung(
            add_queues([left.queues, right.queues]),
            add_batches([left.batches, right.batches]),
            add_channels([left.channels, right.channels]),
            left.kinds + right.kinds,
            left.unknown + right.unknown,
            left.astray + right.astray,
        )

    def resolve(self, summary: Rung, run: Run) -> Rung:
        """Put operations beside the slots, by queue pair."""
        queues = add_queues([summary.queues, of_channels(summary.channels, run)])
        queues = described(in_order(queues, QUEUE), run)
        return Rung(
            queues,
            described(in_order(summary.batches, BATCH), run),
            summary.channels,
            summary.kinds,
            summary.unknown,
            summary.astray,
            compare(queues, run),
            whole_slots(queues, run),
        )

    def results(self, resolved: Rung) -> Mapping[str, pa.Table]:
        """Return ``doorbells_by_qp`` and ``doorbell_batches``."""
        wanted = list(STAGE_TABLES["doorbells_by_qp"])
        return {
            "doorbells_by_qp": resolved.queues.select(wanted),
            "doorbell_batches": resolved.batches,
        }

    def account(self, resolved: Rung) -> Mapping[str, object]:
        """Return doorbells and slots; both decoders agree, and nothing is missing unsaid."""
        total = {name: _sum(resolved.queues, name) for name in _TOTALS}
        own = resolved.compared or Compared(0, 0, 0, 0, 0, 0)
        slots = resolved.counted or Counted(0, 0, 0, 0, 0)
        kinds = resolved.kinds
        equations: list[dict[str, Any]] = [
            {
                "name": "slots decoded = those that are what capture took them for",
                "left": int(kinds[:, 1:].sum()),
                "right": int(kinds.diagonal()[1:].sum()),
            }
        ]
        equations += [
            {
                "name": f"{what} of raw slots = of layer mlx5dv, of queue pairs with all records",
                "left": left,
                "right": right,
            }
            for what, left, right in (
                ("operations", own.wqes, own.operations),
                ("bytes", own.wqe_bytes, own.size_bytes),
            )
        ]
        doorbells = [total["doorbells"], total["again"], resolved.unknown]
        equations.append(
            {
                "name": "doorbells + those for the same index again + those of no known queue pair",
                "left": doorbells,
                "right": "records.doorbell",
            }
        )
        equations += slots.equations(total["read"])
        return {
            **total,
            "unknown_queue_pair": resolved.unknown,
            "astray": resolved.astray,
            "slots_of_unknown_queue_pairs": int(kinds[:, 0].sum()),
            "queue_pairs_compared": own.pairs,
            "queue_pairs_not_compared": own.left_out,
            "processes_compared": slots.processes,
            "processes_not_compared": slots.left_out,
            "balance": equations,
        }

    def lines(self, resolved: Rung, run: Run) -> Sequence[str]:
        """Return doorbells, what they announced, and what of it is not there, by name."""
        count: Mapping[str, Any] = self.account(resolved)
        rung = count["doorbells"] + resolved.unknown
        if not rung and not count["read"]:
            return ()
        lines = [
            f"doorbells  {count_text(rung)} seen (stores between two looks are merged), "
            f"{counted(count['slots'], 'slot')} announced",
            *_kept(count, resolved.queues, run),
        ]
        named = {
            "slot overwritten before the copy, or never written": count["invalid"],
            "slot not read: SIGMATRACE_DOORBELL=off, or a ring that cannot be read": count[
                "not_read"
            ],
            "slot not in the trace": _missing(resolved.queues, run),
            "doorbell made from a doorbell record": count["synthesized"],
            "doorbell that waited 1 ms for the copy": count["late"],
            "doorbell of no known queue pair": resolved.unknown,
            "doorbell that does not lead to its index": resolved.astray,
            "QP not compared, as records are missing": count["queue_pairs_not_compared"],
        }
        for what, number in named.items():
            if number:
                first, _, rest = what.partition(" ")
                lines.append(f"           {counted(number, first)} {rest}")
        if count["processes_not_compared"]:
            many = counted(count["processes_not_compared"], "process", "processes")
            lines.append(f"           {many} not compared with what the QPs counted")
        return lines


def _kept(count: Mapping[str, Any], queues: pa.Table, run: Run) -> Iterator[str]:
    """Yield what there is of the slots: mode ``full`` alone keeps them."""
    modes = run.tables["processes"].column("mode").to_pylist()
    if count["read"]:
        wqes = counted(count["wqes"], "work request")
        yield f"           {wqes} in {counted(count['read'], 'recorded slot')}"
    elif not any(modes[proc] == "full" for proc in column(queues, "proc").tolist()):
        yield "           slots are kept in mode full alone"


def _sum(table: pa.Table, name: str) -> int:
    return int(pc.sum(table.column(name)).as_py() or 0)


def _missing(queues: pa.Table, run: Run) -> int:
    """Return slots that doorbells announced and that are not in the trace (mode ``full``)."""
    full = np.array([mode == "full" for mode in run.tables["processes"].column("mode").to_pylist()])
    announced, not_read, read = (column(queues, x) for x in ("slots", "not_read", "read"))
    missing = np.maximum(announced - not_read - read, 0)
    return int(missing[full[column(queues, "proc")]].sum()) if missing.size else 0
