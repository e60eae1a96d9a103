"""Protobuf's wire format, as kernels write it: the least stores, the fewest branches.

Every function writes at ``out[at]`` and may touch up to 8 bytes beyond what it says it wrote, so
a buffer has that much room at its end.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, call-overload"

from __future__ import annotations

import ctypes

import numpy as np
from numba import types
from numba.extending import intrinsic

from sigmatrace.kernel import in_python, kernel

PADDED_BYTES = 10
"""Bytes of a padded varint: a number that is filled in when the pieces are joined."""

SLACK_BYTES = 8
"""Room that a buffer needs beyond the last byte written."""


@intrinsic
def _store(typing_context, out, at, value):
    """Store a number at ``out[at]`` in its own width: unaligned, little-endian, unchecked."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        pointer = builder.bitcast(place, arguments[2].type.as_pointer())
        builder.store(arguments[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, value), generate


@intrinsic
def _load(typing_context, address, index, kind):
    """Load element ``index`` of an array of ``kind`` whose data is at ``address``, unchecked."""

    def generate(context, builder, signature, arguments):
        number = context.get_value_type(kind.dtype)
        base = builder.inttoptr(arguments[0], number.as_pointer())
        return builder.load(builder.gep(base, [arguments[1]]))

    return kind.dtype(address, types.int64, kind), generate


@intrinsic
def _lowest(typing_context, bits):
    """Return the number of the lowest bit that is set; there must be one."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


def _store_in_python(out, at, value):
    width = value.dtype.itemsize
    out[at : at + width] = np.frombuffer(value.tobytes(), np.uint8)


def _load_in_python(address, index, kind):
    width = np.dtype(kind).itemsize
    return np.frombuffer(ctypes.string_at(int(address) + width * int(index), width), kind)[0]


def _lowest_in_python(bits):
    return np.uint64((int(bits) & -int(bits)).bit_length() - 1)


store = in_python(_store, _store_in_python)
lowest = in_python(_lowest, _lowest_in_python)
_load_as = in_python(_load, _load_in_python)


@kernel()
def load(address, index, size):
    """Load element ``index`` of an array of unsigned numbers of ``size`` bytes, unchecked."""
    if size == 8:
        return _load_as(address, index, np.uint64)
    if size == 4:
        return np.uint64(_load_as(address, index, np.uint32))
    if size == 2:
        return np.uint64(_load_as(address, index, np.uint16))
    return np.uint64(_load_as(address, index, np.uint8))


@kernel()
def put_varint(out, at, value):
    """Write a varint, u8, and return the place behind it; below 2**28 it takes no branch."""
    if value < np.uint64(1 << 28):
        more = (
            np.int64(value >= np.uint64(1 << 7))
            + np.int64(value >= np.uint64(1 << 14))
            + np.int64(value >= np.uint64(1 << 21))
        )
        spread = (
            (value & np.uint64(0x7F))
            | ((value << np.uint64(1)) & np.uint64(0x7F00))
            | ((value << np.uint64(2)) & np.uint64(0x7F0000))
            | ((value << np.uint64(3)) & np.uint64(0x7F000000))
        )
        below = (np.uint64(1) << np.uint64(8 * more)) - np.uint64(1)
        store(out, at, spread | (np.uint64(0x80808080) & below))
        return at + 1 + more
    while value >= np.uint64(128):
        store(out, at, np.uint8(value | np.uint64(128)))
        value >>= np.uint64(7)
        at += 1
    store(out, at, np.uint8(value))
    return at + 1


@kernel()
def put_padded(out, at, value):
    """Write a varint of ``PADDED_BYTES`` bytes and return the place behind it."""
    value = np.uint64(value)
    for k in range(PADDED_BYTES - 1):
        store(out, at + k, np.uint8(value | np.uint64(128)))
        value >>= np.uint64(7)
    store(out, at + PADDED_BYTES - 1, np.uint8(value))
    return at + PADDED_BYTES
