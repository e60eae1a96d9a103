"""Packet captures as files: the only module here that reads any.

Source: the IETF draft "PCAP Capture File Format" (draft-ietf-opsawg-pcap).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sigmatrace.errors import PcapError
from sigmatrace.validate.flows import PacketCapture, assemble
from sigmatrace.validate.roce import FrameCounts, Packet, decode

_ETHERNET_LINK = 1
_MAX_FRAME = 1 << 18  # the largest snapshot length of tcpdump
_MAGICS = {  # of the file: byte order, ns per unit of the fraction of a second
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}


def read_capture(path: Path, mtu: int | None = None) -> PacketCapture:
    """Reads a capture file.

    Args:
        path: A pcap file of an Ethernet, of either end or of the path between them.
        mtu: As for `flows.assemble`.

    Raises:
        PcapError: The file is none.
    """
    frames = FrameCounts()
    return assemble(read_packets(path, frames), frames, mtu)


def read_packets(path: Path, counts: FrameCounts) -> Iterator[Packet]:
    """RoCEv2 packets of a capture file, in the order of the file; every frame is counted.

    Args:
        path: A pcap file (not pcapng) of an Ethernet, of either byte order, in µs or ns.
        counts: Counted up.

    Raises:
        PcapError: It is none.
    """
    with path.open("rb") as file:
        for time_ns, frame in _frames(file, path, counts):
            packet = decode(time_ns, frame, counts)
            if packet is not None:
                yield packet


def check_file(path: Path) -> None:
    """Refuses what is not a pcap file of an Ethernet.

    Raises:
        PcapError: It is none, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            _read_header(file, path)
    except OSError as error:
        raise PcapError(f"{path} cannot be read", error.strerror or str(error)) from error


def _read_header(file: BinaryIO, path: Path) -> tuple[str, int]:
    """Byte order of the file, and how many ns its unit of time is."""
    header = file.read(24)
    order, unit = _MAGICS.get(header[:4], ("", 0))
    if not order or len(header) < 24:
        hint = "tcpdump -w writes one; convert others: editcap -F pcap IN OUT"
        raise PcapError(f"{path} is not a pcap file", hint)
    (link,) = struct.unpack_from(order + "I", header, 20)
    if link & 0xFFFF != _ETHERNET_LINK:
        raise PcapError(f"{path} is a capture of link type {link & 0xFFFF}", "capture an Ethernet")
    return order, unit


def _frames(file: BinaryIO, path: Path, counts: FrameCounts) -> Iterator[tuple[int, bytes]]:
    """Time (ns) and bytes of each frame."""
    order, unit = _read_header(file, path)
    record = struct.Struct(order + "IIII")
    while head := file.read(record.size):
        if len(head) < record.size:
            counts.cut = 1
            return
        seconds, fraction, size, _ = record.unpack(head)
        frame = file.read(size) if size <= _MAX_FRAME else b""
        if len(frame) < size:
            counts.cut = 1
            return
        yield seconds * 1_000_000_000 + fraction * unit, frame
