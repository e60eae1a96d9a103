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
    heads = []
    for _ in range(columns):
        heads.append(struct.unpack_from("<BBBBBQ", data, at))
        at += 13
    (n,) = struct.unpack_from("<I", data, at)
    at += 4
    stored = data[at : at + n]
    assert len(stored) == n
    assert not any(data[at + n :])
    whole = count * sum(planes for *_, planes, _ in heads)
    if n != whole:
        assert n < whole
        stored = lz4_block(stored)
    assert len(stored) == whole
    records = [bytearray(record_bytes) for _ in range(count)]
    found: dict[int, list[int]] = {}
    covered: list[int] = []
    for offset, width, how, key, planes, base in heads:
        assert offset % 4 == 0 and width in (4, 8) and planes <= width
        rests = [0] * count
        for plane in range(planes):
            mine, stored = stored[:count], stored[count:]
            rests = [rest + (byte << 8 * plane) for rest, byte in zip(rests, mine, strict=True)]
        numbers = numbers_of(rests, how, base, 256**width, found.get(key))
        found[offset] = numbers
        for record, number in zip(records, numbers, strict=True):
            record[offset : offset + width] = number.to_bytes(width, "little")
        covered += range(offset, offset + width)
    assert sorted(covered) == list(range(record_bytes))
    return b"".join(records)


def numbers_of(
    rests: list[int], how: int, base: int, modulus: int, keys: list[int] | None
) -> list[int]:
    """Return the numbers of a column."""
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
            assert keys is not None
            j = latest.get(keys[i] % 4096, -1)
            number = (numbers[j] if j >= 0 else base) + d
            latest[keys[i] % 4096] = i
        numbers.append(number % modulus)
    return numbers
