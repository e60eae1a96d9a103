"""A sample of messages between clocks, of which each partition sees one end.

Whether a message is in the sample, a hash of its flow says: both ends decide alike, and nobody has
to know of the other. How many are taken is known from the index, so that the sample has about the
size that was asked for. Of each pair of clocks some are taken in any case, early ones all, later
ones ever fewer: the k-th of a stream with a chance of 1/k.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import NO_GROUP, Fate
from sigmatrace.stages.channels import Channels
from sigmatrace.stages.match_order import restored
from sigmatrace.stages.skew_lines import Messages
from sigmatrace.trace_format import OP_CLASS, Op, OpClass, OpFlag, Schema

Ints = NDArray[np.int64]

PAIR_QUOTA = 256
"""So many messages of a pair of clocks are taken in any case, if there is room for as many."""
_SURE = 1 << 32
_SEEN = _SURE // 256, 8 * _SURE
"""Of how many places in streams a sample of few looks at least: of all; of the k-th ones, by k."""
_UNSURE = np.uint8(OpFlag.ORDER_UNCERTAIN | OpFlag.FAILED)


@dataclass(frozen=True)
class Rule:
    """Which messages are in the sample; the last row stands for channels that are not known.

    Attributes:
        limit: ``(channels + 1,)`` u8, as ``sample_kernel`` has it.
        quota: ``(channels + 1,)`` u8, likewise.
    """

    limit: NDArray[np.uint64]
    quota: NDArray[np.uint64]

    @classmethod
    def of(cls, run: Run, clock_of_proc: NDArray[np.int32], ends: int) -> Rule:
        """Return the rule of a run.

        Args:
            run: With the tables of the index, and ``routes``; without that nothing is taken.
            clock_of_proc: ``(processes,)`` i4.
            ends: Size of the sample, about.
        """
        if "routes" not in run.tables:
            return cls(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        names = ("src_proc", "dst_proc", "group", "fate", "lossy")
        src, dst, group, fate, lossy = (run.column("routes", name) for name in names)
        quota = np.zeros(src.size + 1, np.uint64)
        usable = (fate == Fate.MATCHABLE) & (lossy == 0) & (group != NO_GROUP)
        rows = np.flatnonzero(usable & (src >= 0) & (dst >= 0))
        a, b = clock_of_proc[src[rows]], clock_of_proc[dst[rows]]
        rows, a, b = (one[a != b] for one in (rows, a, b))
        pair = a.astype(np.int64) * (int(clock_of_proc.max(initial=0)) + 1) + b
        pairs, number = np.unique(pair, return_inverse=True)
        # A stream has a channel at each end; all but the first few are at most 1 + ln(n) more.
        streams = np.bincount(number, minlength=pairs.size) / 2
        each = np.minimum(PAIR_QUOTA, ends / 16 / max(pairs.size, 1)) / streams
        quota[rows] = np.maximum(each[number] * _SURE, 1).astype(np.uint64)
        counts = run.column("chunks", "count")[run.column("chunks", "schema") == Schema.OP]
        share = min(1.0, ends / max(int(counts.sum()), 1))
        return cls(np.full(src.size + 1, round(share * _SURE), np.uint64), quota)

    @functools.cached_property
    def seen(self) -> tuple[int, int]:
        """Which places in streams are looked at for a sample of few, as ``candidates_kernel``."""
        return max(_SEEN[0], int(self.limit.max())), max(_SEEN[1], int(self.quota.max()))

    @property
    def is_empty(self) -> bool:
        """Whether no message can be in the sample."""
        return not self.quota.any()


@dataclass(frozen=True)
class Sample:
    """Ends of messages, ``(n,)`` each.

    Attributes:
        flow: u8, equal at both ends.
        t_tsc: u8.
        proc: i4.
        is_receive: bool.
    """

    flow: NDArray[np.uint64]
    t_tsc: NDArray[np.uint64]
    proc: NDArray[np.int32]
    is_receive: NDArray[np.bool_]

    @classmethod
    def none(cls) -> Sample:
        """Return a sample of nothing."""
        none = np.zeros(0, np.uint64)
        return cls(none, none, np.zeros(0, np.int32), np.zeros(0, np.bool_))

    @classmethod
    def of(cls, part: Partition, rule: Rule) -> Sample:
        """Return that of a partition."""
        if rule.is_empty or part.tables["ops"].num_rows == 0:
            return cls.none()
        channels = Channels.of(part)
        if not rule.quota[channels.low : channels.low + channels.size].any():
            return cls.none()
        row, flow, inverted = _chosen(part, channels, rule, part.column("ops", "ordinal"))
        if inverted:
            row, flow, _ = _chosen(part, channels, rule, restored(part, channels))
        t_tsc, proc, op = (part.column("ops", name)[row] for name in ("t_tsc", "proc", "op"))
        return cls(flow, t_tsc, proc, op == Op.RECV)

    @classmethod
    def of_few(cls, part: Partition, rule: Rule) -> Sample:
        """Return one of a partition that costs least, and that tells no more than causality.

        Places in streams are chosen first, then messages at these. Arrivals are taken in the
        order in which they completed, of which the k-th one cannot have been before the k-th
        send either; how long a message took it does not tell. It is not that of ``of``.
        """
        if rule.is_empty or part.tables["ops"].num_rows == 0:
            return cls.none()
        row = _candidates(part.column("ops", "ordinal"), *rule.seen)
        own = np.minimum(part.column("ops", "channel")[row], np.uint32(rule.quota.size - 1))
        usable = rule.quota[own] > 0
        row, own = row[usable], own[usable]
        op, flags, place = (part.column("ops", name)[row] for name in ("op", "flags", "ordinal"))
        group = part.run.column("routes", "group")[own].astype(np.uint64)
        flow = (group + np.uint64(1)) << np.uint64(32) | place
        mixed = flow * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
        part_of_all, first_of_all = rule.seen
        seen = np.maximum(part_of_all, np.minimum(first_of_all / (place + 1.0), _SURE))
        wanted = np.maximum(rule.limit[own], rule.quota[own] / (place + 1.0))
        # What is left to chance once the place is chosen, so that all in all it is the rule's.
        taken = (mixed >> np.uint64(32)) * seen < wanted * _SURE
        kind = OP_CLASS[op]
        taken &= (kind == OpClass.SEND) | (kind == OpClass.RECV)
        taken &= flags & _UNSURE == 0
        t_tsc, proc = (part.column("ops", name)[row[taken]] for name in ("t_tsc", "proc"))
        return cls(flow[taken], t_tsc, proc, op[taken] == Op.RECV)

    @classmethod
    def joined(cls, samples: Sequence[Sample]) -> Sample:
        """Return all of one or more."""
        names = ("flow", "t_tsc", "proc", "is_receive")
        return cls(*(np.concatenate([getattr(one, name) for one in samples]) for name in names))

    def pairs(self) -> tuple[Ints, Ints]:
        """Return the rows of the sends and of the receives of messages with both ends.

        What is there several times, because ordinals have begun anew, is left out.
        """
        send, receive = (_once(self.flow, rows) for rows in (~self.is_receive, self.is_receive))
        found = np.intersect1d(
            self.flow[send], self.flow[receive], assume_unique=True, return_indices=True
        )
        return send[found[1]], receive[found[2]]


def messages_of(sample: Sample, t_ns: Ints, clock_of_proc: NDArray[np.int32]) -> Messages:
    """Return the messages of a sample whose times are known, ``(n,)`` i8."""
    send, receive = sample.pairs()
    clock = clock_of_proc[sample.proc].astype(np.int64)
    between = clock[send] != clock[receive]
    send, receive = send[between], receive[between]
    return Messages(clock[send], clock[receive], t_ns[send], t_ns[receive])


def _candidates(ordinal: NDArray[np.uint32], limit: int, quota: int) -> Ints:
    """Return the rows of places that are looked at, by ``Rule.seen``."""
    from sigmatrace.stages.kernels.clock_sample import candidates_kernel

    chosen = np.empty(ordinal.size, bool)
    candidates_kernel(ordinal, np.uint64(limit), np.uint64(quota), chosen.view(np.uint8))
    return np.flatnonzero(chosen)


def _chosen(
    part: Partition, channels: Channels, rule: Rule, ordinal: NDArray[np.uint32]
) -> tuple[Ints, NDArray[np.uint64], int]:
    """Return rows, their flows, and how many arrivals did not complete in posting order."""
    from sigmatrace.stages.kernels.clock_sample import sample_kernel

    mine = slice(channels.low, channels.low + channels.size)
    op, flags, aux = (part.column("ops", name) for name in ("op", "flags", "aux"))
    last = [np.zeros(channels.size, np.uint32) for _ in range(2)]
    state = np.zeros(channels.size, np.uint8)
    row, flow = np.empty(ordinal.size, np.int64), np.empty(ordinal.size, np.uint64)
    given = channels.channel, op, flags, ordinal, aux, channels.low, OP_CLASS, channels.group()
    rules = rule.limit[mine], rule.quota[mine]
    count, inverted = sample_kernel(*given, *rules, *last, state, row, flow)
    return row[:count].copy(), flow[:count].copy(), inverted


def _once(flow: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> Ints:
    """Return the chosen rows whose flow none of the others has, in order of flow."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(flow[rows], kind="stable")]
    same = np.zeros(rows.size + 1, bool)
    same[1:-1] = flow[rows][1:] == flow[rows][:-1]
    return rows[~(same[1:] | same[:-1])]
