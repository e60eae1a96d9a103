"""Builds captures of RoCEv2 packets byte by byte, for tests of the decoder."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from pathlib import Path

A, B = "10.0.0.1", "10.0.0.2"
RC, UC, UD, XRC = 0x00, 0x20, 0x60, 0xA0
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(6)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(6, 12)
READ, RESPONSE_FIRST, RESPONSE_MIDDLE, RESPONSE_LAST, RESPONSE_ONLY = range(12, 17)
ACK, ATOMIC_ACK, COMPARE_SWAP, FETCH_ADD = range(17, 21)
SEND_LAST_INV, SEND_ONLY_INV = 0x16, 0x17
ACKNOWLEDGED = struct.pack(">I", 0x1F << 24)  # an AETH


def reth(address: int, rkey: int, length: int) -> bytes:
    return struct.pack(">QII", address, rkey, length)


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def deth(source_qpn: int) -> bytes:
    return struct.pack(">II", 0x11111111, source_qpn)


def packet(
    opcode: int,
    psn: int,
    payload: int | bytes = 0,
    *,
    qpn: int = 0x11,
    headers: bytes = b"",
    source: str = A,
    destination: str = B,
    vlan: bool = False,
) -> bytes:
    """An Ethernet frame; `headers` are those behind the base transport header."""
    data = payload if isinstance(payload, bytes) else bytes(payload)
    pad = -len(data) % 4
    base = struct.pack(">BBHII", opcode, pad << 4, 0xFFFF, qpn, 1 << 31 | psn % (1 << 24))
    body = base + headers + data + bytes(pad) + b"\xcc" * 4
    udp = struct.pack(">HHHH", 49152, 4791, 8 + len(body), 0) + body
    one, other = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    if one.version == 4:
        size = 20 + len(udp)
        ip = struct.pack(">BBHHHBBH", 0x45, 0, size, 0, 0x4000, 64, 17, 0)
    else:
        ip = struct.pack(">IHBB", 6 << 28, len(udp), 17, 64)
    kind = struct.pack(">H", 0x0800 if one.version == 4 else 0x86DD)
    tag = struct.pack(">HH", 0x8100, 5) if vlan else b""
    frame = b"\x02" * 12 + tag + kind + ip + one.packed + other.packed + udp
    return frame.ljust(60, b"\0")  # as Ethernet pads


def write_pcap(
    path: Path,
    frames: Iterable[bytes],
    *,
    order: str = "<",
    nanoseconds: bool = False,
    snap: int = 0,
) -> Path:
    """Writes frames as a file; the n-th at n seconds and 7 units. `snap` cuts them."""
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    parts = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, 1)]
    for index, frame in enumerate(frames):
        kept = frame[:snap] if snap else frame
        parts += [struct.pack(order + "IIII", index, 7, len(kept), len(frame)), kept]
    path.write_bytes(b"".join(parts))
    return path
