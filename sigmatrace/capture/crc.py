"""CRC-32C (Castagnoli), the checksum of items (``docs/format.md`` section 1)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Checksum = Callable[[NDArray[np.uint8]], int]


def crc32c(data: bytes | bytearray | memoryview | NDArray[np.uint8]) -> int:
    """Return the CRC-32C of a contiguous buffer, 0 to 2^32-1."""
    return _implementation()(np.frombuffer(data, np.uint8))


@functools.cache
def _implementation() -> Checksum:
    return table_checksum()


@functools.cache
def table_checksum() -> Checksum:
    """Return the checksum compiled by numba."""
    from sigmatrace.capture.kernels.crc import crc32c_table, make_tables

    tables = make_tables()

    def checksum(data: NDArray[np.uint8]) -> int:
        return int(crc32c_table(data, tables))

    return checksum
