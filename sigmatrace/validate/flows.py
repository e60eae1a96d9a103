"""What RoCEv2 queue pairs sent each other, from their packets: a judge of the trace. Pure.

A packet names the queue pair that it goes to and, but for UD, not the one that it comes from; so
the unit is the flow: the packets from one IP address to one queue pair.

**Retransmissions.** A request packet of a reliable queue pair owns a sequence number (PSN), a read
request one for each packet of its response. PSNs of 24 bits are unwrapped, and each number counts
once. A repeated read may ask for what is still missing only: its PSN is inside the range of the
first request. (InfiniBand Architecture Specification, volume 1, chapter 9, sections "Packet
sequence numbers" and "Requester behavior"; opcodes and headers: `sigmatrace.validate.roce`.)

**Holes.** Numbers follow each other, so a packet that the capture lacks leaves a gap: `Flow.runs`.

What the wire cannot show: requests that never left, and that a queue pair is created or connected
anew with the same number. Where its PSNs begin at the same one again, a packet like an earlier one
counts as repeated and another one as contradicting; else a new run begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sigmatrace.validate.connections import Connection, ConnectionManager
from sigmatrace.validate.roce import RESPONSES, UNSUPPORTED, BthOpcode, FrameCounts, Packet

_PSN_BITS = 24
_HALF = 1 << (_PSN_BITS - 1)
_ATOMIC_BYTES = 8
_NAK, _RNR_NAK = 0b011, 0b001  # bits 5 and 6 of an AETH syndrome
_WHOLE = frozenset(op for op in BthOpcode if "_ONLY" in op.name) - RESPONSES
_FIRST = frozenset({BthOpcode.SEND_FIRST, BthOpcode.WRITE_FIRST})
_MIDDLE = frozenset({BthOpcode.SEND_MIDDLE, BthOpcode.WRITE_MIDDLE})
_ONE_PACKET = {
    BthOpcode.READ_REQUEST: "READ",
    BthOpcode.COMPARE_SWAP: "COMPARE_SWAP",
    BthOpcode.FETCH_ADD: "FETCH_ADD",
}


class Message(NamedTuple):
    """A work request as seen on the wire.

    Attributes:
        kind: "SEND", "SEND_IMM", "SEND_INV", "WRITE", "WRITE_IMM", "READ", "COMPARE_SWAP" or
            "FETCH_ADD".
        psn: Number of its first packet, unwrapped.
        time_ns: When its first packet was first seen, ns since 1970.
        length: Bytes.
        address: Remote virtual address of a one-sided one.
        rkey: Remote key of a one-sided one.
        immediate: Immediate data, or the invalidated rkey, read as a big-endian number.
    """

    kind: str
    psn: int
    time_ns: int
    length: int
    address: int | None
    rkey: int | None
    immediate: int | None


class Total(NamedTuple):
    """Messages of one kind, and their bytes."""

    messages: int
    length: int


@dataclass
class Flow:
    """From an IP address to a queue pair (for UD: from one queue pair to another).

    Attributes:
        source: IP address of the sender.
        destination: IP address of the receiver.
        qpn: Number of the receiving queue pair; 1 is that of management datagrams.
        transport: "RC", "UC", "UD" or "XRC".
        source_qpn: Number of the sending queue pair, where UD or the connection manager tells it.
        messages: In the order of sending.
        packets: Request packets, repeated ones included.
        repeated: Request packets that were retransmissions.
        incomplete: Messages that the capture does not have as a whole; not in `messages`. The
            fewest where a hole may hide beginnings and ends.
        unsupported: Packets of operations that are not decoded; not in `messages`.
        unsure_mtu: Whether packets tell several path MTUs (the number of a queue pair was used
            again), and how many sequence numbers its reads own is not certain.
        contradicting: Request packets with the number of a different one; not in `messages`.
        runs: First and one past the last of the numbers, unwrapped, that request packets own
            without a gap. Of UD those of the sending queue pair, over all its receivers.
        responses: Response packets to requests of the other direction, each PSN once.
        response_bytes: Payload of them.
        repeated_responses: Those that came again.
        answered: PSN of the last request of the other direction that was acknowledged or answered.
        refusals: Negative acknowledgements of requests of the other direction, by syndrome;
            "receiver not ready" is 0x20 to 0x3f.
    """

    source: str
    destination: str
    qpn: int
    transport: str
    source_qpn: int | None
    messages: list[Message] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)
    packets: int = 0
    repeated: int = 0
    incomplete: int = 0
    contradicting: int = 0
    unsupported: int = 0
    unsure_mtu: bool = False
    responses: int = 0
    response_bytes: int = 0
    repeated_responses: int = 0
    answered: int | None = None
    refusals: Counter[int] = field(default_factory=Counter)

    def totals(self) -> dict[str, Total]:
        """Messages and bytes by kind."""
        kinds = sorted({message.kind for message in self.messages})
        lengths = {kind: [m.length for m in self.messages if m.kind == kind] for kind in kinds}
        return {kind: Total(len(found), sum(found)) for kind, found in lengths.items()}


@dataclass(frozen=True)
class PacketCapture:
    """What a capture file shows.

    Attributes:
        flows: In the order of their first packets.
        connections: In the order of their acceptance.
        frames: What else is in the file, and what could not be decoded.
        until_ns: When the last packet was seen, ns since 1970; 0 when there is none.
    """

    flows: list[Flow]
    connections: list[Connection]
    frames: FrameCounts
    until_ns: int = 0


def assemble(
    packets: Iterable[Packet], frames: FrameCounts, mtu: int | None = None
) -> PacketCapture:
    """Makes messages of packets.

    Args:
        packets: In the order of the capture.
        frames: Counted up meanwhile by whatever yields the packets.
        mtu: Path MTU of the queue pairs (bytes). By default that of each flow is taken from its
            packets and from the responses to its reads.
    """
    builders: dict[tuple[str, str, int, str, int | None], _Builder] = {}
    datagrams: dict[tuple[str, int | None], _Numbers] = {}
    manager = ConnectionManager()
    until_ns = 0
    for packet in packets:
        until_ns = max(until_ns, packet.time_ns)
        key = packet.source, packet.destination, packet.qpn, packet.transport, packet.source_qpn
        builder = builders.get(key)
        if builder is None:
            builder = builders[key] = _Builder(Flow(*key))
        builder.take(packet)
        if packet.transport == "UD":
            datagrams.setdefault((packet.source, packet.source_qpn), _Numbers()).take(packet.psn)
        if packet.datagram:
            manager.take(packet)
    _share_responses(builders.values())
    senders = manager.senders()
    for builder in builders.values():
        builder.finish(mtu)
        flow = builder.flow
        if flow.transport == "UD":
            flow.runs = datagrams[flow.source, flow.source_qpn].runs()
        if flow.source_qpn is None:
            flow.source_qpn = senders.get((flow.source, flow.destination, flow.qpn))
    flows = [builder.flow for builder in builders.values()]
    return PacketCapture(flows, manager.connections, frames, until_ns)


class _Unwrapper:
    """24-bit sequence numbers as numbers that go on: each is taken near the highest before it."""

    def __init__(self) -> None:
        self.highest = -1  # none yet

    def unwrap(self, psn: int) -> int:
        if self.highest < 0:
            self.highest = psn
        value = self.highest + ((psn - self.highest + _HALF) & (2 * _HALF - 1)) - _HALF
        self.highest = max(self.highest, value)
        return value


class _Numbers:
    """Numbers of the datagrams of one queue pair, whoever receives them."""

    def __init__(self) -> None:
        self._psn = _Unwrapper()
        self._seen: set[int] = set()

    def take(self, psn: int) -> None:
        self._seen.add(self._psn.unwrap(psn))

    def runs(self) -> list[tuple[int, int]]:
        runs: list[tuple[int, int]] = []
        for psn in sorted(self._seen):
            _own(runs, psn, psn + 1)
        return runs


def _own(runs: list[tuple[int, int]], first: int, stop: int) -> None:
    """Adds numbers to runs; they come in ascending order."""
    if runs and first <= runs[-1][1]:
        runs[-1] = runs[-1][0], max(runs[-1][1], stop)
    else:
        runs.append((first, stop))


class _Builder:
    """Collects the packets of a flow by sequence number, requests and responses apart."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.requests: dict[int, Packet] = {}
        self.read_sizes: dict[int, set[int]] = {}  # PSN: payloads of first packets of responses
        self.sizes: set[int] = set()  # payloads of packets that are not the last of a message
        self._request_psn, self._response_psn, self._answer_psn = (_Unwrapper() for _ in range(3))
        self._responses: set[int] = set()

    def take(self, packet: Packet) -> None:
        if packet.op in RESPONSES:
            self._take_response(packet)
            return
        flow = self.flow
        flow.packets += 1
        if packet.op in UNSUPPORTED:
            flow.unsupported += 1
            return
        if flow.transport == "UD":
            # One packet is one message and never comes again; other receivers share the PSNs.
            flow.messages.append(_message(packet, packet.psn, packet.payload))
            return
        psn = self._request_psn.unwrap(packet.psn)
        earlier = self.requests.setdefault(psn, packet)
        if earlier is packet:
            if packet.op in _FIRST or packet.op in _MIDDLE:
                self.sizes.add(packet.payload)
        elif _same(earlier, packet):
            flow.repeated += 1
        else:
            flow.contradicting += 1

    def _take_response(self, packet: Packet) -> None:
        flow = self.flow
        is_acknowledgement = packet.op is BthOpcode.ACKNOWLEDGE
        if is_acknowledgement and ((packet.syndrome or 0) >> 5) & 3 in (_NAK, _RNR_NAK):
            flow.refusals[packet.syndrome or 0] += 1
            return
        self._answer_psn.unwrap(packet.psn)
        flow.answered = self._answer_psn.highest
        if is_acknowledgement:
            return
        if packet.op is BthOpcode.READ_RESPONSE_FIRST:
            self.read_sizes.setdefault(packet.psn, set()).add(packet.payload)
        psn = self._response_psn.unwrap(packet.psn)
        if psn in self._responses:
            flow.repeated_responses += 1
            return
        self._responses.add(psn)
        flow.responses += 1
        flow.response_bytes += (
            _ATOMIC_BYTES if packet.op is BthOpcode.ATOMIC_ACKNOWLEDGE else packet.payload
        )

    def finish(self, mtu: int | None) -> None:
        """Assembles the messages; of several MTUs with the largest: reads own fewest numbers."""
        reads = any(packet.op is BthOpcode.READ_REQUEST for packet in self.requests.values())
        self.flow.unsure_mtu = mtu is None and reads and len(self.sizes) > 1
        assembly = _Assembly(self.flow, mtu or max(self.sizes, default=0))
        for psn in sorted(self.requests):
            assembly.take(psn, self.requests[psn])
        assembly.finish()


def _same(one: Packet, other: Packet) -> bool:
    """Whether a packet is another one again: all but the time is equal."""
    return one._replace(time_ns=0) == other._replace(time_ns=0)


def _share_responses(builders: Iterable[_Builder]) -> None:
    """Tells each flow the sizes of the full response packets to its reads.

    The response to a read has the read's PSN; which of the flows of the other direction belongs to
    the same queue pair is not known.
    """
    sizes: dict[tuple[str, str, int], set[int]] = {}
    builders = list(builders)
    for builder in builders:
        for psn, found in builder.read_sizes.items():
            key = builder.flow.destination, builder.flow.source, psn
            sizes.setdefault(key, set()).update(found)
    for builder in builders:
        flow = builder.flow
        for packet in builder.requests.values():
            if packet.op is BthOpcode.READ_REQUEST:
                key = flow.source, flow.destination, packet.psn
                builder.sizes |= sizes.get(key, set())


def _kind(op: BthOpcode) -> str:
    """What a message is whose last packet has this operation."""
    name, _, suffix = op.name.partition("_")
    return _ONE_PACKET.get(op) or name + "".join(f"_{s}" for s in suffix.split("_")[1:])


def _message(last: Packet, psn: int, length: int, first: Packet | None = None) -> Message:
    first = first or last
    return Message(
        _kind(last.op), psn, first.time_ns, length, first.address, first.rkey, last.immediate
    )


class _Assembly:
    """Makes messages of request packets that come in the order of their numbers."""

    def __init__(self, flow: Flow, mtu: int) -> None:
        self._flow, self._mtu = flow, mtu
        self._first: Packet | None = None
        self._psn = self._next = self._length = 0
        self._orphaned = False  # inside a message whose beginning is missing, and is counted
        self._reads_end = -_HALF  # no number is below

    def take(self, psn: int, packet: Packet) -> None:
        flow = self._flow
        if psn < self._reads_end:
            if packet.op is BthOpcode.READ_REQUEST:
                flow.repeated += 1
            else:
                flow.contradicting += 1
            return
        _own(flow.runs, psn, psn + 1)
        if packet.op in _ONE_PACKET or packet.op in _WHOLE:
            self._end_incomplete()
            self._orphaned = False
            self._take_whole(psn, packet)
        elif packet.op in _FIRST:
            self._end_incomplete()
            self._orphaned = False
            self._first, self._psn, self._length = packet, psn, packet.payload
            self._next = psn + 1
        elif self._first is None or psn != self._next:
            self._take_orphan(packet)
        else:
            self._next += 1
            self._length += packet.payload
            if packet.op not in _MIDDLE:
                self._complete(packet)

    def _take_whole(self, psn: int, packet: Packet) -> None:
        length = packet.payload
        if packet.op is BthOpcode.READ_REQUEST:
            length = packet.length or 0
            numbers = -(-length // self._mtu) if self._mtu else 1
            self._reads_end = psn + max(numbers, 1)
            _own(self._flow.runs, psn, self._reads_end)
        elif packet.op in _ONE_PACKET:
            length = _ATOMIC_BYTES
        elif packet.length is not None and packet.length != length:
            self._flow.incomplete += 1
            return
        self._flow.messages.append(_message(packet, psn, length))

    def _take_orphan(self, packet: Packet) -> None:
        self._end_incomplete()
        self._flow.incomplete += not self._orphaned
        self._orphaned = packet.op in _MIDDLE

    def _complete(self, last: Packet) -> None:
        first, self._first = self._first, None
        if first is not None and first.length in (None, self._length):
            self._flow.messages.append(_message(last, self._psn, self._length, first))
        else:
            self._flow.incomplete += 1

    def _end_incomplete(self) -> None:
        """Counts the open message, if there is one: its end did not come."""
        if self._first is not None:
            self._flow.incomplete += 1
            self._orphaned = True
        self._first = None

    def finish(self) -> None:
        self._end_incomplete()
