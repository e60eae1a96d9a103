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
_SHORT_BYTES = 4096
"""What is short is checked sooner than the GIL could be given away and had back."""
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
        path = str(library("core"))
        short, long = _function(ctypes.PyDLL(path)), _function(ctypes.CDLL(path))
    except (CaptureError, OSError):
        return None

    def checksum(data: Data) -> int:
        if isinstance(data, bytes) and len(data) <= _SHORT_BYTES:
            return short(0, data, len(data))
        array = np.frombuffer(data, np.uint8)
        return long(0, array.ctypes.data, array.size)

    return checksum


def _function(core: ctypes.CDLL) -> Callable[[int, int | bytes, int], int]:
    declared = ctypes.CFUNCTYPE if type(core) is ctypes.CDLL else ctypes.PYFUNCTYPE
    kind = declared(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
    function: Callable[[int, int | bytes, int], int] = kind(("st_crc32c", core))
    return function


@functools.cache
def table_checksum() -> Checksum:
    """Return the checksum compiled by numba."""
    from sigmatrace.capture.kernels.crc import crc32c_table, make_tables

    tables = make_tables()

    def checksum(data: Data) -> int:
        return int(crc32c_table(np.frombuffer(data, np.uint8), tables))

    return checksum
