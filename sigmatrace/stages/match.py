"""Stage match: the k-th message of a group is the k-th at both ends.

``flow`` needs no partner: group and ordinal are known at each end. What was seen at both
ends is counted exactly, from the ordinals seen at either end, kept as runs.

Where the transport may lose messages (``routes.lossy``) that is a guess, and counts as uncertain.

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
from sigmatrace.stages import match_order
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.stages.channels import Channels
from sigmatrace.stages.match_doubts import doubts, lines_of
from sigmatrace.stages.match_order import Order, restored
from sigmatrace.stages.sums import Sums, add_all, column_sums, sums_of
from sigmatrace.text import count_text
from sigmatrace.trace_format import OP_CLASS, Layer, Op, OpClass, layer_text

Ints = NDArray[np.int64]

COUNTS = (2, max(Layer) + 1, max(Op) + 1, 16)
"""Shape of the counts: the program's own and nested ones, by layer, operation (0: unknown), fate.

Nested operations are those with ``OpFlag.NESTED``: another one of their layer made them, and
they carry its bytes. What a provider sends below says little about the program's messages.
"""


@dataclass(frozen=True)
class Seen:
    """Which messages some partitions saw.

    Attributes:
        counts: ``COUNTS`` i8, rows by nesting, layer, operation and fate.
        key: ``(runs,)`` i8, ``(group * 2 + direction) * 2 + nested`` (0 sent, 1 received; 0 the
            program's own, 1 nested), ascending.
        begin: ``(runs,)`` i8, first ordinal; runs of a key are disjoint and ascending.
        stop: ``(runs,)`` i8, one past the last ordinal.
        sums: Messages, bytes, uncertain ones and those of unknown size, by
            ``group * 2 + direction``.
        order: Which posting orders arrived in which partition.
    """

    counts: Ints
    key: Ints
    begin: Ints
    stop: Ints
    sums: Sums
    order: Order


@dataclass(frozen=True)
class Distinct:
    """Messages that differ: ``(2, groups)`` i8, rows sent and received.

    Attributes:
        seen: Ordinals seen at this end.
        matched: Those of them that were seen at the other end, too.
    """

    seen: Ints
    matched: Ints

    def at(self, groups: NDArray[np.bool_]) -> Distinct:
        """Return those of some groups."""
        return Distinct(self.seen[:, groups], self.matched[:, groups])


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
            **{"channel": "u4", "op": "u1", "flags": "u1", "ordinal": "u4", "aux": "u4"},
            "size_bytes": "u8",
        },
        "channels": {"layer": "u1", "kind": "u1"},
        "routes": {
            **{"src_proc": "i4", "dst_proc": "i4", "group": "u4", "fate": "u1", "lossy": "u1"},
        },
    }
    produces: ClassVar[Columns] = {
        "ops": {"flow": "u8"},  # equal at both ends of a message; 0: none
        "messages": STAGE_TABLES["messages"],
    }

    def apply(self, part: Partition, resolved: None) -> Partition:
        """Add ``flow``. ``ordinal`` stays as recorded: completions and targets refer to it."""
        if not part.is_read("ops", "flow"):
            return part
        flow = np.empty(part.tables["ops"].num_rows, np.uint64)
        if flow.size:
            from sigmatrace.stages.kernels.match import flow_kernel

            channels = Channels.of(part)
            rows = channels.channel, part.column("ops", "op"), restored(part, channels)
            ways = OP_CLASS, channels.group(), channels.fate()
            flow_kernel(*rows, channels.low, *ways, flow)
        return part.with_columns("ops", {"flow": flow})

    def summarize(self, part: Partition) -> Seen:
        """Collect the messages that the partition saw."""
        if part.tables["ops"].num_rows == 0:
            return _nothing()
        channels = Channels.of(part)
        if part.is_read("ops", "flow"):
            return _seen(part, channels, part.column("ops", "flow").astype(np.uint32))[0]
        seen, is_in_order = _seen(part, channels, part.column("ops", "ordinal"))
        return seen if is_in_order else _seen(part, channels, restored(part, channels))[0]

    def combine_all(self, summaries: Sequence[Seen]) -> Seen:
        """Merge the runs of all."""
        runs = ([getattr(one, name) for one in summaries] for name in ("key", "begin", "stop"))
        return Seen(
            np.sum([one.counts for one in summaries], axis=0),
            *_union(*map(np.concatenate, runs)),
            add_all([one.sums for one in summaries]),
            match_order.join_orders([one.order for one in summaries]),
        )

    def resolve(self, summary: Seen, run: Run) -> Matched:
        """Count what was seen at both ends."""
        groups = int(summary.key.max(initial=-1)) // 4 + 1
        every = _distinct(summary, groups)
        parts = every, _distinct_nested(summary, every)
        exchanged = match_order.count_exchanged(summary.order, groups)
        row = _rows(groups, run)
        table, over = _table(summary.sums, every.matched[0], exchanged, row, run)
        layer = run.column("channels", "layer")[row]
        ledger = {
            **_ledger(summary.counts, *parts, layer),
            "uncertain_order": int(summary.sums.sums[:, 3].sum()) + int(exchanged.sum()),
            "size_unknown": int(summary.sums.sums[:, 4].sum()),
            "byte_sums_beyond_u64": over,
            **doubts(table, run.column("routes", "lossy")[row], is_cut=run.window_ns is not None),
        }
        return Matched(table, {**ledger, "balance": _balance(ledger)})

    def results(self, resolved: Matched) -> Mapping[str, pa.Table]:
        """Return the table ``messages``."""
        return {"messages": resolved.table}

    def account(self, resolved: Matched) -> Mapping[str, object]:
        """Return every operation by what became of it; the numbers add up."""
        return resolved.ledger

    def lines(self, resolved: Matched, run: Run) -> Sequence[str]:
        """Return what of the program's own was matched, and why the rest was not; then the nested.

        By layer where there are several.
        """
        return [*_lines(resolved.ledger), *lines_of(resolved.ledger)]


def _seen(part: Partition, channels: Channels, ordinal: NDArray[np.uint32]) -> tuple[Seen, bool]:
    """Return the messages that a partition saw, and whether these ordinals need no restoring.

    Args:
        part: The partition.
        channels: Of its operations.
        ordinal: ``(n,)`` u4, as recorded or restored.
    """
    from sigmatrace.stages.kernels.match import runs_kernel

    rows = (part.column("ops", name) for name in ("op", "flags", "aux", "size_bytes"))
    ways = channels.group(), channels.fate(), channels.layer(), channels.lossy()
    counts = np.zeros(COUNTS, np.int64)
    span = np.full((2 * channels.size, 8), -1, np.int64)
    sums = np.zeros((2 * channels.size, 5), np.uint64)
    runs = [np.empty(ordinal.size, np.int64) for _ in range(3)]
    given = channels.channel, *rows, ordinal, channels.low, OP_CLASS, *ways
    count, inverted = runs_kernel(*given, span, sums, counts, *runs)
    used = span[:, 2] >= 0
    end = span[:, 2] >> 1
    arrived = used & (end % 2 == 1)
    seen = Seen(
        counts,
        *_union(*(column[:count] for column in runs)),
        sums_of(end[used].astype(np.uint64), sums[used]),
        match_order.order_of(span[arrived], sums[arrived, 0]),
    )
    return seen, inverted == 0


def _nothing() -> Seen:
    none = np.zeros(0, np.int64)
    return Seen(
        np.zeros(COUNTS, np.int64),
        *(none, none, none),
        Sums(np.zeros(0, np.uint64), np.zeros((0, 5), np.uint64)),
        Order(*(none for _ in range(6))),
    )


def _union(key: Ints, begin: Ints, stop: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the union of runs by key, sorted, disjoint."""
    from sigmatrace.stages.kernels.match import union_kernel

    order = np.lexsort((begin, key))
    out = [np.empty(key.size, np.int64) for _ in range(3)]
    count = union_kernel(key[order], begin[order], stop[order], *out)
    return out[0][:count].copy(), out[1][:count].copy(), out[2][:count].copy()


def _number(summary: Seen, keep: NDArray[np.bool_], shift: int, size: int) -> Ints:
    """Return how many ordinals some runs hold together, ``(size,)`` by ``key >> shift``."""
    key, begin, stop = _union(summary.key[keep] >> shift, summary.begin[keep], summary.stop[keep])
    return np.bincount(key, stop - begin, minlength=size).astype(np.int64)


def _distinct(summary: Seen, groups: int) -> Distinct:
    """Return all messages by group."""
    everything = np.ones(summary.key.size, np.bool_)
    seen = _number(summary, everything, 1, 2 * groups).reshape(groups, 2).T
    matched = seen.sum(axis=0) - _number(summary, everything, 2, groups)
    return Distinct(seen, np.stack([matched, matched]))


def _distinct_nested(summary: Seen, every: Distinct) -> Distinct:
    """Return the nested ones of all messages, whatever their other end is."""
    groups = every.seen.shape[1]
    seen, matched = np.zeros_like(every.seen), np.zeros_like(every.seen)
    for end in (0, 1):
        here, there = summary.key & 3 == 2 * end + 1, summary.key >> 1 & 1 != end
        seen[end] = _number(summary, here, 2, groups)
        either = _number(summary, here | there, 2, groups)
        matched[end] = seen[end] + every.seen[1 - end] - either
    return Distinct(seen, matched)


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


def _ledger(
    counts: Ints, every: Distinct, nested: Distinct, layer: NDArray[np.uint8]
) -> dict[str, Any]:
    """Return what became of the operations: of all, and in ``layers`` of each layer's."""
    layers = {}
    by_group = np.where(layer < counts.shape[1], layer, 0)
    for number in np.flatnonzero(counts.any(axis=(0, 2, 3))).tolist():
        here = by_group == number
        layers[layer_text(number)] = _parts(counts[:, number], every.at(here), nested.at(here))
    return {**_parts(counts.sum(axis=1), every, nested), "layers": layers}


def _parts(counts: Ints, every: Distinct, nested: Distinct) -> dict[str, Any]:
    """Return the numbers of all operations, of the program's own and of the nested ones."""
    own = Distinct(every.seen - nested.seen, every.matched - nested.matched)
    return {
        **_tally(counts.sum(axis=0), every),
        "own": _tally(counts[0], own),
        "nested": _tally(counts[1], nested),
    }


def _tally(counts: Ints, distinct: Distinct) -> dict[str, Any]:
    """Return operations by kind (``ops`` is their sum), matched ones, and the rest by reason."""
    classes = OP_CLASS[: len(counts)]
    by_class = {kind: counts[classes == kind].sum(axis=0) for kind in OpClass}
    sends, receives = by_class[OpClass.SEND], by_class[OpClass.RECV]
    seen, matched = (ends.sum(axis=1).tolist() for ends in (distinct.seen, distinct.matched))
    return {
        "ops": int(counts.sum()),
        "sends": int(sends.sum()),
        "sends_matched": matched[0],
        "sends_unmatched": _end(sends, seen[0], matched[0], "not_seen_received"),
        "receives": int(receives.sum()),
        "receives_matched": matched[1],
        "receives_unmatched": _end(receives, seen[1], matched[1], "not_seen_sent"),
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
    own, nested = ledger["own"], ledger["nested"]
    for what in ("sends", "receives"):
        for name, part in (("", ledger), ("own ", own), ("nested ", nested)):
            parts = [part[f"{what}_matched"], *part[f"{what}_unmatched"].values()]
            text = f"{name}{what} = matched + unmatched by reason"
            equations.append({"name": text, "left": part[what], "right": parts})
    for what in (*kinds, "sends_matched", "receives_matched"):
        text = f"{what.replace('_', ' ')} = own + nested"
        equations.append({"name": text, "left": ledger[what], "right": [own[what], nested[what]]})
    return equations


def _lines(ledger: Mapping[str, Any]) -> Iterator[str]:
    if not ledger["ops"]:
        return
    own, nested = ledger["own"], ledger["nested"]
    layers = {name: one["own"] for name, one in ledger["layers"].items()}
    for what in ("sends", "receives"):
        yield f"{what:10} {_share(own, what)}"
        for name, one in layers.items():
            if len(layers) > 1 and one[what]:
                yield f"  {name:8} {_share(one, what)}"
            for reason, count in one[f"{what}_unmatched"].items():
                if count:
                    yield f"             {count_text(count)} {reason.replace('_', ' ')}"
    yield from _one_sided(own, layers)
    if nested["ops"]:
        parts = [f"{what} {_share(nested, what)}" for what in ("sends", "receives")]
        if nested["one_sided"]:
            parts.append(f"one-sided {count_text(nested['one_sided'])}")
        yield f"nested     {'; '.join(parts)}"


def _one_sided(own: Mapping[str, Any], layers: Mapping[str, Any]) -> Iterator[str]:
    if own["one_sided"]:
        yield f"one-sided  {count_text(own['one_sided'])}"
        for name, one in layers.items():
            if len(layers) > 1 and one["one_sided"]:
                yield f"  {name:8} {count_text(one['one_sided'])}"


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
