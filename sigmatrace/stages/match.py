"""Stage match: the k-th message of a group is the k-th at both ends.

``flow`` needs no partner: group and ordinal are known at each end. What was seen at both
ends is counted exactly, from the ordinals seen at either end, kept as runs.

Ordinals count modulo 2^32. A channel with more messages than that repeats flows; the repeats
are counted as duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import STAGE_TABLES, Columns, Fate
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.stages.match_order import Order, count_exchanged, join_orders, restore
from sigmatrace.stages.sums import Sums, add_sums, column_sums
from sigmatrace.text import count_text
from sigmatrace.trace_format import OP_CLASS, Layer, Op, OpClass, layer_text

Ints = NDArray[np.int64]

COUNTS = (max(Layer) + 1, max(Op) + 1, 16)
"""Shape of the counts by layer and operation (0: unknown ones) and fate."""


@dataclass(frozen=True)
class Seen:
    """Which messages some partitions saw.

    Attributes:
        counts: ``COUNTS`` i8, rows by layer, operation and fate.
        key: ``(runs,)`` i8, ``group * 2 + direction`` (0 sent, 1 received), ascending.
        begin: ``(runs,)`` i8, first ordinal; runs of a key are disjoint and ascending.
        stop: ``(runs,)`` i8, one past the last ordinal.
        sums: Messages, bytes, uncertain ones and those of unknown size by the same key.
        order: Which posting orders arrived in which partition.
    """

    counts: Ints
    key: Ints
    begin: Ints
    stop: Ints
    sums: Sums
    order: Order


@dataclass(frozen=True)
class Matched:
    """The table ``messages`` and the ledger."""

    table: pa.Table
    ledger: Mapping[str, Any]


class Match(Stage):
    """Adds ``flow``; makes ``messages``."""

    name: ClassVar[str] = "match"
    summary: ClassVar[SummaryKind] = "after"
    requires: ClassVar[Columns] = {
        "ops": {
            "channel": "u4",
            "op": "u1",
            "flags": "u1",
            "ordinal": "u4",
            "aux": "u4",
            "size_bytes": "u8",
            "group": "u4",
            "fate": "u1",
            "layer": "u1",
        },
        "channels": {"layer": "u1", "kind": "u1"},
        "routes": {"group": "u4", "src_proc": "i4", "dst_proc": "i4"},
    }
    produces: ClassVar[Columns] = {
        "ops": {"flow": "u8"},  # equal at both ends of a message; 0: none
        "messages": STAGE_TABLES["messages"],
    }

    def apply(self, part: Partition, resolved: None) -> Partition:
        """Add ``flow``. ``ordinal`` stays as recorded: completions and targets refer to it."""
        from sigmatrace.stages.kernels.match import flow_kernel

        columns = ("channel", "op", "fate", "ordinal", "aux")
        ordinal = restore(*(part.column("ops", name) for name in columns))
        flow = np.empty(ordinal.size, np.uint64)
        flow_kernel(*(part.column("ops", name) for name in ("group", "fate")), ordinal, flow)
        return part.with_columns("ops", {"flow": flow})

    def summarize(self, part: Partition) -> Seen:
        """Collect the messages that the partition saw."""
        from sigmatrace.stages.kernels.match import count_kernel, runs_kernel, span_kernel

        names = ("channel", "op", "flags", "flow", "size_bytes", "fate", "aux")
        channel, op, flags, flow, size_bytes, fate, aux = (
            part.column("ops", name) for name in names
        )
        if channel.size == 0:
            return _nothing()
        counts = np.zeros(COUNTS, np.int64)
        count_kernel(part.column("ops", "layer"), op, fate, counts)
        low, channels = span_kernel(channel, fate)
        span = np.full((2 * channels, 7), -1, np.int64)
        sums = np.zeros((2 * channels, 5), np.uint64)
        runs = [np.empty(channel.size, np.int64) for _ in range(3)]
        rows = (channel, op, flags, aux, flow, size_bytes)
        count = runs_kernel(*rows, low, span, sums, *runs)
        used = span[:, 2] >= 0
        arrived = used & (span[:, 2] % 2 == 1)
        return Seen(
            counts,
            *_union(*(column[:count] for column in runs)),
            add_sums(Sums(span[used, 2].astype(np.uint64), sums[used])),
            _order(span[arrived], sums[arrived, 0]),
        )

    def combine(self, left: Seen, right: Seen) -> Seen:
        """Merge the runs of both."""
        return Seen(
            left.counts + right.counts,
            *_union(
                np.concatenate([left.key, right.key]),
                np.concatenate([left.begin, right.begin]),
                np.concatenate([left.stop, right.stop]),
            ),
            add_sums(left.sums, right.sums),
            join_orders(left.order, right.order),
        )

    def resolve(self, summary: Seen, run: Run) -> Matched:
        """Count what was seen at both ends."""
        both = _union(summary.key >> 1, summary.begin, summary.stop)
        groups = int(max(summary.key.max(initial=-1) // 2, -1)) + 1
        unique = np.bincount(
            summary.key, summary.stop - summary.begin, minlength=2 * groups
        ).astype(np.int64)
        either = np.bincount(both[0], both[2] - both[1], minlength=groups).astype(np.int64)
        matched = unique[0::2] + unique[1::2] - either
        exchanged = count_exchanged(summary.order, groups)
        row = _rows(groups, run)
        table, over = _table(summary.sums, matched, exchanged, row, run)
        layer = run.column("channels", "layer")[row]
        ledger = {
            **_ledger(summary.counts, unique, matched, layer),
            "uncertain_order": int(summary.sums.sums[:, 3].sum()) + int(exchanged.sum()),
            "size_unknown": int(summary.sums.sums[:, 4].sum()),
            "byte_sums_beyond_u64": over,
        }
        return Matched(table, {**ledger, "balance": _balance(ledger)})

    def results(self, resolved: Matched) -> Mapping[str, pa.Table]:
        """Return the table ``messages``."""
        return {"messages": resolved.table}

    def account(self, resolved: Matched) -> Mapping[str, object]:
        """Return every operation by what became of it; the numbers add up."""
        return resolved.ledger

    def lines(self, resolved: Matched, run: Run) -> Sequence[str]:
        """Return what was matched, and why the rest was not; by layer where there are several."""
        return list(_lines(resolved.ledger))


def _nothing() -> Seen:
    none = np.zeros(0, np.int64)
    return Seen(
        np.zeros(COUNTS, np.int64),
        *(none, none, none),
        Sums(np.zeros(0, np.uint64), np.zeros((0, 5), np.uint64)),
        Order(*(none for _ in range(6))),
    )


def _order(span: Ints, count: NDArray[np.uint64]) -> Order:
    """Return the ranges of arrivals from the kernel's rows of channels with arrivals."""
    _, _, key, low, high, posted_low, posted_high = span.T
    top = 2**32 - 1
    return Order(key >> 1, top - low, high, top - posted_low, posted_high, count.astype(np.int64))


def _union(key: Ints, begin: Ints, stop: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the union of runs by key, sorted, disjoint."""
    from sigmatrace.stages.kernels.match import union_kernel

    order = np.lexsort((begin, key))
    out = [np.empty(key.size, np.int64) for _ in range(3)]
    count = union_kernel(key[order], begin[order], stop[order], *out)
    return out[0][:count].copy(), out[1][:count].copy(), out[2][:count].copy()


def _rows(groups: int, run: Run) -> Ints:
    """Return by group the row of one of its channels."""
    group = run.column("routes", "group")
    row = np.zeros(groups, np.int64)
    inside = np.flatnonzero(group < groups)
    row[group[inside]] = inside
    return row


def _table(sums: Sums, matched: Ints, exchanged: Ints, row: Ints, run: Run) -> tuple[pa.Table, int]:
    """Return the table ``messages`` and how many of its sums of bytes are beyond 2^64 - 1."""
    groups = matched.size
    count = np.zeros(2 * groups, np.uint64)
    size_bytes = np.zeros(2 * groups, np.uint64)
    others = np.zeros((2 * groups, 2), np.uint64)
    totals, over = column_sums(sums)
    at = sums.key.astype(np.int64)
    count[at], size_bytes[at], others[at] = sums.sums[:, 0], totals, sums.sums[:, 3:]
    uncertain, unknown = (others[0::2] + others[1::2]).T
    keep = np.flatnonzero(count[0::2] + count[1::2])
    row = row[keep]
    columns = {
        "group": keep.astype(np.uint32),
        "src_proc": run.column("routes", "src_proc")[row],
        "dst_proc": run.column("routes", "dst_proc")[row],
        "layer": run.column("channels", "layer")[row],
        "kind": run.column("channels", "kind")[row],
        "sent": count[0::2][keep],
        "received": count[1::2][keep],
        "matched": matched[keep].astype(np.uint64),
        "sent_bytes": size_bytes[0::2][keep],
        "received_bytes": size_bytes[1::2][keep],
        "size_unknown": unknown[keep],
        "uncertain": (uncertain + exchanged.astype(np.uint64))[keep],
    }
    return pa.table(columns), over


def _ledger(counts: Ints, unique: Ints, matched: Ints, layer: NDArray[np.uint8]) -> dict[str, Any]:
    """Return what became of the operations: of all, and in ``layers`` of each layer's."""
    layers = {}
    by_group = np.where(layer < len(counts), layer, 0)
    for number in np.flatnonzero(counts.any(axis=(1, 2))).tolist():
        here = by_group == number
        ends = unique[0::2][here], unique[1::2][here]
        layers[layer_text(number)] = _tally(counts[number], *ends, matched[here])
    whole = _tally(counts.sum(axis=0), unique[0::2], unique[1::2], matched)
    return {**whole, "layers": layers}


def _tally(counts: Ints, sent: Ints, received: Ints, matched: Ints) -> dict[str, Any]:
    """Return operations by kind (``ops`` is their sum), matched ones, and the rest by reason."""
    total = int(matched.sum())
    classes = OP_CLASS[: len(counts)]
    by_class = {kind: counts[classes == kind].sum(axis=0) for kind in OpClass}
    sends, receives = by_class[OpClass.SEND], by_class[OpClass.RECV]
    return {
        "ops": int(counts.sum()),
        "sends": int(sends.sum()),
        "sends_matched": total,
        "sends_unmatched": _end(sends, int(sent.sum()), total, "not_seen_received"),
        "receives": int(receives.sum()),
        "receives_matched": total,
        "receives_unmatched": _end(receives, int(received.sum()), total, "not_seen_sent"),
        "one_sided": int(by_class[OpClass.ONE_SIDED].sum()),
        "not_a_message": int(by_class[OpClass.OTHER].sum()),
    }


def _balance(ledger: Mapping[str, Any]) -> list[dict[str, Any]]:
    kinds = ("sends", "receives", "one_sided", "not_a_message")
    equations: list[dict[str, Any]] = [
        {
            "name": "op records = operations by kind",
            "left": "records.op",
            "right": [ledger[kind] for kind in kinds],
        }
    ]
    for what in ("sends", "receives"):
        parts = [ledger[f"{what}_matched"], *ledger[f"{what}_unmatched"].values()]
        text = f"{what} = matched + unmatched by reason"
        equations.append({"name": text, "left": ledger[what], "right": parts})
    return equations


def _lines(ledger: Mapping[str, Any]) -> Iterator[str]:
    if not ledger["ops"]:
        return
    layers = ledger["layers"]
    for what in ("sends", "receives"):
        yield f"{what:10} {_share(ledger, what)}"
        for name, one in layers.items():
            if len(layers) > 1 and one[what]:
                yield f"  {name:8} {_share(one, what)}"
            for reason, count in one[f"{what}_unmatched"].items():
                if count:
                    yield f"             {count_text(count)} {reason.replace('_', ' ')}"
    if ledger["one_sided"]:
        yield f"one-sided  {count_text(ledger['one_sided'])}"


def _share(ledger: Mapping[str, Any], what: str) -> str:
    total, good = ledger[what], ledger[f"{what}_matched"]
    share = f" ({100 * good / total:.1f} %)" if total else ""
    return f"{count_text(total)}, matched {count_text(good)}{share}"


def _end(by_fate: Ints, unique: int, matched: int, alone: str) -> dict[str, int]:
    """Return one direction's unmatched operations by reason."""
    reasons = {alone: unique - matched, "duplicate": int(by_fate[Fate.MATCHABLE]) - unique}
    for fate in Fate:
        if fate != Fate.MATCHABLE:
            reasons[fate.name.lower()] = int(by_fate[fate])
    return reasons
