"""What a trace says was sent against what a packet capture shows, flow by flow. Pure.

A flow is what one place sent to one queue pair of another; a place is a port of a NIC. Packets name
no sending queue pair (`sigmatrace.validate.flows`), so this is as far as both can be told apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """

    amounts: dict[Op, Total] = field(default_factory=dict)
    requests: np.ndarray | None = None
    connections: int = 0
    is_ordered: bool = True

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
            differ, and the capture has parts of messages or what is not decoded, ends early, or
            leaves the path MTU of reads open. NOT_CAPTURED: it shows no packet between these
            places. LOOPBACK: within a place, where no wire is. NOT_TRACED: of queue pairs that
            the trace does not know of.
        traced: By the trace.
        captured: By the capture.
        requests: How many requests were compared one by one.
        differs_at: Number of the first request, in the order of sending, that is another one; -1
            where they are equal or not compared.
    """

    key: Key
    verdict: Verdict
    traced: Amounts
    captured: Amounts
    requests: int = 0
    differs_at: int = -1

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
    is_cut: bool = False,
) -> list[Compared]:
    """Compares all flows, those of either side.

    Args:
        sent: What the trace says. A flow of a queue pair that sent nothing is there, too.
        flows: What the capture shows.
        place: The place that an IP address belongs to.
        is_cut: The capture ends early: what is not there may have been on the wire.
    """
    captured: dict[Key, list[Flow]] = defaultdict(list)
    seen = set()
    for flow in flows:
        key = Key(place(flow.source), place(flow.destination), flow.qpn)
        seen.add(frozenset(key[:2]))
        if flow.qpn != MANAGEMENT_QPN:
            captured[key].append(flow)
    keys = dict.fromkeys([*sent, *(key for key, found in captured.items() if _any(found))])
    return [
        _judged(key, sent.get(key), captured.get(key, []), frozenset(key[:2]) in seen, is_cut)
        for key in keys
        if _any(captured.get(key, [])) or sent[key].amounts
    ]


def _any(flows: Sequence[Flow]) -> bool:
    """Whether a message, or a part of one, was seen."""
    return any(flow.messages or _holes(flow) for flow in flows)


def _holes(flow: Flow) -> int:
    """How often something was sent of which there is no message."""
    return flow.incomplete + flow.contradicting + flow.unsupported


def _judged(
    key: Key, sent: Sent | None, flows: Sequence[Flow], is_seen: bool, is_cut: bool
) -> Compared:
    on_wire = _amounts(message for flow in flows for message in flow.messages)
    if sent is None:
        return Compared(key, Verdict.NOT_TRACED, {}, on_wire)
    if key.source == key.destination:
        return Compared(key, Verdict.LOOPBACK, sent.amounts, on_wire)
    if not is_seen:
        return Compared(key, Verdict.NOT_CAPTURED, sent.amounts, on_wire)
    requests, at = _compare_requests(sent, flows)
    verdict = Verdict.EQUAL
    if sent.amounts != on_wire or at >= 0:
        holes = any(flow.unsure_mtu or _holes(flow) for flow in flows)
        verdict = Verdict.NOT_WHOLE if holes or is_cut else Verdict.DIFFERS
    return Compared(key, verdict, sent.amounts, on_wire, requests, at)


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
