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
    "opt_param_mask": (0x80, 32),
    "st": (QPC + 0x08, 8),
    "pd": (QPC + 0x28, 24),
    "mtu": (QPC + 0x40, 3),
    "log_msg_max": (QPC + 0x43, 5),
    "log_rq_size": (QPC + 0x49, 4),
    "log_rq_stride": (QPC + 0x4D, 3),
    "no_sq": (QPC + 0x50, 1),
    "log_sq_size": (QPC + 0x51, 4),
    "uar_page": (QPC + 0x68, 24),
    "send_dbr_mode": (QPC + 0x80, 2),
    "user_index": (QPC + 0x88, 24),
    "remote_qpn": (QPC + 0xA8, 24),
    "pkey_index": (PATH + 0x10, 16),
    "grh": (PATH + 0x28, 1),
    "mlid": (PATH + 0x29, 7),
    "rlid": (PATH + 0x30, 16),
    "ack_timeout": (PATH + 0x40, 5),
    "src_addr_index": (PATH + 0x48, 8),
    "stat_rate": (PATH + 0x54, 4),
    "hop_limit": (PATH + 0x58, 8),
    "tclass": (PATH + 0x64, 8),
    "flow_label": (PATH + 0x6C, 20),
    "rgid": (PATH + 0x80, 128),
    "dscp": (PATH + 0x10A, 6),
    "udp_sport": (PATH + 0x110, 16),
    "eth_prio": (PATH + 0x121, 3),
    "sl": (PATH + 0x124, 4),
    "port": (PATH + 0x128, 8),
    "rmac": (PATH + 0x130, 48),
    "log_sra_max": (QPC + 0x388, 3),
    "retry_count": (QPC + 0x38D, 3),
    "rnr_retry": (QPC + 0x390, 3),
    "next_send_psn": (QPC + 0x3C8, 24),
    "cqn_snd": (QPC + 0x3E8, 24),
    "log_rra_max": (QPC + 0x488, 3),
    "rre": (QPC + 0x490, 1),
    "rwe": (QPC + 0x491, 1),
    "rae": (QPC + 0x492, 1),
    "page_offset": (QPC + 0x494, 6),
    "min_rnr_nak": (QPC + 0x4A3, 5),
    "next_rcv_psn": (QPC + 0x4A8, 24),
    "cqn_rcv": (QPC + 0x4E8, 24),
    "dbr_addr": (QPC + 0x500, 64),
    "q_key": (QPC + 0x540, 32),
    "rq_type": (QPC + 0x565, 3),
    "srqn": (QPC + 0x568, 24),
    "dc_access_key": (QPC + 0x640, 64),
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
RST2INIT, INIT2RTR, RTR2RTS, RTS2RTS = 0x502, 0x503, 0x504, 0x505
TO_ERROR, TO_RESET, INIT2INIT = 0x507, 0x50A, 0x50E


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


def send_wqe(index: int, qpn: int, size: int, remote: int, lid: int) -> bytes:
    """A send of two slots with the address vector of a datagram."""
    control = struct.pack(">III4x", (index & 0xFFFF) << 8 | 0x0A, qpn << 8 | 5, 8)
    vector = struct.pack(">QIBBH32x", 0, 1 << 31 | remote, 0, 0, lid)
    data = struct.pack(">IIQ", size, 0x77, 0x9000_0000)
    return (control + vector + data).ljust(128, b"\0")


def doorbell(index: int, qpn: int) -> int:
    """The eight bytes of a doorbell that announces this producer index, as C reads them."""
    (value,) = struct.unpack("<q", struct.pack(">II", (index & 0xFFFF) << 8, qpn << 8))
    return int(value)
