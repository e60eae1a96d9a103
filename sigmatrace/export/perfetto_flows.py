"""How many messages have an arrow in the trace: both ends meet in one place, bucket by bucket.

The viewer draws an arrow from a send to a receive that stands behind it. Where clocks disagree a
receive may stand before its send: such a message has two slices, and no arrow. Both are counted,
so that the trace and the table ``messages`` can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sigmatrace.export.kernels.flows import BUCKETS, count_arrows, split_ends

_ROW_BYTES = 24


def save(path: Path, parts: Sequence[np.ndarray]) -> None:
    """Write the ends of arrows of a piece: where buckets begin, then the ends by bucket.

    Args:
        path: The file.
        parts: i8[n, 3] each, in the order of the piece (``kernels.flows.collect_ends``).
    """
    ends = np.concatenate([np.empty((0, 3), np.int64), *parts])
    starts = np.zeros(BUCKETS + 1, np.int64)
    by_bucket = np.empty_like(ends)
    split_ends(ends, starts, by_bucket)
    with path.open("wb") as file:
        file.write(starts.data)
        file.write(by_bucket.data)


def count(paths: Sequence[Path]) -> dict[str, int]:
    """Return ``flows``, messages with an arrow, and ``flows_backwards``, with both ends but none.

    Args:
        paths: What ``save`` wrote, in the order of the trace. One bucket at a time is in memory.
    """
    starts = [np.fromfile(path, np.int64, BUCKETS + 1) for path in paths]
    total = np.zeros(2, np.int64)
    for bucket in range(BUCKETS):
        parts = [
            np.fromfile(
                path,
                np.int64,
                3 * int(start[bucket + 1] - start[bucket]),
                offset=start.nbytes + _ROW_BYTES * int(start[bucket]),
            )
            for path, start in zip(paths, starts, strict=True)
            if start[bucket + 1] > start[bucket]
        ]
        if parts:
            total += count_arrows(np.concatenate(parts).reshape(-1, 3))
    return {"flows": int(total[0]), "flows_backwards": int(total[1])}
