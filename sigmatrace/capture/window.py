"""Which chunks a window of time needs, and which of their records are in it.

All that is needed of a chunk is in the index: the times of its first and last record. Chunks that
lie wholly outside are not read; those at an edge are, and their records outside are left out.

A call or a kernel that began before the window and ended in it is in it. The time of a record is
that of its beginning, so the chunk that holds it may lie before the window. A thread stores its
calls in the order of their ends (mode ``full``, the only one that knows them). So a call that
began before another one that was stored later has ended before that one began: no call of a chunk
reaches farther than the next later chunk whose last record began after all of the chunk's. How long
kernels take nothing tells, and they are few: their chunks are read from the beginning on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sigmatrace.capture.index import FileIndex
from sigmatrace.trace_format import QUEUE_PAIR_LAYERS, RECORDS, Op, Schema

CALL_TICKS_MAX = 2**32 - 1
"""No call is known to be longer (``aux`` of an ``op`` record)."""
_TIMED = [int(schema) for schema, dtype in RECORDS.items() if "t_tsc" in (dtype.names or ())]


@dataclass(frozen=True)
class Cut:
    """A window in the time stamp counter of one process.

    Attributes:
        low: The first tick in it.
        high: The first tick behind it.
        untimed: ``(k,)`` u4, ids of channels whose operations do not tell how long they took.
    """

    low: int
    high: int
    untimed: NDArray[np.uint32]

    @classmethod
    def of(cls, index: FileIndex, low: int, high: int) -> Cut:
        """Return the window of a file's process."""
        layers = index.channels["layer"]
        return cls(low, high, index.channels["id"][np.isin(layers, QUEUE_PAIR_LAYERS)])

    def needs(self, chunks: np.ndarray, mode: str) -> NDArray[np.bool_]:
        """Return which chunks may hold records in the window.

        Args:
            chunks: ``(n,)``, dtype ``index.CHUNK``, of one file.
            mode: Of its process.
        """
        low, high = np.uint64(self.low), np.uint64(self.high)
        reach = chunks["last_tsc"].copy()
        if mode == "full":
            for thread in np.unique(chunks["thread"][chunks["schema"] == Schema.OP]):
                mine = (chunks["schema"] == Schema.OP) & (chunks["thread"] == thread)
                reach[mine] = _reach(chunks[mine])
        reach[chunks["schema"] == Schema.KERNEL] = np.uint64(2**64 - 1)
        found: NDArray[np.bool_] = np.isin(chunks["schema"], _TIMED)
        found &= (chunks["first_tsc"] < high) & (reach >= low)
        return found

    def holds(self, first_tsc: int, last_tsc: int) -> bool:
        """Return whether all records that begin between these times are in the window."""
        return first_tsc >= self.low and last_tsc < self.high

    def inside(self, schema: Schema, records: np.ndarray) -> NDArray[np.bool_]:
        """Return which records are in the window.

        Args:
            schema: Theirs, of those that have times.
            records: ``(n,)``, dtype ``RECORDS[schema]``.
        """
        low, high = np.uint64(self.low), np.uint64(self.high)
        begin = records["t_tsc"]
        found: NDArray[np.bool_] = (begin < high) & (begin >= low)
        length = None
        if schema == Schema.OP:
            timed = (records["op"] != Op.RECV) & ~np.isin(records["channel"], self.untimed)
            length = np.where(timed, records["aux"], 0).astype(np.uint64)
        elif schema == Schema.KERNEL:
            length = records["duration_tsc"]
        if length is not None:
            found |= (begin < low) & (length > low - begin)
        return found


def _reach(chunks: np.ndarray) -> NDArray[np.uint64]:
    """Return by chunk of one thread how far a call may reach that it holds."""
    order = np.argsort(chunks["seq"], kind="stable")
    last = chunks["last_tsc"][order]
    longest = np.minimum(last, np.uint64(2**64 - 1 - CALL_TICKS_MAX)) + np.uint64(CALL_TICKS_MAX)
    reach = np.empty_like(last)
    later: list[int] = []  # last ticks of later chunks, those that a nearer one does not hide
    for place in range(last.size - 1, -1, -1):
        mine = int(last[place])
        while later and later[-1] <= mine:
            later.pop()
        reach[order[place]] = min(int(longest[place]), later[-1] if later else 2**64 - 1)
        later.append(mine)
    return reach
