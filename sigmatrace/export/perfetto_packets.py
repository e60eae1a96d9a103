"""Perfetto packets of which there are few: descriptors, clocks, interned strings.

Field numbers are those of Perfetto's ``trace_packet.proto`` and what it imports. Events, of
which there are many, are encoded by ``kernels/packets.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sigmatrace.export.kernels.wire import PADDED_BYTES

CLOCK_REALTIME, CLOCK_BOOTTIME, CLOCK_DELTA = 1, 6, 64
"""Clock numbers; ``CLOCK_DELTA`` counts from packet to packet of its own sequence."""

_STATE_CLEARED = 1
_EXPLICIT_ORDER = 3


def varint(value: int) -> bytes:
    """Return a number below 2**64 as a varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def padded(value: int) -> bytes:
    """Return a number as a varint of ``PADDED_BYTES`` bytes, to be put in the place of another."""
    head = (value >> 7 * k & 0x7F | 0x80 for k in range(PADDED_BYTES - 1))
    return bytes((*head, value >> 7 * (PADDED_BYTES - 1)))


def number(field: int, value: int) -> bytes:
    """Return a varint field."""
    return varint(field << 3) + varint(value)


def block(field: int, *parts: bytes) -> bytes:
    """Return a length-delimited field: bytes, text or a message."""
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def word(field: bytes) -> np.ndarray:
    """Return at most 8 bytes as kernels take them: a little-endian number, and how many, u8[2]."""
    return np.array([int.from_bytes(field, "little"), len(field)], np.uint64)


def text(field: int, value: str) -> bytes:
    """Return a text field; what UTF-8 cannot hold is replaced."""
    return block(field, value.encode("utf-8", "replace"))


def packet(sequence: int, *parts: bytes) -> bytes:
    """Return a packet of a sequence."""
    return block(1, number(10, sequence), *parts)


def track(uuid: int, *parts: bytes, name: str = "", parent: int = 0, rank: int = 0) -> bytes:
    """Return a packet that describes a track.

    Args:
        uuid: Its number, over the whole trace.
        parts: Encoded fields of ``TrackDescriptor``: process, thread, counter.
        name: What a user sees.
        parent: Number of the track it belongs to.
        rank: Its place among the parent's tracks.
    """
    fields = [number(1, uuid), *parts]
    if name:
        fields.append(text(2, name))
    if parent:
        fields.append(number(5, parent))
    if rank:
        fields.append(number(12, rank))
    return packet(1, block(60, *fields))


def root() -> bytes:
    """Return a packet that asks for tracks without a parent in the order of their ranks.

    Viewers up to v52 put processes in an order of their own (most slices first), whatever is asked.
    """
    return packet(1, block(60, number(1, 0), number(11, _EXPLICIT_ORDER)))


def process(pid: int, name: str) -> bytes:
    """Return the field ``process`` of a track descriptor."""
    return block(3, number(1, pid), text(6, name))


def thread(pid: int, tid: int, name: str) -> bytes:
    """Return the field ``thread`` of a track descriptor."""
    return block(4, number(1, pid), number(2, tid), text(5, name))


def counter(unit: str) -> bytes:
    """Return the field ``counter`` of a track descriptor."""
    return block(8, text(6, unit) if unit else b"")


def wall_clock(base_ns: int) -> bytes:
    """Return a packet that says which Unix time the trace's zero is.

    Args:
        base_ns: Unix ns. The format has no times before 1970, which damaged records can have:
            then nothing is said of the wall clock.
    """
    zero = block(1, number(1, CLOCK_BOOTTIME), number(2, 0))
    wall = block(1, number(1, CLOCK_REALTIME), number(2, base_ns)) if base_ns >= 0 else b""
    return packet(1, number(13, _STATE_CLEARED), block(6, zero, wall))


def sequence_head(
    sequence: int,
    names: Sequence[str] = (),
    arguments: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> tuple[bytes, int]:
    """Return the packets that a track's events depend on: clock, defaults, interned strings.

    Args:
        sequence: Number of the packet sequence.
        names: Names of the events; the first has the interning id 1, here and below.
        arguments: Names of arguments.
        texts: Values of arguments.

    Returns:
        The packets, and the place in them of the track's number: a padded varint, still 0.
    """
    zero = block(1, number(1, CLOCK_BOOTTIME), number(2, 0))
    delta = block(1, number(1, CLOCK_DELTA), number(2, 0), number(3, 1))
    clock = packet(sequence, number(13, _STATE_CLEARED), block(6, zero, delta))
    strings = block(12, _interned(2, names), _interned(3, arguments), _interned(29, texts))
    on_track = varint(11 << 3) + padded(0)
    defaults = block(59, number(58, CLOCK_DELTA), block(11, on_track))
    head = clock + packet(sequence, strings, defaults)
    return head, len(head) - PADDED_BYTES


def _interned(field: int, texts: Iterable[str]) -> bytes:
    return b"".join(
        block(field, number(1, iid), text(2, value)) for iid, value in enumerate(texts, 1)
    )
