"""Packed data (docs/format.md section 1.6) unpacked in plain Python, from that text alone."""

from __future__ import annotations

import struct


def lz4_block(block: bytes) -> bytes:
    """Unpack an LZ4 block, as the LZ4 Block Format Description says."""
    out = bytearray()
    at = 0

    def length(nibble: int) -> int:
        nonlocal at
        total = nibble
        more = 255 if nibble == 15 else 0
        while more == 255:
            more = block[at]
            at += 1
            total += more
        return total

    while True:
        token = block[at]
        at += 1
        literals = length(token >> 4)
        assert at + literals <= len(block)
        out += block[at : at + literals]
        at += literals
        if at == len(block):
            return bytes(out)
        (distance,) = struct.unpack_from("<H", block, at)
        at += 2
        assert 0 < distance <= len(out)
        for _ in range(length(token & 15) + 4):
            out.append(out[-distance])


def unpack(data: bytes, count: int, record_bytes: int) -> bytes:
    """Return the bytes of the records."""
    size, columns = struct.unpack_from("<IB", data)
    assert size == count * record_bytes > 0
    assert size <= 64 << 20 and size <= 1024 * len(data)
    at = 5
    records = [bytearray(record_bytes) for _ in range(count)]
    found: dict[int, list[int]] = {}
    covered: list[int] = []
    for _ in range(columns):
        offset, width, how, key, planes, base = struct.unpack_from("<BBBBBQ", data, at)
        at += 13
        assert offset % 4 == 0 and width in (4, 8) and planes <= width
        rests = [0] * count
        for plane in range(planes):
            (n,) = struct.unpack_from("<I", data, at)
            stored = data[at + 4 : at + 4 + n]
            assert len(stored) == n
            at += 4 + n
            if n == 1:
                stored = stored * count
            elif n != count:
                assert n < count
                stored = lz4_block(stored)
            assert len(stored) == count
            rests = [rest + (byte << 8 * plane) for rest, byte in zip(rests, stored, strict=True)]
        numbers: list[int] = []
        latest: dict[int, int] = {}
        for i, rest in enumerate(rests):
            d = rest // 2 if rest % 2 == 0 else -(rest + 1) // 2
            if how == 0:
                number = base + rest
            elif how == 1:
                number = (numbers[-1] if numbers else base) + d
            else:
                assert how == 2
                j = latest.get(found[key][i] % 4096, -1)
                number = (numbers[j] if j >= 0 else base) + d
                latest[found[key][i] % 4096] = i
            numbers.append(number % 256**width)
            records[i][offset : offset + width] = numbers[-1].to_bytes(width, "little")
        found[offset] = numbers
        covered += range(offset, offset + width)
    assert sorted(covered) == list(range(record_bytes))
    assert not any(data[at:])
    return b"".join(records)
