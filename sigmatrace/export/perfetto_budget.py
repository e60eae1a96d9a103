"""How large a trace would be, and how much time fits into a budget: from the index alone.

The index knows of each chunk its records, of which kind, and the times of the first and the last
one. Between these they are taken as evenly spread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sigmatrace.export.perfetto_chosen import Chosen
from sigmatrace.export.perfetto_tracks import Tracks
from sigmatrace.partition import Run
from sigmatrace.schema import TIMELINE_BINS, TIMELINE_CELLS
from sigmatrace.text import count_text, counted
from sigmatrace.trace_format import Schema
from sigmatrace.window import EVER_NS, text_of

MB = 10**6
_DIRECTIONS = 2
_COUNTER_BYTES = 26
"""Of a value of a counter, as measured with 4,096 ranks (docs/perfetto.md)."""
_BYTES = {
    Schema.OP: 45,
    Schema.COMPLETION: 28,
    Schema.REQUEST: 100,
    Schema.CQE: 125,
    Schema.DOORBELL: 80,
    Schema.KERNEL: 75,
}
"""Bytes of a record in the trace, with its arrow and its value of a counter, rounded up
(docs/perfetto.md has what was measured)."""
_TIMED_CALL_BYTES = 10
"""What an operation takes besides in mode ``full``, where many have an end."""
_POSTED_BYTES = 65
"""What one of a process with queue pairs takes besides: it has more arguments, and is shown at its
queue pair, too, or at the one that it reaches."""


@dataclass(frozen=True)
class Plan:
    """What will be shown.

    Attributes:
        chosen: What was asked for, within the budget.
        asked: What was asked for.
        base_ns: Unix ns of the run's zero.
        budget_bytes: The budget.
        needed_bytes: Estimate of all that was asked for.
        counter_bytes: Estimate of the counters, which are shown whatever the budget.
        asked_end_ns: Unix ns of the end that was asked for.
        is_cut: Whether the budget has cut the time.
        is_part: Other files show the rest.
    """

    chosen: Chosen
    asked: Chosen
    base_ns: int = 0
    budget_bytes: int = 0
    needed_bytes: int = 0
    counter_bytes: int = 0
    asked_end_ns: int = EVER_NS
    is_cut: bool = False
    is_part: bool = False

    def notes(self, counts: Mapping[str, int]) -> Iterator[str]:
        """Yield what a user must know of what is not shown, and how to get it."""
        yield from (f"{one} in this run" for one in self.chosen.unknown)
        if self.asked.is_everything and not self.is_cut:
            return
        if self.is_cut:
            yield self._cut()
        if beyond := counts["beyond_budget"]:
            yield f"{counted(beyond, 'record is', 'records are')} left out, for the budget"
        if self.is_part or self.asked.is_nothing:
            return
        if others := counts["not_chosen"] - beyond:
            yield f"{counted(others, 'record is', 'records are')} left out, as chosen"
        if counts["slices"] + counts["instants"] == counts["kernels_absent"] and not beyond:
            yield "nothing matches the choice: there are counters alone"

    def _cut(self) -> str:
        """Return what of the time is shown, and what to type for the rest."""
        needed, counters = (-(-x // MB) for x in (self.needed_bytes, self.counter_bytes))
        budget = f"the budget is {count_text(self.budget_bytes // MB)} MB"
        if self.chosen.is_nothing:
            return (
                f"counters alone take about {count_text(counters)} MB, {budget}: no slices fit "
                f"(export.perfetto.budget_mb={self.counter_bytes // MB + 1} or more shows some, "
                f"export.perfetto.budget_mb={needed} all that was asked for)"
            )
        shown = text_of(self.chosen.begin_ns, self.chosen.end_ns, self.base_ns)
        rest = text_of(self.chosen.end_ns, self.asked_end_ns, self.base_ns)
        return (
            f"only {shown} is shown as slices: all that was asked for would take about "
            f"{count_text(needed)} MB, {budget} "
            f"(export.perfetto.window={rest} shows what follows, "
            f"export.perfetto.budget_mb={needed} everything)"
        )


def plan(
    chosen: Chosen, budget_bytes: int, run: Run, tracks: Tracks, is_part: bool = False
) -> Plan:
    """Return what will be shown of a run: the longest time from the choice's begin that fits.

    Where not even the counters do, this is nothing but these.

    Choices of queue pairs and of operations are not in the estimate: the index does not count
    these. So with them less than the budget is used.

    Args:
        chosen: What was asked for.
        budget_bytes: The budget.
        run: The run with its table ``chunk_times``.
        tracks: Those of the run.
        is_part: Other files show the rest.
    """
    base_ns = run.fact_ns("base_ns")
    first, last = run.window_ns or (-EVER_NS, EVER_NS)
    asked_end_ns = min(chosen.end_ns, last)
    cost = _Cost.of(run, tracks, chosen, max(chosen.begin_ns, first))
    asked = cost.before(asked_end_ns) if asked_end_ns > chosen.begin_ns else 0.0
    needed, room = asked + cost.counters, budget_bytes - cost.counters
    numbers = base_ns, budget_bytes, int(needed), cost.counters, asked_end_ns
    made = Plan(chosen, chosen, *numbers, is_part=is_part)
    if needed <= budget_bytes or not asked:
        return made
    begin_ns = int(cost.t_ns[0])
    end_ns = cost.end(room) if room > 0 else begin_ns
    fits = replace(chosen, end_ns=end_ns) if end_ns > begin_ns else chosen.nothing
    return replace(made, chosen=fits, is_cut=True)


@dataclass(frozen=True)
class _Cost:
    """How many bytes a window takes that begins where the choice does, by its end.

    Attributes:
        t_ns: ``(k,)`` i8, ascending, from the window's begin on.
        total: ``(k,)`` f8, bytes of a window that ends then.
        counters: Bytes of counters, whatever is shown beside them.
    """

    t_ns: np.ndarray
    total: np.ndarray
    counters: int

    @classmethod
    def of(cls, run: Run, tracks: Tracks, chosen: Chosen, begin_ns: int) -> _Cost:
        names = ("proc", "schema", "count", "first_ns", "last_ns")
        proc, schema, count, first, last = (run.column("chunk_times", name) for name in names)
        operations = np.bincount(
            proc, np.where(schema == Schema.OP, count, 0), run.tables["processes"].num_rows
        )
        if chosen.described is not None:
            operations = operations[chosen.described]
        values = _values(operations, len(np.unique(run.column("channels", "layer"))))
        if chosen.procs is not None:
            use = chosen.procs[proc]
            proc, schema, count, first, last = (x[use] for x in (proc, schema, count, first, last))
        size = count * _bytes_of(run, tracks, proc, schema)
        t_ns, total = cumulated(first, last, size)
        if t_ns.size:
            begin_ns, later = max(begin_ns, int(t_ns[0])), t_ns > begin_ns
            gone = np.interp(begin_ns, t_ns, total)
            t_ns = np.concatenate([np.array([begin_ns]), t_ns[later]])
            total = np.concatenate([[0.0], total[later] - gone])
        return cls(t_ns, total, values * _COUNTER_BYTES)

    def before(self, end_ns: int) -> float:
        return float(np.interp(end_ns, self.t_ns, self.total)) if self.t_ns.size else 0.0

    def end(self, budget: float) -> int:
        """Return the latest end of which the bytes are within a budget too small for all."""
        place = int(np.searchsorted(self.total, budget, side="right"))
        step, room = self.total[place] - self.total[place - 1], budget - self.total[place - 1]
        width = int(self.t_ns[place] - self.t_ns[place - 1])
        return int(self.t_ns[place - 1]) + int(width * room / step)


def _values(operations: np.ndarray, layers: int) -> int:
    """Return how many values the counters of processes have.

    Each bin with traffic has one, and each first bin without traffic a zero. Of m operations that
    lie anywhere in n bins, a share of e^(-m / n) of the bins is empty; so there are at most
    n * (1 - e^(-2 m / n)) values of one counter.

    Args:
        operations: ``(n,)`` of each process.
        layers: Counters of each process and direction; without channels there are none.
    """
    if not layers:
        return 0
    per_counter = operations / (_DIRECTIONS * layers)
    values = TIMELINE_BINS * -np.expm1(-2 * per_counter / TIMELINE_BINS)
    return min(int(values.sum()) * _DIRECTIONS * layers, 2 * TIMELINE_CELLS)


def _bytes_of(run: Run, tracks: Tracks, proc: np.ndarray, schema: np.ndarray) -> np.ndarray:
    """Return bytes ``(n,)`` i8 of a record of each chunk."""
    per_record = np.zeros(256, np.int64)
    per_record[[int(one) for one in _BYTES]] = list(_BYTES.values())
    size: np.ndarray = per_record[schema]
    modes = np.array(
        [mode == "full" for mode in run.tables["processes"].column("mode").to_pylist()]
    )
    posts = np.zeros(modes.size, bool)
    posts[tracks.qps.proc] = True
    for longer, more in ((modes, _TIMED_CALL_BYTES), (posts, _POSTED_BYTES)):
        size += np.where((schema == Schema.OP) & longer[proc], more, 0)
    return size


def cumulated(
    first: np.ndarray, last: np.ndarray, amount: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return how much lies before each point in time at which the slope changes.

    Args:
        first: ``(n,)`` i8, where an amount begins.
        last: ``(n,)`` i8, where it ends, not before; it is spread evenly in between.
        amount: ``(n,)``.

    Returns:
        Points ``(k,)`` i8, ascending, and what lies before each, ``(k,)`` f8; straight lines
        between them. Complexity O(n log n).
    """
    stop = np.maximum(last, first) + 1
    slope = amount / (stop - first)
    points, place = np.unique(np.concatenate([first, stop]), return_inverse=True)
    change = np.bincount(place, np.concatenate([slope, -slope]), points.size)
    gained = np.cumsum(change)[:-1] * np.diff(points)
    return points, np.concatenate([[0.0], np.cumsum(gained)])[: points.size]
