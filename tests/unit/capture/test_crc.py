"""The checksum against a bit-by-bit reference."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.capture.crc import crc32c, table_checksum


def reference(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_known_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"") == 0


@given(st.binary(max_size=200), st.integers(0, 9))
def test_every_implementation_is_the_reference(data: bytes, skip: int) -> None:
    view = memoryview(data)[skip:]
    expected = reference(bytes(view))
    assert crc32c(view) == expected
    assert table_checksum()(np.frombuffer(view, np.uint8)) == expected
