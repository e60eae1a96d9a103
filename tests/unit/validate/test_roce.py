"""The decoder of frames: headers, and what it counts."""

import struct
from pathlib import Path

import pytest

from sigmatrace.validate.pcap import read_packets
from sigmatrace.validate.roce import BthOpcode, FrameCounts, Packet
from tests.unit.validate import wire
from tests.unit.validate.wire import RC, UC, UD, XRC, packet, write_pcap


def read(path: Path) -> tuple[list[Packet], FrameCounts]:
    counts = FrameCounts()
    return list(read_packets(path, counts)), counts


def only(tmp_path: Path, frame: bytes) -> Packet:
    (found,), counts = read(write_pcap(tmp_path / "one.pcap", [frame]))
    assert counts == FrameCounts(frames=1, roce=1)
    return found


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 1023, 1024])
def test_payload_is_without_pad_headers_and_checksum(tmp_path: Path, size: int) -> None:
    found = only(tmp_path, packet(RC | wire.SEND_ONLY, 7, size))
    assert (found.payload, found.op, found.psn) == (size, BthOpcode.SEND_ONLY, 7)
    assert (found.source, found.destination, found.qpn) == (wire.A, wire.B, 0x11)
    assert found.transport == "RC"


def test_headers_of_one_sided_operations(tmp_path: Path) -> None:
    write = wire.reth(0xFEDCBA9876543210, 0xCAFE, 5000)
    found = only(tmp_path, packet(RC | wire.WRITE_FIRST, 1, 1024, headers=write))
    assert (found.address, found.rkey, found.length) == (0xFEDCBA9876543210, 0xCAFE, 5000)
    assert found.payload == 1024
    imm = wire.reth(8, 9, 3) + wire.number(0x01020304)
    found = only(tmp_path, packet(UC | wire.WRITE_ONLY_IMM, 1, 3, headers=imm))
    assert (found.transport, found.immediate, found.payload) == ("UC", 0x01020304, 3)
    atomic = struct.pack(">QIQQ", 64, 5, 1, 2)
    found = only(tmp_path, packet(RC | wire.COMPARE_SWAP, 1, headers=atomic))
    assert (found.op, found.address, found.rkey) == (BthOpcode.COMPARE_SWAP, 64, 5)
    assert (found.length, found.payload) == (None, 0)


def test_headers_of_answers(tmp_path: Path) -> None:
    nak = wire.number(0x62 << 24 | 5)
    assert only(tmp_path, packet(RC | wire.ACK, 1, headers=nak)).syndrome == 0x62
    both = wire.ACKNOWLEDGED + bytes(8)
    assert only(tmp_path, packet(RC | wire.ATOMIC_ACK, 1, headers=both)).payload == 0
    middle = only(tmp_path, packet(RC | wire.RESPONSE_MIDDLE, 1, 1024))
    assert (middle.syndrome, middle.payload) == (None, 1024)


def test_transports_with_headers_of_their_own(tmp_path: Path) -> None:
    headers = wire.deth(0x77) + wire.number(42)
    found = only(tmp_path, packet(UD | wire.SEND_ONLY_IMM, 1, 10, headers=headers))
    assert (found.transport, found.source_qpn, found.immediate) == ("UD", 0x77, 42)
    assert found.payload == 10
    found = only(tmp_path, packet(XRC | wire.SEND_ONLY, 1, 10, headers=wire.number(9)))
    assert (found.transport, found.payload) == ("XRC", 10)
    found = only(tmp_path, packet(RC | wire.SEND_ONLY_INV, 1, 10, headers=wire.number(0xAB)))
    assert (found.op, found.immediate, found.payload) == (BthOpcode.SEND_ONLY_INV, 0xAB, 10)


def test_ipv6_and_vlan(tmp_path: Path) -> None:
    frame = packet(wire.SEND_ONLY, 1, 5, source="fe80::1", destination="fe80::2", vlan=True)
    found = only(tmp_path, frame)
    assert (found.source, found.destination, found.payload) == ("fe80::1", "fe80::2", 5)


@pytest.mark.parametrize("opcode", [28, 29])
def test_operations_that_are_known_and_not_decoded(tmp_path: Path, opcode: int) -> None:
    found, counts = read(write_pcap(tmp_path / "x.pcap", [packet(RC | opcode, 7, 24)]))
    assert [(one.op, one.psn, one.address) for one in found] == [(opcode, 7, None)]
    assert counts == FrameCounts(frames=1, unsupported=1)


def test_cut_frames_keep_their_length(tmp_path: Path) -> None:
    """A capture of headers alone is enough; less than them is damaged."""
    frame = packet(wire.WRITE_ONLY, 1, 1000, headers=wire.reth(1, 2, 1000))
    headers = 14 + 20 + 8 + 12 + 16
    (found,), _ = read(write_pcap(tmp_path / "x.pcap", [frame], snap=headers))
    assert found.payload == 1000
    found, counts = read(write_pcap(tmp_path / "x.pcap", [frame], snap=headers - 1))
    assert (found, counts) == ([], FrameCounts(frames=1, damaged=1))


def test_what_is_no_packet_is_counted(tmp_path: Path) -> None:
    good = packet(wire.SEND_ONLY, 1, 100)
    fragment = good[:20] + b"\x20\x00" + good[22:]
    other_port = good[:36] + b"\x12\xb8" + good[38:]
    version_1 = good[:12] + b"\x89\x15" + good[14:]
    unknown = packet(0x1F, 1)
    contradicting = packet(wire.WRITE_ONLY, 1)[:60]
    notification = packet(0x81, 0, 16)
    frames = [
        good,
        fragment,
        other_port,
        version_1,
        unknown,
        contradicting,
        notification,
        b"",
        good,
    ]
    found, counts = read(write_pcap(tmp_path / "x.pcap", frames))
    assert len(found) == 2
    assert counts == FrameCounts(
        9, 2, congestion=1, roce_v1=1, fragments=1, damaged=2, unclear=1, other=1
    )
    assert counts.undecoded == 4


V6 = {"source": "fe80::1", "destination": "fe80::2"}
UDP = 17


def extended(*headers: tuple[int, bytes], last: int = UDP) -> bytes:
    """A packet with IPv6 extension headers, each its type and what follows the type of the next."""
    frame = packet(wire.SEND_ONLY, 1, 5, **V6)
    kinds = [*(kind for kind, _ in headers), last]
    chain = b"".join(
        bytes([after]) + rest for (_, rest), after in zip(headers, kinds[1:], strict=True)
    )
    return frame[:20] + bytes(kinds[:1]) + frame[21:54] + chain + frame[54:]


HOP, AUTH = (0, b"\0\1\4\0\0\0\0"), (51, b"\1" + bytes(10))
LONG = (60, b"\1" + bytes(14))


@pytest.mark.parametrize(
    "headers", [(HOP,), (HOP, LONG), (AUTH,), ((44, bytes(7)),), (HOP, (43, bytes(7)), AUTH, LONG)]
)
def test_extension_headers_of_ipv6_are_passed(tmp_path: Path, headers) -> None:
    found = only(tmp_path, extended(*headers))
    assert (found.source, found.destination, found.payload) == ("fe80::1", "fe80::2", 5)


@pytest.mark.parametrize("where", [1, 8, 9, 0xFFF8])
@pytest.mark.parametrize("more", [(), (LONG,)])
def test_fragments_of_ipv6_are_counted(tmp_path: Path, where: int, more) -> None:
    fragment = (44, b"\0" + struct.pack(">HI", where, 7))
    found, counts = read(write_pcap(tmp_path / "x.pcap", [extended(HOP, fragment, *more)]))
    assert (found, counts) == ([], FrameCounts(frames=1, fragments=1))


def test_other_protocols_behind_extension_headers_are_others(tmp_path: Path) -> None:
    fragment = (44, b"\0" + struct.pack(">HI", 8, 7))
    frames = [extended(HOP, last=6), extended(fragment, last=6), extended(last=59)]
    found, counts = read(write_pcap(tmp_path / "x.pcap", frames))
    assert (found, counts) == ([], FrameCounts(frames=3, other=3))


@pytest.mark.parametrize("kind", [0x8100, 0x88A8, 0x9100, 0x9200])
def test_tags_of_vlans_within_vlans(tmp_path: Path, kind: int) -> None:
    inner = packet(wire.SEND_ONLY, 1, 5, vlan=True)
    tagged = inner[:12] + struct.pack(">HH", kind, 7) + inner[12:]
    assert only(tmp_path, tagged).payload == 5


@pytest.mark.parametrize(
    ("frame", "ends"),
    [
        (packet(wire.SEND_ONLY, 1, 5), 38),
        (packet(wire.SEND_ONLY, 1, 5, vlan=True), 42),
        (extended(HOP, AUTH), 78),
    ],
)
def test_frames_cut_before_the_udp_port_may_have_been_anything(tmp_path: Path, frame, ends) -> None:
    for snap in range(1, ends):
        found, counts = read(write_pcap(tmp_path / "x.pcap", [frame], snap=snap))
        assert (found, counts) == ([], FrameCounts(frames=1, unclear=1))
    found, counts = read(write_pcap(tmp_path / "x.pcap", [frame], snap=ends))
    assert counts == FrameCounts(frames=1, damaged=1)
