"""What is known of the channels of a partition.

Most of what stages want to know of an operation is known of its channel: its process, its layer,
the stream of messages that it belongs to. A partition has few channels, whose numbers follow each
other; a column that repeats this for every operation costs more than to look it up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import NO_GROUP, Fate
from sigmatrace.trace_format import Layer

_LAYER_MAX = np.uint8(max(Layer))


@dataclass(frozen=True)
class Channels:
    """The channels of a partition's operations.

    Attributes:
        low: The smallest one.
        size: How many numbers there are from it to the largest one.
        channel: ``(n,)`` u4, of each operation; those that are not known have one number, which
            is that of the run's channels.
        run: Where they are described.
    """

    low: int
    size: int
    channel: NDArray[np.uint32]
    run: Run

    @classmethod
    def of(cls, part: Partition) -> Channels:
        """Return those of a partition."""
        channel = part.column("ops", "channel")
        if channel.size == 0:
            return cls(0, 0, channel, part.run)
        known = part.run.tables["channels"].num_rows
        low, high = int(channel.min()), int(channel.max())
        if high > known:
            channel = np.minimum(channel, np.uint32(known))
        low, high = min(low, known), min(high, known)
        return cls(low, high - low + 1, channel, part.run)

    def column(self, table: str, name: str, unknown: int) -> np.ndarray:
        """Return ``(size,)`` values of a table with a row per channel.

        Args:
            table: ``channels`` or ``routes``.
            name: Column.
            unknown: What a channel has that is not known.
        """
        values = self.run.column(table, name)[self.low : self.low + self.size]
        if values.size < self.size:
            values = np.append(values, np.array([unknown], values.dtype))
        return values

    def layer(self) -> NDArray[np.uint8]:
        """Return the layer of each, ``(size,)`` u1; 0 where it is not known, or none."""
        layer = self.column("channels", "layer", 0)
        known: NDArray[np.uint8] = layer * (layer <= _LAYER_MAX)
        return known

    def fate(self) -> NDArray[np.uint8]:
        """Return the fate of each one's messages, ``(size,)`` u1."""
        return self.column("routes", "fate", Fate.PEER_UNKNOWN)

    def group(self) -> NDArray[np.uint32]:
        """Return the stream of messages of each, ``(size,)`` u4."""
        return self.column("routes", "group", NO_GROUP)

    def lossy(self) -> NDArray[np.uint8]:
        """Return whether the transport of each may lose messages, ``(size,)`` u1."""
        return self.column("routes", "lossy", 0)

    def rows_of_layer(self, layer: int) -> NDArray[np.int64]:
        """Return the rows of operations at a layer."""
        mine = self.layer() == layer if self.size else np.zeros(0, np.bool_)
        if not mine.any():
            return np.zeros(0, np.int64)
        return np.flatnonzero(mine[self.channel - np.uint32(self.low)])
