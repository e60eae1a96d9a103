"""Stage clock: time stamp counter to Unix time.

Hosts' clocks are calibrated (``clock_calibration.py``), and differ. Where messages show that,
they are corrected by messages (``clock_messages.py``), if the option ``method`` does not say else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sigmatrace.partition import Partition, Run, column
from sigmatrace.schema import INDEX_TABLES, STAGE_TABLES, Columns
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.stages.clock_calibration import calibrated
from sigmatrace.stages.clock_columns import Clocks, add_times
from sigmatrace.stages.clock_messages import check, corrected, lines_of
from sigmatrace.stages.clock_sample import Rule, Sample
from sigmatrace.text import count_text, counted

METHODS = ("auto", "calibration", "messages")
SAMPLE_ENDS = 1 << 20
"""Ends of messages from which clocks are corrected, about."""
CHECKED_ENDS = 1 << 17
"""Ends of messages in which is looked for those received before they were sent, about."""


class Clock(Stage):
    """Adds ``t_ns`` (Unix time) to events, and to some what else is told in ticks.

    That is ``call_ns`` of operations, ``posted_ns`` of cqes, ``delay_ns`` of doorbells and
    ``duration_ns`` of kernels.

    Args:
        method: "calibration": hosts' clocks as they are. "messages": corrected by messages, for
            which the events are read once more before. "auto": as they are, and corrected if
            messages turn out to be received before they were sent: then all is done again.
    """

    name: ClassVar[str] = "clock"
    summary: ClassVar[SummaryKind] = "index"
    requires: ClassVar[Columns] = {
        "processes": {
            "proc": "i4",
            "label": "str",
            "host": "str",
            "boot_id": "str",
            "start_ns": "i8",
            "tsc_hz": "u8",
        },
        "clocks": {
            "proc": "i4",
            "tsc": "u8",
            "wall_ns": "i8",
            "width_tsc": "u8",
            "source": "str",
        },
        "channels": {"layer": "u1"},
        "chunks": INDEX_TABLES["chunks"],
        "ops": {"proc": "i4", "t_tsc": "u8", "channel": "u4", "op": "u1", "aux": "u4"},
        "completions": {"proc": "i4", "t_tsc": "u8"},
        "marks": {"proc": "i4", "t_tsc": "u8"},
        "requests": {"proc": "i4", "t_tsc": "u8"},
        "cqes": {"proc": "i4", "t_tsc": "u8", "posted_tsc": "u8"},
        "doorbells": {"proc": "i4", "t_tsc": "u8", "delay_tsc": "u4"},
        "wqes": {"proc": "i4", "t_tsc": "u8"},
        "kernels": {"proc": "i4", "t_tsc": "u8", "duration_tsc": "u8"},
    }
    produces: ClassVar[Columns] = {
        # t_ns is Unix time; exporters subtract the run's fact base_ns.
        "ops": {"t_ns": "i8", "call_ns": "i8"},
        "completions": {"t_ns": "i8"},
        "marks": {"t_ns": "i8"},
        "requests": {"t_ns": "i8"},
        "cqes": {"t_ns": "i8", "posted_ns": "i8"},  # posted_ns: 0 where posted_tsc is
        "doorbells": {"t_ns": "i8", "delay_ns": "i8"},
        "wqes": {"t_ns": "i8"},
        "kernels": {"t_ns": "i8", "duration_ns": "i8"},
        "clock_quality": STAGE_TABLES["clock_quality"],
        "chunk_times": STAGE_TABLES["chunk_times"],
        "clock_hosts": STAGE_TABLES["clock_hosts"],
    }

    def __new__(cls, method: str = "auto") -> Clock:
        """Return the stage that works by this method."""
        if method not in METHODS:
            raise ValueError(f"method={method}: it is one of {', '.join(METHODS)}")
        kinds = {"auto": CheckedClock, "messages": MessageClock}
        return super().__new__(kinds.get(method, cls) if cls is Clock else cls)

    def __init__(self, method: str = "auto") -> None:
        self.method = method

    def survey(self, run: Run) -> Clocks:
        """Fit the clocks of the run from the index."""
        return calibrated(run)

    def apply(self, part: Partition, resolved: Clocks) -> Partition:
        """Add ``t_ns`` and the other columns in ns."""
        return add_times(part, resolved)

    def results(self, resolved: Clocks) -> Mapping[str, pa.Table]:
        """Return the tables ``clock_quality``, ``chunk_times`` and ``clock_hosts``."""
        return {
            "clock_quality": resolved.quality,
            "chunk_times": resolved.chunks,
            "clock_hosts": resolved.hosts,
        }

    def facts(self, resolved: Clocks) -> Mapping[str, object]:
        """Return ``base_ns`` and ``last_ns``: the first and last time the index knows of.

        No event lies outside of these, but for those of processes that are not calibrated, where
        others are.
        """
        return resolved.facts

    def account(self, resolved: Clocks) -> Mapping[str, object]:
        """Return pairs, bad pairs, the worst width, and the processes and steps to know of."""
        return resolved.ledger

    def lines(self, resolved: Clocks, run: Run) -> Sequence[str]:
        """Return how many clocks are fitted, and how well; and what messages say of them."""
        good, error = (column(resolved.quality, name) for name in ("calibrated", "error_ns"))
        worst = ""
        if not resolved.hosts.num_rows and np.isfinite(error[good]).any():
            limit = count_text(math.ceil(error[good & np.isfinite(error)].max()))
            worst = f", error at most {limit} ns within a host"
        fitted = [f"clocks     {int(good.sum())} of {good.size} calibrated{worst}"]
        if unsure := resolved.ledger["unsure_rate"]["count"]:
            fitted.append(
                f"             {counted(unsure, 'process', 'processes')} with too few readings of "
                "the clock: their rates are uncertain"
            )
        return [*fitted, *lines_of(resolved)]


class _SampledClock(Clock):
    """A clock that looks at messages."""

    requires: ClassVar[Columns] = {
        **Clock.requires,
        "ops": {**Clock.requires["ops"], "flags": "u1", "ordinal": "u4"},
    }
    ends: ClassVar[int]

    def __init__(self, method: str = "auto") -> None:
        super().__init__(method)
        self._maps: np.ndarray | None = None  # which clock each process has, once it is known
        self._known: tuple[Run, Rule] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}

    def survey(self, run: Run) -> Clocks:
        """Fit the clocks of the run from the index."""
        clocks = super().survey(run)
        self._maps = clocks.map_of_proc
        return clocks

    def rule(self, run: Run) -> Rule:
        """Return which messages are in the sample."""
        known = self._known
        if known is None or known[0] is not run:  # once in each process
            maps = calibrated(run).map_of_proc if self._maps is None else self._maps
            self._known = known = run, Rule.of(run, maps, self.ends)
        return known[1]

    def combine_all(self, summaries: Sequence[Sample]) -> Sample:
        """Return all samples as one."""
        return Sample.joined(summaries)


class CheckedClock(_SampledClock):
    """Hosts' clocks as they are, unless messages contradict them.

    Without stage topology nobody knows who sends to whom, and nothing is looked at.
    """

    ends = CHECKED_ENDS

    def summarize(self, part: Partition) -> Sample:
        """Return a sample of the ends of messages, a cheap one."""
        return Sample.of_few(part, self.rule(part.run))

    def conclude(self, resolved: Clocks, summary: Sample) -> Clocks:
        """Count the messages that were received before they were sent."""
        return check(resolved, summary)

    def instead(self, resolved: Clocks) -> tuple[Stage, str] | None:
        """Return the clock that corrects, if messages cannot be by these ones."""
        found = resolved.ledger["messages"]
        if resolved.is_cut and not found["looked_at"] and found["without_other_end"]:
            why = "no message between hosts has both ends in the window"
            return MessageClock(), f"{why}: clocks are compared by those of the whole run"
        if not found["beyond_error"]:
            return None
        share = f"{count_text(found['beyond_error'])} of {counted(found['looked_at'], 'message')}"
        worst = count_text(found["worst_violation_ns"])
        why = f"{share} between hosts received before they were sent, by up to {worst} ns"
        return MessageClock("messages"), f"{why}: clocks are corrected by messages"


class MessageClock(_SampledClock):
    """Clocks that are corrected by messages; by method "auto" where these contradict them."""

    summary: ClassVar[SummaryKind] = "before"
    requires: ClassVar[Columns] = {
        **_SampledClock.requires,
        "routes": {"src_proc": "i4", "dst_proc": "i4", "group": "u4", "fate": "u1", "lossy": "u1"},
    }
    ends = SAMPLE_ENDS

    def summarize(self, part: Partition) -> Sample:
        """Return a sample of the ends of messages."""
        return Sample.of(part, self.rule(part.run))

    def resolve(self, summary: Sample, run: Run) -> Clocks:
        """Correct the clocks of the run."""
        clocks = calibrated(run)
        if self.method == "auto":
            clocks = check(clocks, summary)
            if not clocks.ledger["messages"]["beyond_error"]:
                return clocks
        return corrected(clocks, summary, run)
