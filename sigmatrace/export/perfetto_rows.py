"""What a source of events hands to the writer: rows on numbered tracks, with declared arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.kernels.packets import FLAG, NUMBER, TEXT

Text = Callable[[int], str]
ARGUMENTS_MAX = 15
"""Arguments that a source can have: bits of ``Rows.shown``."""


class Kind(Enum):
    """How an argument is shown: field of ``DebugAnnotation``, and what the kernel writes."""

    U64 = 3, NUMBER
    I64 = 4, NUMBER
    HEX = 7, NUMBER
    TEXT = 17, TEXT
    FLAG = 2, FLAG


@dataclass(frozen=True)
class Argument:
    """An argument that rows of a source may have.

    Attributes:
        name: What a user sees.
        kind: ``I64``: the value is in two's complement; ``TEXT``: it is the key of a text;
            ``FLAG``: shown means true, there is no value.
    """

    name: str
    kind: Kind


def argument_table(arguments: Sequence[Argument], values: Sequence[np.ndarray]) -> np.ndarray:
    """Return what ``encode_track`` must know of arguments, i8[a, 5]; the first has the iid 1.

    The table holds the addresses of ``values``: it must not outlive them.
    """
    table = np.zeros((len(arguments), 5), np.int64)
    for k, argument in enumerate(arguments):
        field, how = argument.kind.value
        value = packets.number(field, 1) if how == FLAG else packets.varint(field << 3)
        head = packets.block(4, packets.number(1, k + 1), value)
        table[k, :3] = int.from_bytes(head, "little"), len(head), how
    for k, column in enumerate(values):
        if column.dtype.kind != "u" or not column.flags.c_contiguous:
            raise TypeError(f"argument {arguments[k].name}: values are not an array of u1 to u8")
        table[k, 3:] = column.ctypes.data, column.itemsize
    return table


@dataclass(frozen=True)
class Rows:
    """Events to be shown, one slice or instant each; arrays of the same length.

    Attributes:
        track: u4, numbers of tracks (``perfetto_tracks.Tracks``).
        begin_ns: i8, Unix time.
        length_ns: i8, 0 or less: an instant.
        depth: u1, calls around it; orders slices of the same begin and end.
        name: u4, key of a text.
        shown: u2, bit k: the row has argument k; ``kernels.packets.SINK``: its flow ends here.
        flow: u8, 0 = none.
        values: Unsigned, of any width, of the arguments that have a value.
        arguments: What the ``values`` are, then flags; at most ``ARGUMENTS_MAX``.
        name_text: Text of a name.
        value_text: Text of a value of kind ``TEXT``, of any argument.
        texts: Keys of ``value_text`` are below this.
        nests: A slice may stand inside another one on the same track.
    """

    track: np.ndarray
    begin_ns: np.ndarray
    length_ns: np.ndarray
    depth: np.ndarray
    name: np.ndarray
    shown: np.ndarray
    flow: np.ndarray
    values: Sequence[np.ndarray]
    arguments: Sequence[Argument]
    name_text: Text
    value_text: Text
    texts: int
    nests: bool = True

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The columns that describe a row, as ``encode_track`` takes them."""
        return self.name, self.shown, self.flow
