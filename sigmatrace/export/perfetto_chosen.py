"""Which events a trace shows as slices and instants: by time, process, queue pair and operation.

Records are chosen table by table, before they become rows; counters are of the whole run whatever
is chosen. Who looks up another table's rows (completions: their requests; doorbells: what they
announce) still sees all of these.

A choice of queue pairs leaves only what goes through them; one of operations only what is, or
completes, one of these. Neither concerns regions, instants of the program, and kernels; nor does
that of operations concern doorbells, which stand for several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.export.perfetto_choice import Choice, Ranges
from sigmatrace.export.perfetto_rows import Rows
from sigmatrace.export.perfetto_targets import silent_targets
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.lookup import find_objects
from sigmatrace.partition import Partition
from sigmatrace.trace_format import Op, Queue, WcOpcode, WrOpcode
from sigmatrace.window import EVER_NS, Window

TABLES = ("ops", "completions", "requests", "cqes", "doorbells", "kernels")
"""Tables of which each row is a slice or an instant, and may be left out."""
Mask = NDArray[np.bool_]

_ATOMICS = (Op.ATOMIC, Op.ATOMIC_FETCH)
_PUTS = (Op.PUT, Op.PUT_DATA)
_OF_REQUEST = {
    WrOpcode.RDMA_WRITE: (Op.PUT,),
    WrOpcode.RDMA_WRITE_WITH_IMM: (Op.PUT_DATA,),
    WrOpcode.SEND: (Op.SEND,),
    WrOpcode.SEND_WITH_IMM: (Op.SEND,),
    WrOpcode.SEND_WITH_INV: (Op.SEND,),
    WrOpcode.TSO: (Op.SEND,),
    WrOpcode.RDMA_READ: (Op.GET,),
    WrOpcode.ATOMIC_CMP_AND_SWP: _ATOMICS,
    WrOpcode.ATOMIC_FETCH_AND_ADD: _ATOMICS,
    WrOpcode.ATOMIC_WRITE: _PUTS,
    WrOpcode.LOCAL_INV: (Op.INVALIDATE,),
    WrOpcode.BIND_MW: (Op.BIND,),
    WrOpcode.FLUSH: (Op.FLUSH,),
    WrOpcode.RECEIVE: (Op.RECV,),
}
_OF_COMPLETION = {
    WcOpcode.SEND: (Op.SEND,),
    WcOpcode.TSO: (Op.SEND,),
    WcOpcode.RDMA_WRITE: _PUTS,
    WcOpcode.ATOMIC_WRITE: _PUTS,
    WcOpcode.RDMA_READ: (Op.GET,),
    WcOpcode.COMP_SWAP: _ATOMICS,
    WcOpcode.FETCH_ADD: _ATOMICS,
    WcOpcode.BIND_MW: (Op.BIND,),
    WcOpcode.LOCAL_INV: (Op.INVALIDATE,),
    WcOpcode.FLUSH: (Op.FLUSH,),
    WcOpcode.RECV: (Op.RECV,),
    WcOpcode.RECV_RDMA_WITH_IMM: (Op.RECV,),
}
"""Operations that a request or a completion may be; an opcode that is not here is none of them."""


@dataclass(frozen=True)
class Chosen:
    """A choice for one run.

    Attributes:
        begin_ns, end_ns: Unix ns; what overlaps this is shown.
        procs: ``(processes,)`` bool, None: all.
        qps: ``(queue pairs + 1,)`` bool, None: all, also what goes through none. The last one
            stands for what goes through none.
        ops: ``(256,)`` bool, None: all.
        described: ``(processes,)`` bool, processes that are there at all, with their counters;
            None: all.
        unknown: What was asked for and is not in the run, one phrase each.
    """

    begin_ns: int = -EVER_NS
    end_ns: int = EVER_NS
    procs: Mask | None = None
    qps: Mask | None = None
    ops: Mask | None = None
    described: Mask | None = None
    unknown: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, choice: Choice, tracks: Tracks, base_ns: int) -> Chosen:
        """Return the choice for a run.

        Args:
            choice: What was asked for.
            tracks: Those of the run.
            base_ns: Unix ns of the run's zero.
        """
        begin_ns, end_ns = (choice.window or Window()).at(base_ns)
        ranks = tracks.run.column("processes", "rank").astype(np.int64)
        qpn = tracks.qps.qpn.astype(np.int64)
        ops = None
        if choice.ops is not None:
            ops = np.zeros(256, bool)
            ops[[int(op) for op in choice.ops]] = True
        return cls(
            begin_ns,
            end_ns,
            None if choice.ranks is None else _within(ranks, choice.ranks),
            None if choice.qps is None else np.append(_within(qpn, choice.qps), False),
            ops,
            None,
            (
                *_unknown("rank {}", choice.ranks, ranks),
                *_unknown("QP {0:#x} ({0})", choice.qps, qpn),
            ),
        )

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        limits = self.procs, self.qps, self.ops
        return all(one is None for one in limits) and not self.has_window

    @property
    def has_window(self) -> bool:
        """Whether some time is left out."""
        return self.begin_ns > -EVER_NS or self.end_ns < EVER_NS

    @property
    def is_nothing(self) -> bool:
        """Whether all is left out, as in an overview."""
        return self.begin_ns == self.end_ns

    @property
    def nothing(self) -> Chosen:
        """The choice in which all is left out."""
        return replace(self, begin_ns=-EVER_NS, end_ns=-EVER_NS)

    def only(self, part: Partition, table: str, tracks: Tracks) -> Partition:
        """Return the partition with the chosen rows of a table alone."""
        return (
            part if self.is_everything else _reduced(part, table, self._rows(part, table, tracks))
        )

    def count(self, part: Partition, tracks: Tracks) -> int:
        """Return how many rows of the partition are chosen, of all ``TABLES``."""
        if self.is_everything:
            return sum(part.tables[table].num_rows for table in TABLES)
        return sum(int(np.count_nonzero(self._rows(part, table, tracks))) for table in TABLES)

    def _rows(self, part: Partition, table: str, tracks: Tracks) -> Mask:
        """Return which rows of a table are chosen."""
        find_qp, of_code, code = _KEYS.get(table, (None, None, ""))
        qp = None if find_qp is None or self.qps is None else find_qp(part, tracks)
        is_op = None
        if self.ops is not None and of_code is not None:
            is_op = of_code(self.ops)[part.column(table, code)]
        begin_ns, end_ns = _spans(part, table)
        return self._mask(begin_ns, end_ns, part.column(table, "proc"), qp, is_op)

    def reaching(self, part: Partition, tracks: Tracks) -> Partition:
        """Return the partition with the operations that reach a chosen queue pair unseen.

        Process and queue pair are here those that are reached, not those of the operation.
        """
        if self.is_everything:
            return part
        if tracks.qps.keys.size == 0:
            return part.with_table("ops", part.tables["ops"].slice(0, 0))
        target = silent_targets(part, tracks)
        proc = np.append(tracks.qps.proc, 0)[target]
        t_ns = part.column("ops", "t_ns")
        is_op = None if self.ops is None else self.ops[part.column("ops", "op")]
        mask = self._mask(t_ns, t_ns, proc, target, is_op) & (target >= 0)
        return _reduced(part, "ops", mask)

    def regions(self, rows: Rows, tracks: Tracks) -> Rows:
        """Return the chosen regions and instants of the program."""
        if self.is_everything:
            return rows
        thread = rows.track.astype(np.int64) - tracks.number(Track.REGIONS, 0)
        proc = tracks.run.column("threads", "proc")[thread]
        end_ns = rows.begin_ns + np.maximum(rows.length_ns, 0)
        return take(rows, self._mask(rows.begin_ns, end_ns, proc, None, None))

    def _mask(
        self,
        begin_ns: np.ndarray,
        end_ns: np.ndarray,
        proc: np.ndarray,
        qp: np.ndarray | None,
        is_op: Mask | None,
    ) -> Mask:
        mask = overlaps(begin_ns, end_ns, self.begin_ns, self.end_ns)
        if self.procs is not None:
            mask &= self.procs[proc]
        if self.qps is not None and qp is not None:
            mask &= self.qps[qp]
        if is_op is not None:
            mask &= is_op
        return mask


def overlaps(begin_ns: np.ndarray, end_ns: np.ndarray, low_ns: int, high_ns: int) -> Mask:
    """Return which of some spans have a part in ``[low_ns, high_ns)``.

    Args:
        begin_ns: ``(n,)`` i8.
        end_ns: ``(n,)`` i8; an instant, which ends where it begins, is inside or not. A span that
            ends at ``low_ns`` has no part inside.
        low_ns: Begin of the window.
        high_ns: Its end.
    """
    mask: Mask = (begin_ns < high_ns) & ((end_ns > low_ns) | (begin_ns >= low_ns))
    return mask


def take(rows: Rows, mask: Mask) -> Rows:
    """Return some of the rows."""
    names = ("track", "begin_ns", "length_ns", "depth", "name", "shown", "flow")
    columns = {name: getattr(rows, name)[mask] for name in names}
    return replace(rows, **columns, values=[value[mask] for value in rows.values])


def _reduced(part: Partition, table: str, mask: Mask) -> Partition:
    if mask.all():
        return part
    kept = part.tables[table].filter(pa.array(mask))
    return part.with_table(table, kept.combine_chunks())


def _spans(part: Partition, table: str) -> tuple[np.ndarray, np.ndarray]:
    """Return when the rows of a table begin and end."""
    t_ns = part.column(table, "t_ns")
    if table == "cqes":
        timed = (part.column(table, "posted_tsc") != 0) & (
            part.column(table, "queue") == Queue.SEND
        )
        return np.where(timed, np.minimum(part.column(table, "posted_ns"), t_ns), t_ns), t_ns
    length = {"ops": "call_ns", "kernels": "duration_ns"}.get(table)
    return t_ns, t_ns if length is None else t_ns + np.maximum(part.column(table, length), 0)


def _qps_of_channels(part: Partition, tracks: Tracks) -> np.ndarray:
    qps: np.ndarray = tracks.qps.channel[part.column("ops", "channel")]
    return qps


def _no_qps(part: Partition, tracks: Tracks) -> np.ndarray:
    return np.full(part.tables["completions"].num_rows, -1)


def _qps_of_objects(table: str, name: str) -> Callable[[Partition, Tracks], np.ndarray]:
    def find(part: Partition, tracks: Tracks) -> np.ndarray:
        return find_objects(tracks.qps.keys, part.column(table, "proc"), part.column(table, name))

    return find


def _same(ops: Mask) -> Mask:
    return ops


def _by_opcode(meaning: Mapping[Any, Sequence[Op]]) -> Callable[[Mask], Mask]:
    def of_ops(ops: Mask) -> Mask:
        found = np.zeros(256, bool)
        for opcode, may_be in meaning.items():
            found[int(opcode)] = any(ops[int(op)] for op in may_be)
        return found

    return of_ops


_Qps = Callable[[Partition, Tracks], np.ndarray]
_KEYS: dict[str, tuple[_Qps, Callable[[Mask], Mask] | None, str]] = {
    "ops": (_qps_of_channels, _same, "op"),
    "completions": (_no_qps, _same, "op"),
    "requests": (_qps_of_objects("requests", "object"), _by_opcode(_OF_REQUEST), "opcode"),
    "cqes": (_qps_of_objects("cqes", "object"), _by_opcode(_OF_COMPLETION), "opcode"),
    "doorbells": (_qps_of_objects("doorbells", "qp"), None, ""),
}
"""By table: the queue pair of each row (-1: none); and from chosen operations to chosen codes, and
the column of codes. Tables that are not here have neither."""


def _within(values: NDArray[np.int64], ranges: Ranges) -> Mask:
    found = np.zeros(values.size, bool)
    for first, last in ranges:
        found |= (values >= first) & (values <= last)
    return found


def _unknown(form: str, ranges: Ranges | None, values: NDArray[np.int64]) -> Iterator[str]:
    """Yield the ranges in which there is nothing; ``form`` names one number."""
    for first, last in ranges or ():
        if not ((values >= first) & (values <= last)).any():
            yield "no " + " to ".join(form.format(one) for one in sorted({first, last}))
