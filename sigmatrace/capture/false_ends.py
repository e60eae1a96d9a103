"""Chunks that say a process recorded before, or after, all readings of its clock.

When the run was is known from the times of chunks, before any data is read. A wrong byte in these
shows only then: so the few chunks that decide are verified early.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sigmatrace.capture import items
from sigmatrace.capture.view import opened


def false_ends(path: str, chunks: np.ndarray, ticks: Sequence[int]) -> list[int]:
    """Return the places of damaged chunks without which the times of all others are right.

    Args:
        path: The rank file.
        chunks: ``(n,)``, dtype ``index.CHUNK``; those that turn out intact become ``checked``.
        ticks: TSC readings of the process's clock.

    Raises:
        OSError: The file cannot be read any more.
    """
    first, last = chunks["first_tsc"], chunks["last_tsc"]
    low, high = np.uint64(min(ticks, default=2**64 - 1)), np.uint64(max(ticks, default=0))
    unsure = (chunks["checked"] == 0) & (last > 0)
    early, late = np.flatnonzero(unsure & (first < low)), np.flatnonzero(unsure & (last > high))
    if not early.size + late.size:
        return []
    found: set[int] = set()
    with opened(path) as data:
        for order in (early[np.argsort(first[early])], late[np.argsort(last[late])[::-1]]):
            for at in order.tolist():
                begin = int(chunks["offset"][at])
                if items.is_intact(data[begin : begin + int(chunks["size_bytes"][at])]):
                    chunks["checked"][at] = 1
                    break
                found.add(at)
    return sorted(found)
