"""Stage latency: how long messages took, from send to receive, by pair of processes and by size.

Percentiles are exact: the least latency that so many of the messages do not exceed. Messages that
were received before they were sent (clocks) have no latency: they are counted, and left out. Those
whose order is not certain are among all others, and counted.

The median of few messages is a matter of chance, and of many pairs one has the largest: so there is
also what it is at least, of all messages such as these (``_least_places``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.stages.pairs import (
    UNKNOWN_CLASS,
    Groups,
    bit_lengths,
    labels_of,
    numbered,
    pairs_of,
    size_classes,
)
from sigmatrace.text import counted, time_text
from sigmatrace.trace_format import layer_text

_MOST = np.uint64(2**64 - 1)
CHANCE = 0.01
"""How likely it is that, of a run whose messages are independent, the median of any pair is less
than what is told that it is at least."""


@dataclass(frozen=True)
class Latencies:
    """Both tables, and the stage's part of the ledger."""

    pairs: pa.Table
    histogram: pa.Table
    ledger: Mapping[str, object]


class Latency(Stage):
    """Makes ``message_latency`` and ``latency_histogram``."""

    name: ClassVar[str] = "latency"
    summary: ClassVar[SummaryKind] = "tables"
    requires: ClassVar[Columns] = {
        "message_pairs": {
            **{"src_proc": "i4", "dst_proc": "i4", "layer": "u1", "size_bytes": "u8"},
            **{"sizes_known": "bool", "uncertain": "bool", "latency_ns": "i8"},
        },
        "processes": {"label": "str"},
    }
    produces: ClassVar[Columns] = {
        name: STAGE_TABLES[name] for name in ("message_latency", "latency_histogram")
    }

    def survey(self, run: Run) -> Latencies:
        """Sort the messages of each pair by their latency, and count them by size and latency."""
        messages = run.tables["message_pairs"]
        pairs, histogram = _of_pairs(messages), _histogram(messages)
        told = {name: _total(pairs, name) for name in ("messages", "backwards", "uncertain")}
        whole = "stages.messages.messages"
        ledger = {
            "pairs": pairs.num_rows,
            **told,
            "balance": [
                {
                    "name": "latencies + backwards = messages",
                    "left": [told["messages"], told["backwards"]],
                    "right": whole,
                },
                {
                    "name": "histogram = messages",
                    "left": _total(histogram, "count"),
                    "right": whole,
                },
            ],
        }
        return Latencies(pairs, histogram, ledger)

    def results(self, resolved: Latencies) -> Mapping[str, pa.Table]:
        """Return ``message_latency`` and ``latency_histogram``."""
        return {"message_latency": resolved.pairs, "latency_histogram": resolved.histogram}

    def account(self, resolved: Latencies) -> Mapping[str, object]:
        """Return how many messages there were, and which of them are doubtful."""
        return resolved.ledger

    def lines(self, resolved: Latencies, run: Run) -> Sequence[str]:
        """Return the range of the pairs' medians, by layer."""
        return list(_lines(resolved.pairs, labels_of(run)))


def _total(table: pa.Table, name: str) -> int:
    return int(column(table, name).sum())


def _of_pairs(messages: pa.Table) -> pa.Table:
    latency = column(messages, "latency_ns")
    forward = latency >= 0
    pairs = pairs_of(messages)
    ordered = latency[np.lexsort((latency, pairs.code))]
    until, count = np.cumsum(pairs.count), pairs.sums(forward).astype(np.int64)
    first = until - count  # of each pair those that are negative come first
    none, least = count == 0, _least_places(count)
    edges = {
        "min_ns": (first, none),
        "p50_ns": (first + (count + 1) // 2 - 1, none),
        "p50_least_ns": (first + least, none | (least < 0)),
        "p99_ns": (first + (99 * count + 99) // 100 - 1, none),
        "max_ns": (until - 1, none),
    }
    total = pairs.totals(np.where(forward, latency, 0))[1]
    return pa.table(
        {
            "src_proc": pairs.first,
            "dst_proc": pairs.second,
            "layer": pairs.layer,
            "messages": count.astype(np.uint64),
            "backwards": pairs.sums(~forward),
            "uncertain": pairs.sums(forward & column(messages, "uncertain")),
            **{
                name: pa.array(ordered[np.where(lacking, 0, at)], mask=lacking)
                for name, (at, lacking) in edges.items()
            },
            "mean_ns": pa.array(total / np.maximum(count, 1), mask=none),
            "mean_bytes": _mean_bytes(messages, pairs, forward),
        }
    )


def _least_places(count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of sorted values their median exceeds but for chance; below 0: they are too few.

    Each of ``m`` values is below the median with a chance of a half. That no more than
    ``m / 2 - t`` of them are has at most the chance ``exp(-2 t^2 / m)`` (Hoeffding), whatever the
    values' distribution, which ``t`` makes ``CHANCE`` for all groups together.

    Args:
        count: ``(groups,)`` i8, of the values of each group.

    Returns:
        ``(groups,)`` i8, from 0.
    """
    chance = np.log(max(count.size, 1) / CHANCE)
    place: NDArray[np.float64] = np.floor(count / 2 - np.sqrt(count * chance / 2))
    return place.astype(np.int64)


def _mean_bytes(messages: pa.Table, pairs: Groups, chosen: NDArray[np.bool_]) -> pa.Array:
    """Return the mean size of the chosen messages of each pair, of those whose size is known."""
    known = chosen & column(messages, "sizes_known")
    size = np.where(known, column(messages, "size_bytes"), 0).astype(np.float64)
    total = np.bincount(pairs.code, size, pairs.count.size)
    count = pairs.sums(known).astype(np.float64)
    return pa.array(total / np.maximum(count, 1), mask=count == 0)


def _histogram(messages: pa.Table) -> pa.Table:
    latency = column(messages, "latency_ns")
    own = np.where(latency < 0, 0, bit_lengths(latency.view(np.uint64)).astype(np.int64) + 1)
    key = column(messages, "layer").astype(np.int64) << 16
    key |= size_classes(messages).astype(np.int64) << 8 | own
    known, code = numbered(key)
    low, high = _limits(known >> 8 & 255)
    least, most = _limits(np.maximum((known & 255) - 1, 0))
    negative = known & 255 == 0
    return pa.table(
        {
            "layer": (known >> 16).astype(np.uint8),
            "least_bytes": low,
            "most_bytes": high,
            "least_ns": np.where(negative, -1, least.view(np.int64)),
            "most_ns": np.where(negative, -1, most.view(np.int64)),
            "count": np.bincount(code, minlength=known.size).astype(np.uint64),
        }
    )


def _limits(bits: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the least and the largest number of so many bits; any, where nothing is known."""
    one, shift = np.uint64(1), np.clip(bits, 1, 64).astype(np.uint64) - np.uint64(1)
    any_size = bits == UNKNOWN_CLASS
    least = np.where((bits == 0) | any_size, np.uint64(0), one << shift)
    most = np.where(bits == 0, np.uint64(0), (one << shift) - one + (one << shift))
    return least, np.where(any_size, _MOST, most)


def _lines(pairs: pa.Table, labels: Sequence[str]) -> Iterator[str]:
    pairs = pairs.filter(pc.greater(pairs["messages"], 0))
    median, layers = column(pairs, "p50_ns"), column(pairs, "layer")
    ends = [column(pairs, f"{end}_proc") for end in ("src", "dst")]
    for layer in np.unique(layers).tolist():
        rows = np.flatnonzero(layers == layer)
        edges = rows[[median[rows].argmin(), median[rows].argmax()]]
        low, high = (
            f"{time_text(int(median[k]))} ({labels[ends[0][k]]} -> {labels[ends[1][k]]})"
            for k in edges
        )
        to = f" to {high}" if rows.size > 1 else ""
        yield f"latency    {layer_text(layer)}, {counted(rows.size, 'pair')}: median {low}{to}"
