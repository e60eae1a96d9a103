"""What the exporters agree on: which traffic counts, and that all of it is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatrace.partition import Run
from sigmatrace.trace_format import INITIATORS


def initiated(run: Run, *, nested: bool = False) -> dict[str, np.ndarray]:
    """Return the rows of ``traffic`` that count a message once.

    Args:
        run: With the table ``traffic``.
        nested: Also operations that another one of the same layer made.

    Returns:
        Columns by name, of the rows of initiating operations. Layers are not to be summed:
        a message may have been seen at several.
    """
    return _rows(run, _is_initiated(run, nested=nested))


def left_out(run: Run, *, nested: bool = False) -> tuple[int, int]:
    """Return operations and bytes of the rows of ``traffic`` that ``initiated`` leaves out."""
    rows = _rows(run, ~_is_initiated(run, nested=nested))
    return sum(rows["count"].tolist()), sum(rows["size_bytes"].tolist())


def added(
    shape: int | tuple[int, ...], places: Any, amounts: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return sums of amounts by their place, at most 2^64 - 1 each.

    Args:
        shape: Of the result.
        places: ``(n,)`` places in it, as numpy indexes: a tuple of them where it has more axes.
        amounts: ``(n,)`` u8.
    """
    limb, low = np.uint64(32), np.uint64(2**32 - 1)
    sums = np.zeros((2, *np.atleast_1d(shape)), np.uint64)
    for one, part in zip(sums, (amounts & low, amounts >> limb), strict=True):
        np.add.at(one, places, part)
    high = sums[1] + (sums[0] >> limb)
    return np.where(high > low, np.uint64(2**64 - 1), high << limb | sums[0] & low)


def balance(run: Run, operations: int, size_bytes: int) -> list[dict[str, Any]]:
    """Return the equations of an exporter that shows the traffic.

    Args:
        run: With the table ``traffic``.
        operations: What it shows and leaves out, all rows together.
        size_bytes: Likewise. Not judged when a sum of bytes is beyond 64 bits.
    """
    whole = ["stages.traffic.operations", "stages.traffic.aggregated_operations"]
    equations: list[dict[str, Any]] = [
        {"name": "operations of the traffic", "left": operations, "right": whole}
    ]
    if run.column("traffic", "size_bytes").max(initial=0) < np.uint64(2**64 - 1):
        total = "stages.traffic.size_bytes"
        equations.append({"name": "bytes of the traffic", "left": size_bytes, "right": total})
    return equations


def _is_initiated(run: Run, *, nested: bool) -> np.ndarray:
    keep = np.isin(run.column("traffic", "op"), INITIATORS)
    return keep if nested else keep & (run.column("traffic", "nested") == 0)


def _rows(run: Run, keep: np.ndarray) -> dict[str, np.ndarray]:
    names = run.tables["traffic"].column_names
    return {name: run.column("traffic", name)[keep] for name in names}
