"""Stage completion: what completed, how, and how long after it was posted (mode ``full``).

The capture names the position of the request in every completion (docs/verbs.md section 2), so
nothing is searched here: completions are counted, and the positions that they retire are added up.
A send completion retires the unsignaled requests before it, too.

What a GPU posts (layer mlx5dv) is counted apart. Its completions were seen later than they came,
and its positions are slots, of which a request may take several: so the positions of the last
requests are kept, and those behind the last completion are outstanding. (No more than a ring can
be. What lies farther back has completed, or the program could not have posted so much more.) Where
completions cannot be seen, requests are neither completed nor outstanding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.lookup import find_objects, object_keys
from sigmatrace.partition import Partition, Run, column
from sigmatrace.queue_pairs import DESCRIBED, described
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.table_order import grouped, in_order
from sigmatrace.text import count_text, counted
from sigmatrace.trace_format import CQE_AT_MOST, NO_POSITION, Layer, Queue

_QUEUE = ["proc", "object", "queue"]
_KIND = ["proc", "queue", "opcode", "status", "at_most"]
_LAST = ("proc", "object", "position")
_QUEUE_SUMS = ("requests", "cqes", "joined", "retired", "errors")
_QUEUE_TOPS = ("posted", "completed")
_RING_SLOTS = 32768  # the largest send queue of mlx5
_KIND_SUMS = ("count", "size_bytes", "timed", "total_ns")


@dataclass(frozen=True)
class Completed:
    """What some partitions saw.

    Attributes:
        queues: By process, object and queue: requests, completions, those of a known position,
            positions retired, those with an error status; positions posted and completed, by the
            highest one. After all partitions also ``visible``, whether completions can be seen;
            ``outstanding``; and ``gpu``, whether layer mlx5dv told of it.
        kinds: By process, queue, opcode, status, and whether times are upper bounds:
            completions, bytes, those whose request's time is known, and the sum, least and
            largest of their latencies.
        last: Process, object and position of requests of send queues behind the last completion.
        is_cut: Only a window of the run is there: what was posted and completed before it is not.
    """

    queues: pa.Table
    kinds: pa.Table
    last: pa.Table
    is_cut: bool = False


class Completion(Stage):
    """Makes the tables ``queues`` and ``latencies``."""

    name: ClassVar[str] = "completion"
    summary: ClassVar[SummaryKind] = "after"
    requires: ClassVar[Columns] = {
        "requests": {"proc": "i4", "object": "u4", "queue": "u1", "position": "u4"},
        "cqes": {
            "proc": "i4",
            "object": "u4",
            "queue": "u1",
            "position": "u4",
            "first": "u4",
            "opcode": "u1",
            "status": "u1",
            "flags": "u1",
            "size_bytes": "u4",
            "posted_tsc": "u8",
            "posted_ns": "i8",
            "t_ns": "i8",
        },
        "endpoints": DESCRIBED["endpoints"],
        "gpu_queues": {**DESCRIBED["gpu_queues"], "completions": "bool"},
    }
    produces: ClassVar[Columns] = {
        "queues": STAGE_TABLES["queues"],
        "latencies": STAGE_TABLES["latencies"],
    }

    def summarize(self, part: Partition) -> Completed:
        """Count the partition's requests and completions."""
        queues = _add_queues(pa.concat_tables([_posted(part), _seen(part)]))
        return Completed(queues, _add_kinds(_timed(part)), _last(_sends(part), queues))

    def combine(self, left: Completed, right: Completed) -> Completed:
        """Add both."""
        queues = _add_queues(pa.concat_tables([left.queues, right.queues]))
        return Completed(
            queues,
            _add_kinds(pa.concat_tables([left.kinds, right.kinds])),
            _last(pa.concat_tables([left.last, right.last]), queues),
        )

    def resolve(self, summary: Completed, run: Run) -> Completed:
        """Put both tables into order."""
        queues = in_order(summary.queues, _QUEUE)
        gpu, visible = _visible(queues, run)
        is_cut = run.window_ns is not None
        known = visible & ((column(queues, "joined") > 0) | (not is_cut))
        found = {
            "visible": pa.array(visible),
            "outstanding": _outstanding(queues, summary.last, gpu, known),
            "is_gpu": pa.array(gpu),
        }
        for name, values in found.items():
            queues = queues.append_column(name, values)
        return Completed(
            described(queues, run),
            in_order(summary.kinds, _KIND),
            summary.last,
            is_cut,
        )

    def results(self, resolved: Completed) -> Mapping[str, pa.Table]:
        """Return ``queues`` and ``latencies``; where no time is known, no least and largest."""
        queues = resolved.queues.select(list(STAGE_TABLES["queues"]))
        return {"queues": queues, "latencies": _known_limits(resolved.kinds)}

    def account(self, resolved: Completed) -> Mapping[str, object]:
        """Return requests and completions.

        Positions tell what was posted, also where records of requests were lost; so no queue has
        more records than positions, and none retires or receives more than that. Completions of an
        unknown position were posted, too: at least as many as there are.
        """
        whole = resolved.queues
        table = whole.filter(whole.column("visible"))
        gpu = table.filter(table.column("is_gpu"))
        verbs = table.filter(pc.invert(table.column("is_gpu")))
        send, own, shared = (verbs.filter(pc.equal(verbs.column("queue"), int(q))) for q in Queue)
        total = {name: _sum(whole.column(name)) for name in _QUEUE_SUMS}
        # In a window positions also tell of what lies before it: there the records count.
        tops = ("requests", "retired") if resolved.is_cut else _QUEUE_TOPS
        posted, completed = (_sum(send.column(name)) for name in tops)
        outstanding = _sum(send.column("outstanding")) if resolved.is_cut else posted - completed
        receives = [own.column("requests"), shared.column("requests")]
        pairs = [
            ("request records, at most those of its positions", table, "requests", "posted"),
            ("send requests retired, at most those completed", send, "retired", "completed"),
            ("slots of GPUs retired, at most those completed", gpu, "retired", "completed"),
            ("receives completed, at most those posted", own, "joined", "posted"),
        ]
        return {
            **total,
            "send_requests": _sum(send.column("requests")),
            "send_retired": _sum(send.column("retired")),
            "send_posted": posted,
            "send_completed": completed,
            "send_outstanding": outstanding,
            "send_not_visible": total["requests"] - _sum(table.column("requests")),
            "gpu_requests": _sum(gpu.column("requests")),
            "gpu_outstanding": _sum(gpu.column("outstanding")),
            "gpu_cqes": _sum(gpu.column("cqes")),
            "gpu_errors": _sum(gpu.column("errors")),
            "receives_posted": sum(map(_sum, receives))
            if resolved.is_cut
            else _at_least(own) + _at_least(shared),
            "receives_completed": _sum(own.column("cqes")) + _sum(shared.column("cqes")),
            "not_joined": total["cqes"] - total["joined"],
            "not_joined_shared": _sum(shared.column("cqes")) - _sum(shared.column("joined")),
            "balance": [
                {"name": "requests", "left": total["requests"], "right": "records.request"},
                {"name": "completions", "left": total["cqes"], "right": "records.cqe"},
                *(_at_most(*pair) for pair in pairs),
            ],
        }

    def lines(self, resolved: Completed, run: Run) -> Sequence[str]:
        """Return what completed of what was posted; nothing for a run without requests."""
        counts: Mapping[str, Any] = self.account(resolved)
        if not counts["requests"] and not counts["cqes"]:
            return ()
        names = ("completed", "posted", "outstanding")
        completed, sends, outstanding = (count_text(counts[f"send_{name}"]) for name in names)
        received, posted = (count_text(counts[f"receives_{x}"]) for x in ("completed", "posted"))
        errors = counts["errors"] - counts["gpu_errors"]
        unseen, seen = counts["send_not_visible"], counts["gpu_requests"]
        lines = [
            f"completed  {completed} of {sends} send requests, {outstanding} outstanding; "
            f"{received} of {posted} posted receives; {counted(errors, 'error')}"
        ]
        if resolved.is_cut:
            lines = [
                f"completed  in the window {completed} send requests ({sends} posted in it), "
                f"{received} receives ({posted}); {outstanding} outstanding at its end, as far as "
                f"completions in it tell; {counted(errors, 'error')}"
            ]
        if unseen + seen == counts["requests"] and counts["cqes"] == counts["gpu_cqes"]:
            lines = []
        if seen or counts["gpu_cqes"]:
            open_ = counts["gpu_outstanding"]
            least = "at least " if counts["gpu_errors"] else ""  # the NIC overwrites some
            wrong = least + counted(counts["gpu_errors"], "error")
            lines.append(
                f"completed  {count_text(seen - open_)} of {counted(seen, 'request')} of GPUs, "
                f"{count_text(open_)} outstanding; {wrong}; "
                "times are upper bounds"
            )
        if unseen:
            lines.append(f"completed  {counted(unseen, 'request')} of GPUs: not visible")
        return lines


def _visible(queues: pa.Table, run: Run) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which queues are of layer mlx5dv, and of which completions can be seen."""
    gpu = run.column("endpoints", "layer") == Layer.MLX5DV
    own = object_keys(*(run.column("endpoints", name)[gpu] for name in ("proc", "object")))
    sees = run.column("gpu_queues", "completions").astype(bool)
    seen = object_keys(*(run.column("gpu_queues", name)[sees] for name in ("proc", "object")))
    keys = object_keys(*(column(queues, name) for name in ("proc", "object")))
    is_gpu = np.isin(keys, own)
    return is_gpu, ~is_gpu | np.isin(keys, seen)


def _outstanding(
    queues: pa.Table, last: pa.Table, gpu: NDArray[np.bool_], visible: NDArray[np.bool_]
) -> pa.Array:
    """Return the requests of each queue that have not completed; null where that is not known."""
    queue = column(queues, "queue")
    found = column(queues, "posted") - column(queues, "completed")
    mine = np.flatnonzero(gpu & (queue == Queue.SEND))
    if mine.size:
        keys = object_keys(*(column(queues, name)[mine] for name in ("proc", "object")))
        at = find_objects(keys, *(column(last, name) for name in ("proc", "object")))
        found[mine] = np.bincount(at[at >= 0], minlength=mine.size)
    return pa.array(found, mask=~visible | (queue == Queue.SHARED))


def _sends(part: Partition) -> pa.Table:
    """Return process, object and position of the partition's requests of send queues."""
    sends = part.column("requests", "queue") == Queue.SEND
    table = {name: part.column("requests", name)[sends] for name in _LAST}
    table["position"] = table["position"].astype(np.int64)
    return pa.table(table)


def _last(rows: pa.Table, queues: pa.Table) -> pa.Table:
    """Return the rows behind the last completion of their queue, at most a ring of them."""
    send = queues.filter(pc.equal(queues.column("queue"), int(Queue.SEND)))
    keys = object_keys(*(column(send, name) for name in ("proc", "object")))
    order = np.argsort(keys, kind="stable")
    until = np.maximum(column(send, "completed"), column(send, "posted") - _RING_SLOTS)[order]
    at = find_objects(keys[order], *(column(rows, name) for name in ("proc", "object")))
    is_last = (at >= 0) & (column(rows, "position") >= np.append(until, 0)[at])
    return rows.filter(pa.array(is_last))


def _sum(values: Any) -> int:
    return int(pc.sum(values).as_py() or 0)


def _at_least(queues: pa.Table) -> int:
    """Return how many receives were posted, queue by queue at least those that completed."""
    return _sum(pc.max_element_wise(queues.column("posted"), queues.column("cqes")))


def _at_most(name: str, table: pa.Table, left: str, right: str) -> dict[str, object]:
    """Return the equation that, queue by queue, one column is at most another one."""
    fewer = pc.min_element_wise(table.column(left), table.column(right))
    return {"name": name, "left": _sum(table.column(left)), "right": _sum(fewer)}


def _frame(keys: Mapping[str, Any], sums: Mapping[str, Any], size: int) -> pa.Table:
    """Return a table of keys and of i8 numbers of queues; those that are not given are 0."""
    names = (*_QUEUE_SUMS, *_QUEUE_TOPS)
    columns = {name: sums.get(name, np.zeros(size, np.int64)) for name in names}
    return pa.table({**keys, **{name: np.asarray(x, np.int64) for name, x in columns.items()}})


def _posted(part: Partition) -> pa.Table:
    size = part.tables["requests"].num_rows
    keys = {name: part.column("requests", name) for name in _QUEUE}
    posted = part.column("requests", "position").astype(np.int64) + 1
    return _frame(keys, {"requests": np.ones(size), "posted": posted}, size)


def _seen(part: Partition) -> pa.Table:
    cqes = {name: part.column("cqes", name) for name in ("position", "first", "queue", "status")}
    size = cqes["position"].size
    joined = cqes["position"] != NO_POSITION
    span = (cqes["position"] - cqes["first"]).astype(np.int64) + 1  # modulo 2^32
    until = np.where(joined, cqes["position"].astype(np.int64) + 1, 0)
    sums = {
        "cqes": np.ones(size),
        "posted": until,
        "completed": until,
        "joined": joined,
        "retired": np.where(joined, span, 0),
        "errors": cqes["status"] != 0,
    }
    return _frame({name: part.column("cqes", name) for name in _QUEUE}, sums, size)


def _timed(part: Partition) -> pa.Table:
    known = part.column("cqes", "posted_tsc") != 0
    latency = part.column("cqes", "t_ns") - part.column("cqes", "posted_ns")
    keys = {name: part.column("cqes", name) for name in _KIND[:-1]}
    keys["at_most"] = part.column("cqes", "flags") & CQE_AT_MOST != 0
    low, high = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    return pa.table(
        {
            **keys,
            "count": np.ones(known.size, np.int64),
            "size_bytes": part.column("cqes", "size_bytes").astype(np.int64),
            "timed": known.astype(np.int64),
            "total_ns": np.where(known, latency, 0),
            "min_ns": np.where(known, latency, low),
            "max_ns": np.where(known, latency, high),
        }
    )


def _known_limits(kinds: pa.Table) -> pa.Table:
    """Return the table with null for the least and the largest of no latencies."""
    timed = pc.greater(kinds.column("timed"), 0)
    for name in ("min_ns", "max_ns"):
        limits = pc.if_else(timed, kinds.column(name), pa.scalar(None, pa.int64()))
        kinds = kinds.set_column(kinds.schema.get_field_index(name), name, limits)
    return kinds


def _add_queues(table: pa.Table) -> pa.Table:
    how = [*((name, "sum") for name in _QUEUE_SUMS), *((name, "max") for name in _QUEUE_TOPS)]
    return grouped(table, _QUEUE, how)


def _add_kinds(table: pa.Table) -> pa.Table:
    how = [*((name, "sum") for name in _KIND_SUMS), ("min_ns", "min"), ("max_ns", "max")]
    return grouped(table, _KIND, how)
