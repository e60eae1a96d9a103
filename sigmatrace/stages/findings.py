"""Stage findings: what to look at first, in plain words, from the tables of the analyses.

Each finding has a weight, by which they are ordered, and evidence: a table, and which of its rows,
as a query would name them. The weight is the share of time, messages or bytes that it concerns, but
of errors, which come first, and of idle links, which are no fault as such. Thresholds stand here,
each with its reason, so that what is usual is not told, and what is told is worth a look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.participants import member_words
from sigmatrace.partition import Run, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages import findings_doubts
from sigmatrace.stages.critical_path import are_messages
from sigmatrace.stages.findings_seen import Find, Finding, Seen, share_text
from sigmatrace.stages.pairs import UNKNOWN_CLASS, Ints, bit_lengths, ends_of
from sigmatrace.stages.table_stage import TableStage, Told
from sigmatrace.text import byte_text, count_text, counted, time_text
from sigmatrace.trace_format import layer_text

MINOR = 0.01
"""What concerns less than this share is not told: nobody would notice were it mended."""
OF_A_KIND = 3
"""Of a kind only so many are told, the weightiest ones: a fourth one rarely says anything new."""
TIMES_CHANCE = 2.0
"""Who comes last, is waited for, or is on the critical path so many times more than if all were
alike."""
TIMES_MEDIAN = 2.0
"""Whose waits or latencies are this many times the median of all: jitter and distance within a
cluster stay below."""
PAIRS = 4
"""A median of less than so many pairs is none that a pair could be held against."""
UNEVEN = 1.5
"""Bytes, most to least, or heaviest pair to mean: from here on one link is the bottleneck while the
others have a third of their time left."""
ON_PATH = 0.2
"""What has less than a fifth of the critical path can at best make the run so much shorter."""
IDLE, BUSY, IDLE_WEIGHT = 0.5, 0.25, 0.1
"""Links that nobody sends over for half of the time, while half of all links are idle for no more
than a quarter of it: that all are idle tells nothing but that programs compute. It is no fault as
such, so it weighs a tenth."""
TOLD = 2
"""Findings in the closing summary."""


class Findings(TableStage):
    """Makes ``findings``."""

    name: ClassVar[str] = "findings"
    requires: ClassVar[Columns] = {
        **{
            name: STAGE_TABLES[name]
            for name in (
                *("stragglers", "barriers", "barrier_arrivals", "waits"),
                *("message_latency", "links"),
                *("communication", "imbalance", "errors", "critical_path"),
            )
        },
        "processes": {"label": "str", "host": "str"},
        "clock_quality": {"error_ns": "f8"},
    }
    produces: ClassVar[Columns] = {"findings": STAGE_TABLES["findings"]}

    def survey(self, run: Run) -> Told:
        """Judge all tables."""
        seen = Seen(run)
        kept: list[Finding] = []
        minor, more = 0, 0
        for find in _ALL:
            own = sorted(find(seen), key=lambda one: -one.weight)
            major = [one for one in own if one.weight >= MINOR]
            minor, more = minor + len(own) - len(major), more + len(major[OF_A_KIND:])
            kept += major[:OF_A_KIND]
        kept.sort(key=lambda one: -one.weight)
        columns: dict[str, Any] = {
            "position": np.arange(len(kept), dtype=np.int32),
            "weight": np.array([min(one.weight, 1.0) for one in kept], np.float64),
            "share": pa.array(
                [min(one.weight, 1.0) if one.is_share else None for one in kept], pa.float64()
            ),
        }
        for name in ("kind", "text", "evidence"):
            columns[name] = pa.array([getattr(one, name) for one in kept], pa.string())
        return Told(pa.table(columns), {"findings": len(kept), "minor": minor, "more_alike": more})

    def lines(self, resolved: Told, run: Run) -> Sequence[str]:
        """Return the first findings."""
        texts = resolved.table["text"].to_pylist()
        lines = [f"finding    {text}" for text in texts[:TOLD]]
        if len(texts) > TOLD:
            lines.append(f"             {count_text(len(texts) - TOLD)} more in the table findings")
        return lines


def _stragglers(seen: Seen) -> Iterator[Finding]:
    """Who came last to barriers more often, or was waited for longer, than by chance."""
    rows = [row for row in seen.rows("stragglers") if row["barriers"]]
    chance = TIMES_CHANCE / max(len(rows), 1)
    caused = sum(row["caused_ns"] for row in rows)
    for row in rows:
        often = row["last"] >= chance * row["barriers"]
        if row["last"] and (often or row["caused_ns"] >= chance * caused):
            weight = seen.share(row["caused_ns"], seen.barrier_members - 1)
            whole = counted(row["barriers"], "barrier")
            yield Finding(
                weight,
                "straggler",
                f"{seen.labels[row['proc']]} came last at {count_text(row['last'])} of {whole}; "
                f"the others waited {time_text(row['caused_ns'])} for it together "
                f"({share_text(weight)} of their time)",
                f"stragglers where proc = {row['proc']}",
            )


def _barriers(seen: Seen) -> Iterator[Finding]:
    """How much of their time processes wait at barriers, whoever comes last."""
    caused = seen.column("stragglers", "caused_ns")
    members = seen.barrier_members
    if members and caused.max() < caused.sum() / 2:  # else it is one straggler's
        weight = seen.share(int(caused.sum()), members)
        spread = seen.column("barriers", "spread_ns")
        yield Finding(
            weight,
            "barriers",
            f"processes waited {share_text(weight)} of their time at "
            f"{counted(spread.size, 'barrier')} for one that came later, at most "
            f"{time_text(int(spread.max()))}; no single one is to blame",
            "barriers",
        )


def _late_senders(seen: Seen) -> Iterator[Finding]:
    """Whose messages receivers wait for longer than for those of others."""
    late = seen.column("stragglers", "late_sender_ns")
    for proc in _outliers(late).tolist():
        weight = seen.share(int(late[proc]), seen.others)
        yield Finding(
            weight,
            "late sender",
            f"receivers waited at most {time_text(int(late[proc]))} until {seen.labels[proc]} sent "
            f"({share_text(weight)} of the others' time)",
            f"waits where src_proc = {proc}",
        )


def _outliers(values: Ints) -> Ints:
    """Return the places of values that are well above the median."""
    if values.size < 2:
        return np.zeros(0, np.int64)
    return np.flatnonzero((values > 0) & (values >= TIMES_MEDIAN * np.median(values)))


def _late_receivers(seen: Seen) -> Iterator[Finding]:
    """For whom messages wait longer than for others."""
    layers, dst = seen.column("waits", "layer"), seen.column("waits", "dst_proc")
    mean, count = (seen.column("message_latency", name) for name in ("mean_ns", "messages"))
    under_way = np.nan_to_num(mean) * count
    of_layer = seen.column("message_latency", "layer")
    for layer in np.unique(layers).tolist():
        late = np.zeros(len(seen.labels), np.int64)
        own = layers == layer
        np.add.at(late, dst[own], seen.column("waits", "late_receiver_ns")[own])
        whole = max(float(under_way[of_layer == layer].sum()), 1.0)
        for proc in _outliers(late).tolist():
            weight = int(late[proc]) / whole
            yield Finding(
                weight,
                "late receiver",
                f"messages waited at most {time_text(int(late[proc]))} for {seen.labels[proc]} to "
                f"receive them ({share_text(weight)} of the time of all messages, "
                f"{layer_text(layer)})",
                f"waits where dst_proc = {proc} and {_of(layer)}",
            )


def _slow_links(seen: Seen) -> Iterator[Finding]:
    """Pairs whose messages take longer than those of other pairs, of about the same mean size.

    By more than chance makes the median of some messages of the slowest of many pairs longer.
    """
    ends = seen.keys("message_latency")
    src, dst, layer = ends_of(ends)
    median, least = (seen.column("message_latency", x) for x in ("p50_ns", "p50_least_ns"))
    mean = seen.column("message_latency", "mean_bytes")
    size = bit_lengths(np.minimum(np.nan_to_num(mean), 2.0**63).astype(np.uint64))
    size[np.isnan(mean)] = UNKNOWN_CLASS
    waited = _at(seen.keys("waits"), seen.column("waits", "transfer_ns"), ends)
    alike = layer.astype(np.int64) << 8 | size
    alike[seen.column("message_latency", "messages") == 0] = -1
    for one in np.unique(alike[alike >= 0]).tolist():
        own = np.flatnonzero(alike == one)
        usual = float(np.median(median[own]))
        if own.size < PAIRS or usual <= 0:
            continue
        others = "other pairs of " + (
            "unknown size" if one & 255 == UNKNOWN_CLASS else "about the same mean size"
        )
        for row in own[least[own] >= TIMES_MEDIAN * usual].tolist():
            share = seen.share(int(waited[row]))
            took, wait = int(median[row]), int(waited[row])
            yield Finding(
                share,
                "slow link",
                f"messages {seen.pair(src[row], dst[row])} took {time_text(took)} in the median, "
                f"{took / usual:.3g} times as long as those of {others} "
                f"({layer_text(int(layer[row]))}); the receiver waited at most "
                f"{time_text(wait)} for them ({share_text(share)} of the run)",
                f"message_latency where src_proc = {src[row]} and dst_proc = {dst[row]} and "
                f"{_of(int(layer[row]))}",
            )


def _at(keys: Ints, values: NDArray[Any], wanted: Ints) -> NDArray[Any]:
    """Return the values of keys, ``(wanted,)``; 0 where there is no such key.

    Args:
        keys: ``(n,)``, distinct.
        values: ``(n,)``.
        wanted: Keys.
    """
    order = np.argsort(keys)
    place = np.searchsorted(keys[order], wanted)
    is_there = np.append(keys[order], -1)[place] == wanted
    return np.where(is_there, np.append(values[order], values.dtype.type(0))[place], 0)


def _of(layer: int) -> str:
    """Return the rows of a layer: where evidence is asked for, layers are words."""
    return f"layer = '{layer_text(layer)}'"


def _uneven(seen: Seen) -> Iterator[Finding]:
    """How uneven traffic is, at the layer with most of it, at levels that differ."""
    members: set[int] = set()
    for level in ("node", "rank", "gpu"):
        rows = [row for row in seen.rows("imbalance") if row["level"] == level]
        row = max(rows, key=lambda one: one["egress_max_bytes"], default=None)
        if row is None or row["members"] < 2 or row["members"] in members:
            continue
        members.add(row["members"])
        total = _bytes_between(seen, row) or 1.0
        where = f"imbalance where level = '{level}' and {_of(row['layer'])}"
        for way, did in (("egress", "sent"), ("ingress", "received")):
            most, least = (row[f"{way}_{edge}_bytes"] for edge in ("max", "min"))
            if row[f"{way}_ratio"] >= UNEVEN:
                weight = (most - total / row["members"]) / total
                times = f"{row[f'{way}_ratio']:.3g} times as much as" if least else "and"
                yield Finding(
                    weight,
                    "imbalance",
                    f"{row[f'{way}_max']} {did} {byte_text(most)}, {times} {row[f'{way}_min']} "
                    f"({byte_text(least) if least else 'nothing'})",
                    where,
                )
        if row["pair_ratio"] >= UNEVEN:
            yield Finding(
                (row["pair_max_bytes"] - row["pair_mean_bytes"]) / total,
                "heavy pair",
                f"{row['pair_src']} sent {byte_text(row['pair_max_bytes'])} to {row['pair_dst']}, "
                f"{row['pair_ratio']:.3g} times as much as the mean pair of "
                f"{member_words(seen.run, level)[1]}",
                where,
            )


def _bytes_between(seen: Seen, row: Mapping[str, Any]) -> float:
    """Return the bytes between different members of a level and layer."""
    table = seen.run.tables["communication"]
    own = pc.and_(pc.equal(table["level"], row["level"]), pc.equal(table["layer"], row["layer"]))
    between = table.filter(pc.and_(own, pc.not_equal(table["src"], table["dst"])))
    return float(column(between, "size_bytes").sum(dtype=np.float64))


def _idle(seen: Seen) -> Iterator[Finding]:
    """Links that are idle while others are busy."""
    idle_ns, longest = (seen.column("links", f"{name}idle_ns") for name in ("", "longest_"))
    lasted = seen.column("links", "last_ns") - seen.column("links", "first_ns")
    idle = idle_ns / np.maximum(lasted, 1)
    which = np.flatnonzero(idle >= IDLE)
    usual = float(np.median(idle)) if idle.size else 1.0
    if which.size and usual <= BUSY:
        least = float(idle[which].min())
        yield Finding(
            float(idle[which].mean()) * IDLE_WEIGHT,
            "idle links",
            f"{count_text(which.size)} of {counted(idle.size, 'link')} idle for "
            f"{share_text(least)} or more of the time between their first and last operation, half "
            f"of all for at most {share_text(usual)}; the longest pause was "
            f"{time_text(int(longest[which].max()))}",
            f"links where idle_ns >= {IDLE:g} * (last_ns - first_ns)",
            is_share=False,
        )


def _path(seen: Seen) -> Iterator[Finding]:
    """Which process, and which link, has more of the critical path than its share."""
    table = seen.run.tables["critical_path"]
    ns = column(table, "end_ns") - column(table, "begin_ns")
    is_message = are_messages(table)
    src, dst = (column(table, name).astype(np.int64) for name in ("from_proc", "proc"))
    total = max(int(ns.sum()), 1)
    for chosen, what in ((~is_message, "local"), (is_message, "message")):
        keys, code = np.unique((src << 32 | dst)[chosen], return_inverse=True)
        parts = np.zeros(keys.size, np.int64)
        np.add.at(parts, code, ns[chosen])
        for key, part in zip(keys.tolist(), parts.tolist(), strict=True):
            one, other = key >> 32, key & 0xFFFFFFFF
            share = part / total
            if share < max(ON_PATH, TIMES_CHANCE / max(len(seen.labels), 1)):
                continue
            where = seen.labels[one] if what == "local" else f"messages {seen.pair(one, other)}"
            yield Finding(
                share * seen.share(total),
                "critical path",
                f"{share_text(share)} of the critical path ({time_text(total)}, what the last "
                f"receive depended on) is {'in' if what == 'local' else 'under way:'} {where}",
                f"critical_path where kind = '{what}' and from_proc = {one} and proc = {other}",
            )


_ALL: tuple[Find, ...] = (
    *findings_doubts.ALL,
    *(_stragglers, _barriers, _late_senders, _late_receivers, _slow_links),
    *(_path, _uneven, _idle),
)
