"""Work queue elements made of the byte tables, and a plain decoder of them."""

from __future__ import annotations

import random
import struct
from collections import Counter
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
WITH_WORD = (0x01, 0x09, 0x0B, 0x1B, 0x25)
WR = {  # enum ibv_wr_opcode; 255: it has none
    **{0x01: 9, 0x08: 0, 0x09: 1, 0x0A: 2, 0x0B: 3, 0x10: 4},
    **{0x11: 5, 0x12: 6, 0x14: 5, 0x15: 6, 0x1B: 7},
}
Found = dict[str, int]


def reference(slots: bytes, index: int, qpn: int, has_av: bool) -> Found | None:
    """Return what the slots begin with, by name; None when that is no WQE."""
    opmod, own, opcode, number, stream, fm_ce_se, word = struct.unpack_from(">BHBIxHBI", slots)
    segments = number & 0x3F
    if not segments or own != index & 0xFFFF or number >> 8 != qpn:
        return None
    if segments * 16 > len(slots):
        return None
    found = Counter(opcode=opcode, opmod=opmod, op=OPS.get(opcode, NOP), slots=-(-segments // 4))
    found |= Counter(stream=stream, fence=fm_ce_se >> 5, ce=fm_ce_se >> 2 & 3)
    found |= Counter(solicited=fm_ce_se >> 1 & 1, wr_opcode=WR.get(opcode, 255))
    if opcode in WITH_WORD:
        found["imm"] = word
    rest = slots[16 : segments * 16]
    try:
        if opcode in TOUCHES:
            found |= _segments(rest, opmod, opcode, has_av)
    except (ValueError, struct.error):
        return None
    if opcode == 0x0F and rest:
        found["wait_index"], number = struct.unpack_from(">8xII", rest)
        found["wait_cqn"] = number & 0xFFFFFF
    if opcode == 0x23 and rest and rest[0] < 0x80:
        found["lkey"], found["laddr"] = struct.unpack_from(">4xIQ", rest)
    return found


def _segments(rest: bytes, opmod: int, opcode: int, has_av: bool) -> Found:
    found: Found = Counter()
    if has_av:
        vector = _vector(rest)
        found |= vector
        rest = _cut(rest, 48 if rest[8] & 0x80 else 16)
    if opcode in ADDRESSED:
        found["raddr"], found["rkey"] = struct.unpack_from(">QI", rest)
        rest = _cut(rest, 16)
    if opcode in ATOMIC:
        width = 4 if opcode in (0x14, 0x15) and opmod == 8 else 8
        names = ("atomic_operand", "atomic_compare", "atomic_operand_mask", "atomic_compare_mask")
        count = 4 if opcode == 0x14 else 2
        values = struct.unpack_from(f">{count}{'I' if width == 4 else 'Q'}", rest)
        found |= Counter(dict(zip(names, values, strict=False)))
        rest = _cut(rest, max(16, count * width))
    found |= _data(rest)
    if opcode in ATOMIC:
        found["size_bytes"] = width
    return found


def _vector(rest: bytes) -> Found:
    key, to, rate_sl, lid = struct.unpack_from(">QIBxH", rest)
    found = Counter(has_av=1, dc_key=key, remote_qpn=to & 0xFFFFFF, sl=rate_sl & 15, dlid=lid)
    if to >> 31:
        mac, tclass, hops, label, prefix, own = struct.unpack_from(">20x6sBBIQQ", rest)
        found |= Counter(rmac=int.from_bytes(mac, "big"), tclass=tclass, hop_limit=hops)
        found |= Counter(flow_label=label & 0xFFFFF, dgid_prefix=prefix, dgid_interface=own)
    return found


def _data(rest: bytes) -> Found:
    sizes, inlines, places = [], [], []
    while rest:
        (count,) = struct.unpack_from(">I", rest)
        inline, count = count >> 31, count & 0x7FFFFFFF
        if inline and count > 1024:
            raise ValueError(count)
        (inlines if inline else sizes).append(count)
        if not inline:
            places.append(struct.unpack_from(">4xIQ", rest))
        rest = _cut(rest, -(-(4 + count) // 16) * 16 if inline else 16)
    found = Counter(sges=len(sizes + inlines), size_bytes=sum(sizes + inlines))
    found |= Counter(inline_bytes=sum(inlines))
    if places:
        found["lkey"], found["laddr"] = places[0]
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
        *(opmod, index & 0xFFFF, opcode, qpn << 8 | segments, 0, rng.getrandbits(16)),
        *(rng.randrange(256), rng.getrandbits(32)),
    )
    whole = head + body
    return whole + rng.randbytes(-len(whole) % 64)


def _body(rng: random.Random, opmod: int, opcode: int, has_av: bool) -> bytes:
    parts = []
    if has_av:
        full = rng.random() < 0.5
        to = rng.getrandbits(24) | full << 31
        parts.append(struct.pack(">QII", rng.getrandbits(64), to, rng.getrandbits(32)))
        parts.append(rng.randbytes(16 * full))
        parts.append(bytes(16 * full) if rng.random() < 0.2 else rng.randbytes(16 * full))
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
