"""RoCEv2 packets of Ethernet frames. Pure; standard library alone.

Sources:
    * RoCEv2: InfiniBand Architecture Specification, volume 1, annex A17: the InfiniBand packet from
      its base transport header on is the payload of UDP datagrams to port 4791.
    * Transport headers and opcodes: the same volume, chapter 9 ("Transport layer"): table
      "OpCode field", and the fields of BTH, DETH, RETH, AtomicETH, XRCETH, AETH, ImmDt, IETH.

What is not verified: the invariant CRC and the checksums of IP and UDP.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

PORT = 4791
_ETHERTYPE_IPV4, _ETHERTYPE_IPV6, _ETHERTYPE_ROCE_V1 = 0x0800, 0x86DD, 0x8915
_VLAN_TAGS = (0x8100, 0x88A8, 0x9100, 0x9200, 0x9300)
_UDP = 17
_IPV6_FRAGMENT, _IPV6_AUTHENTICATION = 44, 51
_IPV6_EXTENSIONS = frozenset(
    (0, 43, _IPV6_FRAGMENT, _IPV6_AUTHENTICATION, 60, 135, 139, 140)
)  # RFC 7045: those that name the header behind them
_UDP_HEADER, _BTH, _ICRC = 8, 12, 4
TRANSPORTS = {0: "RC", 1: "UC", 3: "UD", 5: "XRC"}
_CONGESTION_NOTIFICATION = 0x81


class BthOpcode(IntEnum):
    """The operation in an opcode (its low five bits; the high three are the transport)."""

    SEND_FIRST = 0
    SEND_MIDDLE = 1
    SEND_LAST = 2
    SEND_LAST_IMM = 3
    SEND_ONLY = 4
    SEND_ONLY_IMM = 5
    WRITE_FIRST = 6
    WRITE_MIDDLE = 7
    WRITE_LAST = 8
    WRITE_LAST_IMM = 9
    WRITE_ONLY = 10
    WRITE_ONLY_IMM = 11
    READ_REQUEST = 12
    READ_RESPONSE_FIRST = 13
    READ_RESPONSE_MIDDLE = 14
    READ_RESPONSE_LAST = 15
    READ_RESPONSE_ONLY = 16
    ACKNOWLEDGE = 17
    ATOMIC_ACKNOWLEDGE = 18
    COMPARE_SWAP = 19
    FETCH_ADD = 20
    SEND_LAST_INV = 22
    SEND_ONLY_INV = 23
    FLUSH = 28
    ATOMIC_WRITE = 29


UNSUPPORTED = frozenset({BthOpcode.FLUSH, BthOpcode.ATOMIC_WRITE})
"""Known, but the headers behind the BTH are not decoded: what they ask for is not compared."""
RESPONSES = frozenset(range(BthOpcode.READ_RESPONSE_FIRST, BthOpcode.ATOMIC_ACKNOWLEDGE + 1))
_WITH_RETH = frozenset(
    {BthOpcode.WRITE_FIRST, BthOpcode.WRITE_ONLY, BthOpcode.WRITE_ONLY_IMM, BthOpcode.READ_REQUEST}
)
_WITH_ATOMIC = frozenset({BthOpcode.COMPARE_SWAP, BthOpcode.FETCH_ADD})
_WITH_IMMEDIATE = frozenset(op for op in BthOpcode if op.name.endswith(("_IMM", "_INV")))
_WITH_AETH = RESPONSES - {BthOpcode.READ_RESPONSE_MIDDLE}
_RETH, _ATOMIC = struct.Struct(">QII"), struct.Struct(">QIQQ")


class Packet(NamedTuple):
    """A RoCEv2 packet; fields whose header it does not have are None.

    Attributes:
        time_ns: When it was captured, ns since 1970.
        source: IP address it came from.
        destination: IP address it went to.
        transport: "RC", "UC", "UD" or "XRC".
        op: The operation.
        qpn: Number of the queue pair it went to.
        psn: Packet sequence number, 24 bits.
        payload: Bytes between the headers and the pad.
        address: Remote virtual address of a write, read or atomic.
        rkey: Remote key of it.
        length: Length of the whole write or read (bytes).
        immediate: Immediate data, or the invalidated rkey, as a number of its big-endian bytes.
        source_qpn: Number of the sending queue pair (UD).
        syndrome: Syndrome of an acknowledgement.
        datagram: Payload of a management datagram, as far as captured; empty for others.
    """

    time_ns: int
    source: str
    destination: str
    transport: str
    op: BthOpcode
    qpn: int
    psn: int
    payload: int
    address: int | None
    rkey: int | None
    length: int | None
    immediate: int | None
    source_qpn: int | None
    syndrome: int | None
    datagram: bytes


@dataclass
class FrameCounts:
    """What a capture file holds, by frames.

    Attributes:
        frames: All.
        roce: Decoded RoCEv2 packets.
        congestion: RoCEv2 congestion notifications.
        roce_v1: RoCE of version 1, which is not decoded.
        fragments: IP fragments, of UDP as far as they tell, which are not decoded.
        unsupported: RoCEv2 packets of known operations that are not decoded (flush, atomic write).
        damaged: RoCEv2 packets that are cut within their headers or contradict themselves.
        unclear: Frames cut before what tells whether they are RoCEv2 packets.
        other: Everything else.
        cut: 1 when the file ends within a frame, or goes on with what is none.
    """

    frames: int = 0
    roce: int = 0
    congestion: int = 0
    roce_v1: int = 0
    fragments: int = 0
    unsupported: int = 0
    damaged: int = 0
    unclear: int = 0
    other: int = 0
    cut: int = 0

    @property
    def undecoded(self) -> int:
        """Frames that may have been RoCEv2 packets of operations that are compared."""
        return self.fragments + self.damaged + self.unclear + self.cut


def decode(time_ns: int, frame: bytes, counts: FrameCounts) -> Packet | None:
    """The RoCEv2 packet in a frame; any other frame is counted.

    Args:
        time_ns: When it was captured, ns since 1970.
        frame: From the Ethernet header on; its end may be cut off behind the RoCEv2 headers.
        counts: Counted up.
    """
    counts.frames += 1
    try:
        datagram = _udp_of(frame, counts)
        if datagram is None:
            return None
        source, destination, at = datagram
        packet = _transport(time_ns, source, destination, frame, at)
    except (struct.error, IndexError, ValueError):
        counts.damaged += 1
        return None
    if packet is None:
        counts.congestion += 1
    elif packet.op in UNSUPPORTED:
        counts.unsupported += 1
    else:
        counts.roce += 1
    return packet


class _Ip(NamedTuple):
    """What an IP header says of what is behind it.

    Attributes:
        addresses: Source and destination, one after the other.
        protocol: Of the payload.
        is_fragment: Whether it is a part of a datagram.
        at: Offset of the payload.
    """

    addresses: bytes
    protocol: int
    is_fragment: bool
    at: int


def _udp_of(frame: bytes, counts: FrameCounts) -> tuple[str, str, int] | None:
    """Source, destination and offset of the UDP header, when it is to RoCEv2's port."""
    try:
        kind, at = _ethernet(frame)
        if kind == _ETHERTYPE_ROCE_V1:
            counts.roce_v1 += 1
            return None
        ip = {_ETHERTYPE_IPV4: _ipv4, _ETHERTYPE_IPV6: _ipv6}.get(kind, _no_ip)(frame, at)
        if ip.protocol == _UDP and ip.is_fragment:
            counts.fragments += 1
        elif ip.protocol == _UDP and struct.unpack_from(">H", frame, ip.at + 2)[0] == PORT:
            half = len(ip.addresses) // 2
            return _address(ip.addresses[:half]), _address(ip.addresses[half:]), ip.at
        else:
            counts.other += 1
    except (struct.error, IndexError):
        counts.unclear += 1
    return None


def _ethernet(frame: bytes) -> tuple[int, int]:
    """Type of what is in a frame behind all VLAN tags, and its offset.

    Raises:
        struct.error: The frame is cut before it.
    """
    at = 12
    while (kind := struct.unpack_from(">H", frame, at)[0]) in _VLAN_TAGS:
        at += 4
    return kind, at + 2


def _no_ip(frame: bytes, at: int) -> _Ip:
    return _Ip(b"", -1, False, at)


def _ipv4(frame: bytes, at: int) -> _Ip:
    """Raises struct.error or IndexError when the header is cut; so does ``_ipv6``."""
    size, fragment, protocol, addresses = struct.unpack_from(">B5xHxB2x8s", frame, at)
    return _Ip(addresses, protocol, bool(fragment & 0x3FFF), at + 4 * (size & 15))


def _ipv6(frame: bytes, at: int) -> _Ip:
    protocol, addresses = struct.unpack_from(">6xBx32s", frame, at)
    at += 40
    while protocol in _IPV6_EXTENSIONS:
        here, (protocol, units) = protocol, struct.unpack_from(">BB", frame, at)
        if here == _IPV6_FRAGMENT:
            # A fragment that is a whole datagram ("atomic", RFC 6946) is decoded as one.
            if struct.unpack_from(">H", frame, at + 2)[0] & 0xFFF9:
                return _Ip(addresses, _UDP if protocol in _IPV6_EXTENSIONS else protocol, True, at)
            at += 8
        else:
            at += 4 * (units + 2) if here == _IPV6_AUTHENTICATION else 8 * (units + 1)
    return _Ip(addresses, protocol, False, at)


@functools.lru_cache(maxsize=1 << 16)
def _address(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed))


def _transport(
    time_ns: int, source: str, destination: str, frame: bytes, udp: int
) -> Packet | None:
    """The packet whose UDP header is at `udp`; None for a congestion notification.

    Raises:
        ValueError, struct.error, IndexError: It is cut within its headers, or is nonsense.
    """
    at = udp + _UDP_HEADER
    if len(frame) < at + _BTH:
        raise ValueError("cut")
    opcode, pad = frame[at], (frame[at + 1] >> 4) & 3
    if opcode == _CONGESTION_NOTIFICATION:
        return None
    transport = TRANSPORTS.get(opcode >> 5)
    if transport is None:
        raise ValueError("unknown transport")
    op = BthOpcode(opcode & 31)
    qpn = int.from_bytes(frame[at + 5 : at + 8], "big")
    psn = int.from_bytes(frame[at + 9 : at + 12], "big")
    at += _BTH
    source_qpn = None
    if transport == "UD":
        source_qpn = struct.unpack_from(">II", frame, at)[1] & 0xFFFFFF
        at += 8
    elif transport == "XRC" and op not in RESPONSES:
        at += 4
    at, address, rkey, length, immediate, syndrome = _extended(op, frame, at)
    end = udp + int.from_bytes(frame[udp + 4 : udp + 6], "big") - _ICRC - pad
    if end < at:
        raise ValueError("shorter than its headers")
    return Packet(
        *(time_ns, source, destination, transport, op, qpn, psn, end - at),
        *(address, rkey, length, immediate, source_qpn, syndrome),
        frame[at:end] if transport == "UD" and qpn == 1 else b"",
    )


_Extended = tuple[int, int | None, int | None, int | None, int | None, int | None]


def _extended(op: BthOpcode, frame: bytes, at: int) -> _Extended:
    """Offset behind the headers at `at`; address, rkey, length, immediate, syndrome in them."""
    address = rkey = length = immediate = syndrome = None
    if op in _WITH_RETH:
        address, rkey, length = _RETH.unpack_from(frame, at)
        at += _RETH.size
    elif op in _WITH_ATOMIC:
        address, rkey, *_ = _ATOMIC.unpack_from(frame, at)
        at += _ATOMIC.size
    elif op in _WITH_AETH:
        syndrome = frame[at]
        at += 12 if op is BthOpcode.ATOMIC_ACKNOWLEDGE else 4
    if op in _WITH_IMMEDIATE:
        (immediate,) = struct.unpack_from(">I", frame, at)
        at += 4
    return at, address, rkey, length, immediate, syndrome
