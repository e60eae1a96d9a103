"""The checksums against a bit-by-bit reference."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sigmatrace.capture.crc import Checksum, crc32c, native_checksum, table_checksum


def reference(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.fixture(params=["native", "table"])
def checksum(request: pytest.FixtureRequest) -> Checksum:
    found = native_checksum() if request.param == "native" else table_checksum()
    if found is None:
        pytest.skip("the native core is not built")
    return found


def test_known_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"") == 0


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4095, 12288, 12289, 30000])
@pytest.mark.parametrize("skip", [0, 1, 5])
def test_sizes_and_alignments(checksum: Checksum, size: int, skip: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + skip, dtype=np.uint8)[skip:]
    assert checksum(data) == reference(data.tobytes())


@settings(deadline=None)
@example(b"\0" * 64)
@given(st.binary(max_size=300))
def test_table_is_the_reference(data: bytes) -> None:
    assert table_checksum()(np.frombuffer(data, np.uint8)) == reference(data)
