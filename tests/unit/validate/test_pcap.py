"""Files of packets: formats, what is refused, and where they end."""

import struct
from pathlib import Path

import pytest

from sigmatrace.errors import PcapError
from sigmatrace.validate.pcap import check_file, read_packets
from sigmatrace.validate.roce import FrameCounts, Packet
from tests.unit.validate import wire
from tests.unit.validate.wire import packet, write_pcap


def read(path: Path) -> tuple[list[Packet], FrameCounts]:
    counts = FrameCounts()
    return list(read_packets(path, counts)), counts


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_byte_order_and_time_unit(tmp_path: Path, order: str, nanoseconds: bool) -> None:
    frames = [packet(wire.SEND_ONLY, psn) for psn in range(3)]
    path = write_pcap(tmp_path / "x.pcap", frames, order=order, nanoseconds=nanoseconds)
    fraction = 7 if nanoseconds else 7000
    assert [one.time_ns for one in read(path)[0]] == [n * 10**9 + fraction for n in range(3)]


def test_a_file_that_ends_within_a_frame(tmp_path: Path) -> None:
    path = write_pcap(tmp_path / "x.pcap", [packet(wire.SEND_ONLY, n) for n in range(2)])
    whole = path.read_bytes()
    for missing in (1, 60, 70):
        path.write_bytes(whole[:-missing])
        found, counts = read(path)
        assert (len(found), counts.cut) == (1, 1)
    path.write_bytes(whole + b"\xff" * 500)
    found, counts = read(path)
    assert (len(found), counts.cut) == (2, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x0a\x0d\x0d\x0a" + bytes(40),  # pcapng
        struct.pack("<IHHiII", 0xA1B2C3D4, 2, 4, 0, 0, 65535),  # header cut
        struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 113),  # not an Ethernet
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(content)
    with pytest.raises(PcapError, match=r"x\.pcap"):
        read(path)
    with pytest.raises(PcapError, match=r"x\.pcap"):
        check_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PcapError, match="cannot be read: No such file"):
        check_file(tmp_path / "missing")
