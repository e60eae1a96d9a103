"""What a trace says was sent against what a packet capture shows, flow by flow. Pure.

A flow is what one place sent to one queue pair of another; a place is a port of a NIC. Packets name
no sending queue pair (`sigmatrace.validate.flows`), so this is as far as both can be told apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from sigmatrace.trace_format import Op
from sigmatrace.validate.flows import Flow, Message, Total

OP_OF = {
    **dict.fromkeys(("SEND", "SEND_IMM", "SEND_INV"), Op.SEND),
    **{"WRITE": Op.PUT, "WRITE_IMM": Op.PUT_DATA, "READ": Op.GET},
    **dict.fromkeys(("COMPARE_SWAP", "FETCH_ADD"), Op.ATOMIC_FETCH),
}
"""What a message on the wire is in a trace, by `Message.kind`."""
MANAGEMENT_QPN = 1
UNKNOWN_PSN = -1
_PSNS = 1 << 24
Amounts = Mapping[Op, Total]


class Key(NamedTuple):
    """A flow: sending place, receiving place, receiving queue pair."""

    source: str
    destination: str
    qpn: int


class Request(NamedTuple):
    """A message as its sender asked for it; fields that its kind does not have are 0."""

    kind: str
    length: int
    address: int
    rkey: int
    immediate: int


KIND_CODE = {kind: code for code, kind in enumerate(OP_OF)}
REQUEST = np.dtype(
    [("kind", "u1"), ("length", "u4"), ("address", "u8"), ("rkey", "u4"), ("immediate", "u4")]
)
"""A ``Request`` in arrays; kind: ``KIND_CODE``."""


@dataclass
class Sent:
    """What a trace says of a flow.

    Attributes:
        amounts: Messages and bytes by operation.
        requests: Each message (``REQUEST``), in the order of sending; None where the trace does not
            have them.
        connections: How many queue pairs sent; of several, the order of messages is not compared.
        is_ordered: The trace knows the order, as it does not where several threads posted: then it
            is not compared either.
        starts: Numbers of the first packets of the queue pairs that sent, ``UNKNOWN_PSN`` for what
            the trace does not know.
        qpns: Numbers of the queue pairs that sent.
        first_ns: When the first message was sent, by the trace; None where it has no times.
        last_ns: When the last one was.
    """

    amounts: dict[Op, Total] = field(default_factory=dict)
    requests: np.ndarray | None = None
    connections: int = 0
    is_ordered: bool = True
    starts: set[int] = field(default_factory=set)
    qpns: set[int] = field(default_factory=set)
    first_ns: int | None = None
    last_ns: int | None = None

    def between(self, first_ns: int | None, last_ns: int | None) -> None:
        """Extends the time of sending; None: not known."""
        if first_ns is not None and last_ns is not None:
            self.first_ns = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
            self.last_ns = last_ns if self.last_ns is None else max(self.last_ns, last_ns)

    def add(self, op: Op, messages: int, length: int) -> None:
        """Adds messages of an operation."""
        before = self.amounts.get(op, Total(0, 0))
        self.amounts[op] = Total(before.messages + messages, before.length + length)


class Verdict(StrEnum):
    """What came out for a flow."""

    EQUAL = "equal"
    DIFFERS = "different"
    NOT_WHOLE = "not whole in the capture"
    NOT_CAPTURED = "not captured"
    LOOPBACK = "loopback"
    NOT_TRACED = "not traced"


@dataclass(frozen=True)
class Compared:
    """A flow, compared.

    Attributes:
        key: The flow.
        verdict: DIFFERS also where amounts are equal and a request is another one. NOT_WHOLE: they
            differ, but it is not proven that the capture is whole (``_judged``). NOT_CAPTURED: it
            shows no packet between these places. LOOPBACK: within a place, where no wire is.
            NOT_TRACED: of queue pairs that the trace does not know of.
        traced: By the trace.
        captured: By the capture.
        requests: How many requests were compared one by one.
        differs_at: Number of the first request, in the order of sending, that is another one; -1
            where they are equal or not compared.
        repeated: Request packets that were sent again; their messages count once.
    """

    key: Key
    verdict: Verdict
    traced: Amounts
    captured: Amounts
    requests: int = 0
    differs_at: int = -1
    repeated: int = 0

    def text(self) -> str:
        """What differs, for people."""
        source, destination, qpn = self.key
        parts = []
        for op in sorted({*self.traced, *self.captured}):
            left, right = (one.get(op, Total(0, 0)) for one in (self.traced, self.captured))
            if left != right:
                parts.append(
                    f"{op.name.lower()}: {left.messages} of {left.length} bytes in the trace, "
                    f"{right.messages} of {right.length} bytes on the wire"
                )
        if self.differs_at >= 0:
            parts.append(f"request {self.differs_at} is another one")
        return f"{source} to queue pair {qpn:#x} of {destination}: {'; '.join(parts)}"


def compare(
    sent: Mapping[Key, Sent],
    flows: Iterable[Flow],
    place: Callable[[str], str],
    *,
    until_ns: int = 0,
    is_cut: bool = False,
) -> list[Compared]:
    """Compares all flows, those of either side.

    Args:
        sent: What the trace says. A flow of a queue pair that sent nothing is there, too.
        flows: What the capture shows.
        place: The place that an IP address belongs to.
        until_ns: When the capture's last packet was seen.
        is_cut: The file ends early or has frames that are not decoded: what is not there may have
            been on the wire.
    """
    captured: dict[Key, list[Flow]] = defaultdict(list)
    seen = set()
    answers: dict[Key, list[int]] = defaultdict(list)
    for flow in flows:
        key = Key(place(flow.source), place(flow.destination), flow.qpn)
        seen.add(frozenset(key[:2]))
        if flow.answered is not None:
            answers[key].append(flow.answered)
        if flow.qpn != MANAGEMENT_QPN:
            captured[key].append(flow)
    keys = dict.fromkeys([*sent, *(key for key, found in captured.items() if _any(found))])
    result = []
    for key in keys:
        one, found = sent.get(key), captured.get(key, [])
        if _any(found) or (one and one.amounts):
            back = [Key(key.destination, key.source, qpn) for qpn in (one.qpns if one else ())]
            answered = [psn for other in back for psn in answers[other]]
            extent = None if is_cut else _Extent(until_ns, answered)
            judged = _judged(key, one, found, frozenset(key[:2]) in seen, extent)
            result.append(replace(judged, repeated=sum(flow.repeated for flow in found)))
    return result


class _Extent(NamedTuple):
    """How far a capture is known to go.

    Attributes:
        until_ns: When its last packet was seen.
        answered: Of a flow, the last numbers that were acknowledged or answered.
    """

    until_ns: int
    answered: Sequence[int]


def _any(flows: Sequence[Flow]) -> bool:
    """Whether a message, or a part of one, was seen."""
    return any(flow.messages or _holes(flow) for flow in flows)


def _holes(flow: Flow) -> int:
    """How often something was sent of which there is no message."""
    return flow.incomplete + flow.contradicting + flow.unsupported


def _judged(
    key: Key, sent: Sent | None, flows: Sequence[Flow], is_seen: bool, extent: _Extent | None
) -> Compared:
    """Compares a flow.

    A difference is one where the wire shows more than the trace has, or as much and other messages,
    or less although the capture is proven to be whole. Whatever else differs cannot be told.

    Args:
        key: The flow.
        sent: By the trace.
        flows: By the capture.
        is_seen: There are packets between the two places.
        extent: How far the capture goes; None: what is not there may have been on the wire.
    """
    on_wire = _amounts(message for flow in flows for message in flow.messages)
    if sent is None:
        return Compared(key, Verdict.NOT_TRACED, {}, on_wire)
    if key.source == key.destination:
        return Compared(key, Verdict.LOOPBACK, sent.amounts, on_wire)
    if not is_seen:
        return Compared(key, Verdict.NOT_CAPTURED, sent.amounts, on_wire)
    requests, at = _compare_requests(sent, flows)
    fewer = any(on_wire.get(op, Total(0, 0)).messages < n for op, (n, _) in sent.amounts.items())
    verdict = Verdict.DIFFERS
    if not _shows_more(sent, flows, on_wire):
        if sent.amounts == on_wire and at < 0:
            verdict = Verdict.EQUAL
        elif _is_mixed(sent, flows) or (fewer and not _is_whole(sent, flows, extent)):
            verdict = Verdict.NOT_WHOLE
    return Compared(key, verdict, sent.amounts, on_wire, requests, at)


def _shows_more(sent: Sent, flows: Sequence[Flow], on_wire: Amounts) -> bool:
    """Whether the wire shows messages that the trace does not have, parts of some included."""
    if any(flow.unsure_mtu for flow in flows):
        on_wire = {op: total for op, total in on_wire.items() if op != Op.GET}
        return _exceeds(on_wire, sent.amounts)
    total = sum(count for count, _ in on_wire.values())
    is_mixed = _is_mixed(sent, flows)
    if sent.connections <= 1 and not is_mixed:
        total += sum(flow.incomplete for flow in flows)
    if total > sum(count for count, _ in sent.amounts.values()):
        return True
    return not is_mixed and _exceeds(on_wire, sent.amounts)


def _exceeds(these: Amounts, those: Amounts) -> bool:
    """Whether there are more messages of an operation."""
    return any(n > those.get(op, Total(0, 0)).messages for op, (n, _) in these.items())


def _is_mixed(sent: Sent, flows: Sequence[Flow]) -> bool:
    """Whether a packet of one message may have been taken for one of another.

    That is so where one number belongs to different packets, the numbers of reads are not certain,
    or a queue pair was connected again and its packets may have been taken for repeated ones.
    """
    again = sent.connections > 1
    return any(flow.contradicting or flow.unsure_mtu or (again and flow.repeated) for flow in flows)


def _is_whole(sent: Sent, flows: Sequence[Flow], extent: _Extent | None) -> bool:
    """Whether the capture is proven to have all packets of a flow.

    It has the first packet of each queue pair that sent, no gap behind it, nothing in parts or not
    decoded, no answer to a packet behind the last one; and from the first message on it lasts as
    long as the trace was sending. (Times are compared as durations, so that clocks need not agree.)
    """
    times = [message.time_ns for flow in flows for message in flow.messages]
    if extent is None or not times or sent.first_ns is None or sent.last_ns is None:
        return False
    if any(_holes(flow) for flow in flows):
        return False
    runs = [run for flow in flows for run in flow.runs]
    begins = {first % _PSNS for first, _ in runs}
    is_begun = all(
        any((start - first) % _PSNS < stop - first for first, stop in runs) for start in sent.starts
    )
    if UNKNOWN_PSN in sent.starts or not (is_begun and begins <= sent.starts):
        return False
    # Of several connections an answer may be to an earlier one, whose numbers may lie anywhere.
    last = max(stop for _, stop in runs)
    if sent.connections == 1 and any(_ahead(psn, last) >= 0 for psn in extent.answered):
        return False
    return extent.until_ns - min(times) >= sent.last_ns - sent.first_ns


def _ahead(psn: int, other: int) -> int:
    """How far a sequence number is ahead of another one; negative: behind."""
    return (psn - other + _PSNS // 2) % _PSNS - _PSNS // 2


def _amounts(messages: Iterable[Message]) -> dict[Op, Total]:
    counts: Counter[Op] = Counter()
    lengths: Counter[Op] = Counter()
    for message in messages:
        counts[OP_OF[message.kind]] += 1
        lengths[OP_OF[message.kind]] += message.length
    return {op: Total(count, lengths[op]) for op, count in counts.items()}


def _compare_requests(sent: Sent, flows: Sequence[Flow]) -> tuple[int, int]:
    """How many there are on both sides, and the number of the first that differs, or -1."""
    if sent.requests is None or any(flow.transport == "UD" for flow in flows):
        return 0, -1
    seen = as_array(request_of(message) for flow in flows for message in flow.messages)
    asked = sent.requests
    if sent.connections != 1 or not sent.is_ordered:
        seen, asked = np.sort(seen), np.sort(asked)
    both = min(asked.size, seen.size)
    unequal = np.flatnonzero(asked[:both] != seen[:both])
    at = int(unequal[0]) if unequal.size else both
    return both, -1 if at == asked.size == seen.size else at


def request_of(message: Message) -> Request:
    """A message of the wire as its sender asked for it."""
    address, rkey, immediate = message.address or 0, message.rkey or 0, message.immediate or 0
    return Request(message.kind, message.length, address, rkey, immediate)


def as_array(requests: Iterable[Request]) -> np.ndarray:
    """Requests as an array of ``REQUEST``."""
    return np.fromiter(((KIND_CODE[kind], *fields) for kind, *fields in requests), REQUEST)
