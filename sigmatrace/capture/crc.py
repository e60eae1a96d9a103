"""CRC-32C (Castagnoli), the checksum of items (``docs/format.md`` section 1)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sigmatrace.capture.libs import library
from sigmatrace.errors import CaptureError

Data = bytes | bytearray | memoryview | NDArray[np.uint8]
Checksum = Callable[[Data], int]


def crc32c(data: Data) -> int:
    """Return the CRC-32C of a contiguous buffer, 0 to 2^32-1."""
    return _implementation()(data)


@functools.cache
def _implementation() -> Checksum:
    return native_checksum() or table_checksum()


@functools.cache
def native_checksum() -> Checksum | None:
    """Return the checksum of the native core, None where it is not built.

    By ctypes: importing cffi's parser alone would take as long as checking 1 GB.
    """
    try:
        core = ctypes.CDLL(str(library("core")))
    except (CaptureError, OSError):
        return None
    function = core.st_crc32c
    function.restype = ctypes.c_uint32
    function.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]

    def checksum(data: Data) -> int:
        if isinstance(data, bytes):  # most items are short: their address is had without an array
            return int(function(0, data, len(data)))
        array = np.frombuffer(data, np.uint8)
        return int(function(0, array.ctypes.data, array.size))

    return checksum


@functools.cache
def table_checksum() -> Checksum:
    """Return the checksum compiled by numba."""
    from sigmatrace.capture.kernels.crc import crc32c_table, make_tables

    tables = make_tables()

    def checksum(data: Data) -> int:
        return int(crc32c_table(np.frombuffer(data, np.uint8), tables))

    return checksum
