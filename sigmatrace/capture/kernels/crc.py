"""CRC-32C by table, eight bytes a step: for machines without the native core."""

from __future__ import annotations

import numpy as np
from numba import uint32

from sigmatrace.kernel import U1R, U4R2, kernel

POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial, bits reversed."""


def make_tables() -> np.ndarray:
    """Return the tables of slicing-by-8, u4 of shape (8, 256)."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(POLYNOMIAL), first >> 1)
    tables = [first.astype(np.uint32)]
    for _ in range(7):
        last = tables[-1]
        tables.append((last >> 8) ^ tables[0][last & 0xFF])
    return np.stack(tables)


@kernel(uint32(U1R, U4R2))
def crc32c_table(data: np.ndarray, tables: np.ndarray) -> np.uint32:
    """Return the CRC-32C of ``data`` (u1, any length)."""
    crc = np.uint32(0xFFFFFFFF)
    size = data.size
    at = 0
    while at + 8 <= size:
        crc ^= (
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        crc = (
            tables[7, crc & np.uint32(0xFF)]
            ^ tables[6, (crc >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (crc >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, crc >> np.uint32(24)]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
        at += 8
    while at < size:
        crc = (crc >> np.uint32(8)) ^ tables[0, (crc ^ data[at]) & np.uint32(0xFF)]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)
