"""The firmware's commands and a NIC's queue entries, encoded from their bit positions.

Positions are bits from the start of a structure, as the programmer's manual counts them; the
code under test has them as bytes of a buffer.
"""

from __future__ import annotations

import struct

QPC = 0x18 * 8
PATH = QPC + 0xC0
CQC = 0x10 * 8
BITS = {
    "opcode": (0, 16),
    "number": (0x48, 24),
    "st": (QPC + 0x08, 8),
    "log_rq_size": (QPC + 0x49, 4),
    "log_rq_stride": (QPC + 0x4D, 3),
    "no_sq": (QPC + 0x50, 1),
    "log_sq_size": (QPC + 0x51, 4),
    "uar_page": (QPC + 0x68, 24),
    "remote_qpn": (QPC + 0xA8, 24),
    "grh": (PATH + 0x28, 1),
    "rlid": (PATH + 0x30, 16),
    "src_addr_index": (PATH + 0x48, 8),
    "rgid": (PATH + 0x80, 128),
    "port": (PATH + 0x128, 8),
    "cqn_snd": (QPC + 0x3E8, 24),
    "cqn_rcv": (QPC + 0x4E8, 24),
    "dbr_addr": (QPC + 0x500, 64),
    "rq_type": (QPC + 0x565, 3),
    "dbr_umem_valid": (QPC + 0x683, 1),
    "dbr_umem_id": (QPC + 0x720, 32),
    "wq_umem_offset": (0x800, 64),
    "wq_umem_id": (0x840, 32),
    "wq_umem_valid": (0x860, 1),
    "cc": (CQC + 0x0B, 1),
    "log_cq_size": (CQC + 0x63, 5),
    "cq_umem_offset": (0x280, 64),
    "cq_umem_id": (0x2C0, 32),
    "cq_umem_valid": (0x2E0, 1),
}
COMMAND_BYTES = 272
CREATE_CQ, CREATE_QP = 0x400, 0x500
RST2INIT, INIT2RTR, RTR2RTS, TO_ERROR, TO_RESET = 0x502, 0x503, 0x504, 0x507, 0x50A


def command(opcode: int, **fields: int) -> str:
    """A command with these fields, in hexadecimal."""
    whole = 0
    for name, value in {"opcode": opcode, **fields}.items():
        at, bits = BITS[name]
        assert 0 <= value < 1 << bits, name
        whole |= value << (COMMAND_BYTES * 8 - at - bits)
    return whole.to_bytes(COMMAND_BYTES, "big").hex()


def write_wqe(index: int, qpn: int, size: int) -> bytes:
    """An RDMA write of one slot, which asks for a completion."""
    control = struct.pack(">III4x", (index & 0xFFFF) << 8 | 8, qpn << 8 | 3, 8)
    remote = struct.pack(">QII", 0x7000_0000 + index, 0x1234, 0)
    data = struct.pack(">IIQ", size, 0x77, 0x9000_0000)
    return (control + remote + data).ljust(64, b"\0")


def doorbell(index: int, qpn: int) -> int:
    """The eight bytes of a doorbell that announces this producer index, as C reads them."""
    (value,) = struct.unpack("<q", struct.pack(">II", (index & 0xFFFF) << 8, qpn << 8))
    return int(value)
