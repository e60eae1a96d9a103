"""What stages read off ``message_pairs`` alike: pairs of processes, classes of sizes, groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Run, column

UNKNOWN_CLASS = 65
"""Class of messages whose size is not known at either end; of others the bit length of it."""
_25_BITS = (1 << 25) - 1
_POWERS = np.uint64(1) << np.arange(64, dtype=np.uint64)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Rows by what they have in common.

    Attributes:
        first, second: ``(k,)`` i4, what tells groups apart; ascending with ``layer``.
        layer: ``(k,)`` u1.
        code: ``(n,)`` u2 or i4, group of each row; numpy sorts u2 by radix, in O(n).
        count: ``(k,)`` i8, rows of each.
    """

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    layer: NDArray[np.uint8]
    code: NDArray[np.uint16] | NDArray[np.int32]
    count: Ints

    def sums(self, values: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """Return how many rows of each group are true, ``(k,)`` u8."""
        return np.bincount(self.code[values], minlength=self.count.size).astype(np.uint64)

    def totals(self, values: Ints) -> tuple[Ints, NDArray[np.float64]]:
        """Return sums of values, ``(k,)``: modulo 2^64, and as floats whatever their size."""
        order = np.argsort(self.code, kind="stable")
        starts = np.cumsum(self.count) - self.count
        high, low = (
            np.add.reduceat(part[order], starts) if order.size else np.zeros(0, np.int64)
            for part in (values >> 32, values & 0xFFFFFFFF)
        )
        return (high << 32) + low, high * 2.0**32 + low


def groups_of(
    first: NDArray[np.integer[Any]], second: NDArray[np.integer[Any]], layer: NDArray[np.uint8]
) -> Groups:
    """Group rows by three numbers, of at least -1 and below 2^25 - 1, and a layer."""
    known, code = numbered(keys_of(first, second, layer))
    count = np.bincount(code, minlength=known.size)
    return Groups(*ends_of(known), code, count)


def keys_of(
    first: NDArray[np.integer[Any]], second: NDArray[np.integer[Any]], layer: NDArray[np.uint8]
) -> Ints:
    """Return two numbers, of at least -1 and below 2^25 - 1, and a layer as one key, ``(n,)`` i8.

    No key is negative; they ascend with the first number, then the second, then the layer.
    """
    high: Ints = (first.astype(np.int64) + 1) << 33
    return high | (second.astype(np.int64) + 1) << 8 | layer


def ends_of(key: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Return both numbers, ``(n,)`` i4, and layer, ``(n,)`` u1, of what ``keys_of`` returned."""
    first, second = (np.asarray(end - 1, np.int32) for end in (key >> 33, key >> 8 & _25_BITS))
    return first, second, (key & 255).astype(np.uint8)


def pairs_of(pairs: pa.Table) -> Groups:
    """Group messages by the processes at both ends, and layer."""
    return groups_of(*(column(pairs, name) for name in ("src_proc", "dst_proc", "layer")))


def numbered(key: Ints) -> tuple[Ints, NDArray[np.uint16] | NDArray[np.int32]]:
    """Return distinct keys, ascending, and the place of each row's key. Complexity O(n + k log k).

    Args:
        key: ``(n,)`` i8.

    Returns:
        ``(k,)`` i8; ``(n,)`` u2 where that is enough, else i4.
    """
    encoded = pa.array(key).dictionary_encode()
    known = encoded.dictionary.to_numpy()
    order = np.argsort(known)
    place = np.empty(order.size, np.uint16 if order.size <= 1 << 16 else np.int32)
    place[order] = np.arange(order.size)
    return known[order], place[encoded.indices.to_numpy()]


def size_classes(pairs: pa.Table) -> NDArray[np.uint8]:
    """Return the bit length of each message's size, ``(n,)`` u1; ``UNKNOWN_CLASS`` without one."""
    found = bit_lengths(column(pairs, "size_bytes"))
    found[~column(pairs, "sizes_known")] = UNKNOWN_CLASS
    return found


def bit_lengths(values: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return how many bits numbers have, ``(n,)`` u1; none of 0."""
    return np.searchsorted(_POWERS, values, side="right").astype(np.uint8)


def labels_of(run: Run) -> list[str]:
    """Return what users call processes, by number."""
    labels: list[str] = run.tables["processes"].column("label").to_pylist()
    return labels
