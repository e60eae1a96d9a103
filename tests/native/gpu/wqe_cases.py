"""Work queue elements made of the byte tables, and a plain decoder of them."""

from __future__ import annotations

import random
import struct
from typing import Any

SEND, PUT, GET, FETCH, PUT_DATA, BIND, INVALIDATE, NOP = 1, 3, 4, 6, 10, 11, 12, 13
OPS = {
    **{0x01: SEND, 0x08: PUT, 0x09: PUT_DATA, 0x0A: SEND, 0x0B: SEND, 0x10: GET},
    **{0x11: FETCH, 0x12: FETCH, 0x14: FETCH, 0x15: FETCH},
    **{0x19: BIND, 0x1B: INVALIDATE, 0x25: BIND},
}
TOUCHES = (0x01, 0x08, 0x09, 0x0A, 0x0B, 0x10, 0x11, 0x12, 0x14, 0x15)
ADDRESSED = (0x08, 0x09, 0x10, 0x11, 0x12, 0x14, 0x15)
ATOMIC = (0x11, 0x12, 0x14, 0x15)
WITH_WORD = (0x01, 0x09, 0x0B, 0x1B)
FIELDS = (
    *("opcode", "op", "raddr", "rkey", "size_bytes", "imm", "remote_qpn", "dlid"),
    *("sges", "slots", "signaled"),
)


def reference(slots: bytes, index: int, qpn: int, has_av: bool) -> dict[str, int] | None:
    """Return what the slots begin with, by ``FIELDS``; None when that is no WQE."""
    opmod, own, opcode, number, fm_ce_se, word = struct.unpack_from(">BHBIxxxBI", slots)
    segments = number & 0x3F
    if not segments or own != index & 0xFFFF or number >> 8 != qpn:
        return None
    if segments * 16 > len(slots):
        return None
    found = dict.fromkeys(FIELDS, 0)
    found |= {"opcode": opcode, "op": OPS.get(opcode, NOP), "slots": -(-segments // 4)}
    found["signaled"] = int(fm_ce_se >> 2 & 3 >= 2)
    if opcode in WITH_WORD:
        found["imm"] = word
    if opcode not in TOUCHES:
        return found
    rest = slots[16 : segments * 16]
    try:
        found |= _segments(rest, opmod, opcode, has_av)
    except (ValueError, struct.error):
        return None
    return found


def _segments(rest: bytes, opmod: int, opcode: int, has_av: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    if has_av:
        to, lid = struct.unpack_from(">8xI2xH", rest)
        found |= {"remote_qpn": to & 0xFFFFFF, "dlid": lid}
        rest = _cut(rest, 48 if to >> 31 else 16)
    if opcode in ADDRESSED:
        found["raddr"], found["rkey"] = struct.unpack_from(">QI", rest)
        rest = _cut(rest, 16)
    if opcode in ATOMIC:
        rest = _cut(rest, 32 if opcode == 0x14 and opmod != 8 else 16)
    sizes = []
    while rest:
        (count,) = struct.unpack_from(">I", rest)
        inline, count = count >> 31, count & 0x7FFFFFFF
        if inline and count > 1024:
            raise ValueError(count)
        sizes.append(count)
        rest = _cut(rest, -(-(4 + count) // 16) * 16 if inline else 16)
    found["sges"] = len(sizes)
    found["size_bytes"] = (4 if opmod == 8 else 8) if opcode in ATOMIC else sum(sizes)
    return found


def _cut(rest: bytes, size: int) -> bytes:
    if size > len(rest):
        raise ValueError(size)
    return rest[size:]


def make(rng: random.Random, index: int, qpn: int, has_av: bool) -> bytes:
    """Return a valid WQE of any shape, padded to whole slots."""
    opcode = rng.choice([*OPS, 0x00, 0x0F, 0x20, 0x23, 0x33, 0xFF])
    opmod = rng.choice([0, 8, 9]) if opcode in ATOMIC else rng.choice([0, 0, 1])
    body = b""
    if opcode in TOUCHES:
        body = _body(rng, opmod, opcode, has_av)
    else:
        body = rng.randbytes(16 * rng.randrange(0, 10))
    segments = 1 + len(body) // 16
    head = struct.pack(
        ">BHBIBHBI",
        *(opmod, index & 0xFFFF, opcode, qpn << 8 | segments, 0, 0),
        *(rng.randrange(256), rng.getrandbits(32)),
    )
    whole = head + body
    return whole + rng.randbytes(-len(whole) % 64)


def _body(rng: random.Random, opmod: int, opcode: int, has_av: bool) -> bytes:
    parts = []
    if has_av:
        full = rng.random() < 0.5
        to = rng.getrandbits(24) | full << 31
        parts.append(struct.pack(">QIHH", rng.getrandbits(64), to, 0, rng.getrandbits(16)))
        parts.append(rng.randbytes(32 * full))
    if opcode in ADDRESSED:
        parts.append(struct.pack(">QII", rng.getrandbits(64), rng.getrandbits(32), 0))
    if opcode in ATOMIC:
        parts.append(rng.randbytes(32 if opcode == 0x14 and opmod != 8 else 16))
    for _ in range(rng.randrange(4)):
        if rng.random() < 0.3:
            size = rng.choice([0, 1, 11, 12, 13, 28, 100, 200])
            inline = struct.pack(">I", size | 1 << 31) + rng.randbytes(size)
            parts.append(inline + bytes(-len(inline) % 16))
        else:
            count = rng.choice([0, 1, 4096, 2**31 - 1])
            parts.append(struct.pack(">IIQ", count, rng.getrandbits(32), rng.getrandbits(64)))
    return b"".join(parts)


def mutate(rng: random.Random, raw: bytes) -> bytes:
    """Return the bytes with a few of them changed, most of these where sizes stand."""
    changed = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        at = rng.choice([0, 1, 2, 3, 4, 6, 7, 11, 16, 24, 28, 32, 48, 64, rng.randrange(len(raw))])
        changed[min(at, len(raw) - 1)] = rng.choice([0, 0x80, 0xFF, rng.randrange(256)])
    return bytes(changed)


def word_columns(raw: bytes) -> tuple[Any, ...]:
    """Return slots as eight columns of little-endian words."""
    import numpy as np

    slots = np.frombuffer(raw, "<u8").reshape(-1, 8)
    return tuple(np.ascontiguousarray(slots[:, k]) for k in range(8))
