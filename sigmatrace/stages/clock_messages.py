"""Clocks corrected by messages, and whether that is called for.

A clock here is a map of ``Clocks``: that of a host, and of a process that is fitted alone. What is
estimated from a sample of messages (``skew.py``) is added to the maps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Run, column
from sigmatrace.stages.clock_columns import NEVER_NS, Clocks, unix_ns, with_chunks
from sigmatrace.stages.clock_sample import Sample, messages_of
from sigmatrace.stages.skew import Correction, Skew, estimate
from sigmatrace.stages.skew_ties import compared
from sigmatrace.text import count_text, counted

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NAMED = 20
"""At most this many hosts are named in the ledger; the count is complete."""
SHOWN = 5
"""Hosts that a line names."""


def check(clocks: Clocks, sample: Sample) -> Clocks:
    """Return the clocks with what the ledger says of messages received before they were sent."""
    t_ns, _ = unix_ns(clocks, sample.t_tsc, sample.proc)
    send, receive = sample.pairs()
    clock = clocks.map_of_proc[sample.proc]
    between = clock[send] != clock[receive]
    send, receive = send[between], receive[between]
    early = t_ns[send] - t_ns[receive]
    error = column(clocks.quality, "error_ns")
    error = np.where(np.isfinite(error), error, 0.0)[sample.proc]
    number = clocks.ref_tsc.size
    together = compared(clock[send].astype(np.int64), clock[receive].astype(np.int64), number)
    found = {
        "looked_at": int(early.size),
        "without_other_end": int(sample.flow.size - 2 * early.size),
        "received_before_sent": int((early > 0).sum()),
        "beyond_error": int((early > error[send] + error[receive]).sum()),
        "worst_violation_ns": int(early.max(initial=0)),
        "not_checked": _named(clocks, ~together & (number > 1)),
    }
    return replace(clocks, ledger={**clocks.ledger, "messages": found})


def corrected(clocks: Clocks, sample: Sample, run: Run) -> Clocks:
    """Return clocks corrected by the messages of a sample; as they are if that is no better."""
    t_ns, _ = unix_ns(clocks, sample.t_tsc, sample.proc)
    messages = messages_of(sample, t_ns, clocks.map_of_proc)
    number = clocks.ref_tsc.size
    ends = np.concatenate([messages.src, messages.dst])
    count = np.bincount(ends, minlength=number)
    good = column(clocks.quality, "calibrated")
    calibrated = np.zeros(number, bool)
    calibrated[clocks.map_of_proc[good]] = True
    loose = ~clocks.is_sure
    preferred = np.lexsort((-count, loose, ~calibrated))[: int(calibrated.sum())]
    spans = _spans(clocks, number)
    skew = estimate(messages, number, preferred.tolist(), spans, loose)
    moved = _moved(clocks, skew.corrections)
    before = messages.send_ns - messages.receive_ns
    after_ns, _ = unix_ns(moved, sample.t_tsc, sample.proc)
    again = messages_of(sample, after_ns, clocks.map_of_proc)
    after = again.send_ns - again.receive_ns
    found = _Found(skew, messages.src, messages.dst, before, after)
    if found.is_worse:
        return replace(clocks, ledger=found.told(clocks), hosts=found.table(clocks))
    moved = replace(
        moved,
        span_ns=_moved_spans(clocks, skew.corrections),
        quality=_quality(clocks, found.bound_ns),
        ledger=found.told(clocks),
        hosts=found.table(clocks),
    )
    return with_chunks(moved, run, np.ones(good.size, bool))


@dataclass(frozen=True)
class _Found:
    """What messages say of the clocks.

    Attributes:
        skew: The corrections.
        src, dst: ``(messages,)`` i8, the clocks of both ends.
        before, after: ``(messages,)`` i8 ns, by how much each was received before it was sent, by
            clocks as they are and corrected; negative: after.
    """

    skew: Skew
    src: Ints
    dst: Ints
    before: Ints
    after: Ints

    @property
    def is_worse(self) -> bool:
        """Whether the correction leaves more violations than there were."""
        return int((self.after > 0).sum()) > int((self.before > 0).sum())

    @property
    def reference(self) -> int:
        """The clock that most others are corrected to, the best one of equal ones."""
        tied = np.bincount(self.skew.reference, minlength=self.skew.reference.size)
        busy = self.skew.messages
        return int(np.lexsort((-busy, -tied))[0])

    @property
    def bound_ns(self) -> Floats:
        """By how much each clock may be off the reference; inf: it is not tied to it."""
        bound = np.where(self.skew.reference == self.reference, self.skew.bound_ns, np.inf)
        bound[self.reference] = 0.0
        return bound

    def told(self, clocks: Clocks) -> dict[str, Any]:
        """Return what the ledger says."""
        bound, busy = self.bound_ns, self.skew.messages > 0
        loose = ~np.isfinite(bound)
        strange = (self.skew.reference == self.reference) & loose
        apart = (
            ~strange
            & loose
            & (np.bincount(self.skew.reference, minlength=loose.size) > 1)[self.skew.reference]
        )
        found = {
            "looked_at": int(self.src.size),
            "received_before_sent": int((self.before > 0).sum()),
            "worst_violation_ns": int(self.before.max(initial=0)),
            "received_before_sent_after": int((self.after > 0).sum()),
            "beyond_error_after": self._beyond_error(clocks),
            "worst_violation_after_ns": int(self.after.max(initial=0)),
            "left_aside": int(self.skew.left_aside.sum()),
            "dropped": self.is_worse,
            "reference": clocks.names[self.reference],
            "bound_ns": float(bound[np.isfinite(bound)].max(initial=0)),
            "clocks": len(clocks.names),
            "tied": int((~loose).sum()),
            "parts": self.skew.parts,
            "no_messages": _named(clocks, ~busy & loose),
            "one_sided": _named(clocks, busy & loose & ~strange & ~apart),
            "apart": _named(clocks, apart),
            "contradictory": _named(clocks, strange),
            "bent": _named(clocks, self.skew.bends > 0),
        }
        return {**clocks.ledger, "messages": found}

    def _beyond_error(self, clocks: Clocks) -> int:
        """Return how many violations are left that no error which is stated explains.

        A clock without a bound states none.
        """
        bound = self.bound_ns
        error = np.zeros(bound.size)
        stated = _error_ns(clocks, bound)
        stated = np.where(np.isfinite(stated), stated, 0.0)
        np.maximum.at(error, clocks.map_of_proc, stated)
        limit = error[self.src] + error[self.dst]
        return int((self.after > np.maximum(limit, 0.0)).sum())

    def table(self, clocks: Clocks) -> pa.Table:
        """Return the table ``clock_hosts``."""
        number = len(clocks.names)
        ends = (self.src, self.dst)
        before, after = (
            sum(np.bincount(end[early > 0], minlength=number) for end in ends)
            for early in (self.before, self.before if self.is_worse else self.after)
        )
        used = not self.is_worse
        middle = [int(one.at_ns[0] // 2 + one.at_ns[-1] // 2) for one in self.skew.corrections]
        offset = [
            int(one.of(np.array([at]))[0]) * used
            for one, at in zip(self.skew.corrections, middle, strict=True)
        ]
        bound = self.bound_ns if used else np.full(number, np.inf)
        columns = {
            "host": pa.array(clocks.names, pa.string()),
            "reference": pa.array([clocks.names[one] for one in self.skew.reference], pa.string()),
            "offset_ns": pa.array(offset, pa.int64()),
            "drift_ppm": np.array([one.drift_ppm * used for one in self.skew.corrections]),
            "bound_ns": bound,
            "tied": np.isfinite(bound),
            "steps": self.skew.bends.astype(np.int32) * used,
            "messages": self.skew.messages.astype(np.uint64),
            "violations_before": np.asarray(before).astype(np.uint64),
            "violations_after": np.asarray(after).astype(np.uint64),
        }
        return pa.table(columns)


def lines_of(clocks: Clocks) -> Iterator[str]:
    """Yield what the closing summary says of messages; nothing where they bear clocks out."""
    found = clocks.ledger.get("messages", {})
    if "dropped" not in found:
        if found.get("not_checked", {}).get("count"):
            yield (
                f"             {_few(found['not_checked'])}: not compared with other hosts, as no "
                "messages to them and back were seen at both ends"
            )
        return
    before, after = found["received_before_sent"], found["received_before_sent_after"]
    if not found["looked_at"]:
        yield "clocks     not corrected: no message between hosts was seen at both ends"
        return
    total = counted(found["looked_at"], "message")
    if found["dropped"]:
        yield (
            f"clocks     not corrected: {count_text(before)} of {total} were received before they "
            f"were sent; corrected, {count_text(after)} would be"
        )
        return
    if after:
        left = (
            f"; of these {count_text(found['beyond_error_after'])} by more than the stated errors, "
            f"at most by {count_text(found['worst_violation_after_ns'])} ns"
        )
    else:
        left = ""
    limit = count_text(math.ceil(found["bound_ns"]))
    which = f"{count_text(found['tied'])} of {count_text(found['clocks'])} hosts"
    yield (
        f"clocks     corrected by messages: {which} to {found['reference']}, within {limit} ns; "
        f"received before sent: {count_text(before)} of {total} before, {count_text(after)} after"
        f"{left}"
    )
    if found["parts"] > 1:
        parts = count_text(found["parts"])
        yield f"             they drift unevenly: corrections are lines in {parts} parts of the run"
    for key, what in (
        ("no_messages", "as it is: no message to or from another host was seen at both ends"),
        ("one_sided", "corrected without a bound: messages lead in one direction alone"),
        ("apart", "tied to each other, not to the reference, as no messages lead there and back"),
        (
            "contradictory",
            "corrected without a bound: its messages are too few, or contradict each other",
        ),
        ("bent", "steps, or drifts otherwise from somewhere on"),
    ):
        if found[key]["count"]:
            yield f"             {_few(found[key])}: {what}"


def _few(named: Mapping[str, Any]) -> str:
    """Return some of the names that ``_named`` returned."""
    more = ", ..." if named["count"] > SHOWN else ""
    return f"{', '.join(named['first'][:SHOWN])}{more}"


def _named(clocks: Clocks, chosen: NDArray[np.bool_]) -> dict[str, Any]:
    names = [clocks.names[one] for one in np.flatnonzero(chosen).tolist()]
    return {"count": len(names), "first": names[:NAMED]}


def _spans(clocks: Clocks, number: int) -> Ints:
    """Return by clock when its processes began and ended, ``(clocks, 2)`` i8 ns."""
    spans = np.tile(np.array([2**63 - 1, NEVER_NS]), (number, 1))
    known = (clocks.span_ns[:, 0] != NEVER_NS) & column(clocks.quality, "calibrated")
    which = clocks.map_of_proc[known]
    np.minimum.at(spans[:, 0], which, clocks.span_ns[known, 0])
    np.maximum.at(spans[:, 1], which, clocks.span_ns[known, 1])
    return spans


def _moved_spans(clocks: Clocks, corrections: Sequence[Correction]) -> Ints:
    """Return ``Clocks.span_ns`` corrected.

    When a process that is not calibrated began its host's clock told, which is not the one that is
    corrected here.
    """
    span_ns = clocks.span_ns.copy()
    calibrated = column(clocks.quality, "calibrated")
    for proc in np.flatnonzero(calibrated & (span_ns[:, 0] != NEVER_NS)).tolist():
        span_ns[proc] += corrections[clocks.map_of_proc[proc]].of(span_ns[proc])
    return span_ns


def _quality(clocks: Clocks, bound_ns: Floats) -> pa.Table:
    """Return the table ``clock_quality`` with the bounds of the corrections in ``error_ns``."""
    place = clocks.quality.schema.get_field_index("error_ns")
    return clocks.quality.set_column(place, "error_ns", pa.array(_error_ns(clocks, bound_ns)))


def _error_ns(clocks: Clocks, bound_ns: Floats) -> Floats:
    """Return how far each process's times may be off, ``(processes,)`` f8; inf: not known."""
    error: Floats = column(clocks.quality, "error_ns") + bound_ns[clocks.map_of_proc]
    return error


def _moved(clocks: Clocks, corrections: Sequence[Correction]) -> Clocks:
    """Return the clocks with corrected maps; all else stays."""
    parts: list[tuple[NDArray[Any], ...]] = []
    for number, correction in enumerate(corrections):
        mine = slice(clocks.begin[number], clocks.begin[number + 1])
        old = clocks.knot_x[mine], clocks.knot_y[mine], clocks.slope[mine]
        parts.append(_added(*old, correction))
    if not parts:
        return clocks
    x, y, slope = (np.concatenate(column) for column in zip(*parts, strict=True))
    sizes = [0, *(part[0].size for part in parts)]
    return replace(
        clocks,
        begin=np.cumsum(sizes).astype(np.int64),
        knot_x=x,
        knot_y=y,
        slope=slope,
    )


def _added(x: Ints, y: Ints, slope: Floats, correction: Correction) -> tuple[Ints, Ints, Floats]:
    """Return the knots of a map, and the slopes behind them, with a correction added.

    A knot a second before the first one and one behind the last one give what lies beyond the
    slopes of the lines there, which knots close to each other, rounded to 1 ns, would not.
    """
    t = correction.at_ns
    knot = np.clip(np.searchsorted(y, t, side="right") - 1, 0, x.size - 1)
    new = x[knot] + np.rint((t - y[knot]) / slope[knot]).astype(np.int64)
    every = np.unique(np.concatenate([x, new]))
    ends = np.rint(1e9 / slope[[0, -1]]).astype(np.int64)
    every = np.concatenate([[every[0] - ends[0]], every, [every[-1] + ends[1]]])
    knot = np.clip(np.searchsorted(x, every, side="right") - 1, 0, x.size - 1)
    t = y[knot] + np.rint((every - x[knot]) * slope[knot]).astype(np.int64)
    value = t + correction.of(t)
    steep = np.diff(value) / np.diff(every)
    return every, value, np.append(steep, steep[-1])
