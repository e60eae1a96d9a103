"""What the exporters and the summary agree on: which traffic counts, and what layers are called."""

from __future__ import annotations

import numpy as np

from sigmatrace.partition import Run
from sigmatrace.schema import OP_CLASS, Layer, Op, OpClass

INITIATORS = tuple(op for op in Op if OP_CLASS[op] in (OpClass.SEND, OpClass.ONE_SIDED))
"""Operations by which traffic is counted: a RECV is the other end of a send."""


def initiated(run: Run, *, nested: bool = False) -> dict[str, np.ndarray]:
    """Return the rows of ``traffic`` that count a message once.

    Args:
        run: With the table ``traffic``.
        nested: Also operations that other recorded calls made.

    Returns:
        Columns by name, of the rows of initiating operations. Layers are not to be summed:
        a message may have been seen at several.
    """
    return _rows(run, _is_initiated(run, nested=nested))


def left_out(run: Run, *, nested: bool = False) -> tuple[int, int]:
    """Return operations and bytes of the rows of ``traffic`` that ``initiated`` leaves out."""
    rows = _rows(run, ~_is_initiated(run, nested=nested))
    return sum(rows["count"].tolist()), sum(rows["size_bytes"].tolist())


def _is_initiated(run: Run, *, nested: bool) -> np.ndarray:
    keep = np.isin(run.column("traffic", "op"), INITIATORS)
    return keep if nested else keep & (run.column("traffic", "nested") == 0)


def _rows(run: Run, keep: np.ndarray) -> dict[str, np.ndarray]:
    names = run.tables["traffic"].column_names
    return {name: run.column("traffic", name)[keep] for name in names}


def layer_text(layer: int) -> str:
    """Return the name of a layer; a number that is none names itself."""
    return Layer(layer).name.lower() if layer in list(Layer) else f"layer {layer}"
