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
    traffic = run.tables["traffic"]
    columns = {name: run.column("traffic", name) for name in traffic.column_names}
    keep = np.isin(columns["op"], INITIATORS)
    if not nested:
        keep &= columns["nested"] == 0
    return {name: values[keep] for name, values in columns.items()}


def layer_text(layer: int) -> str:
    """Return the name of a layer; a number that is none names itself."""
    return Layer(layer).name.lower() if layer in list(Layer) else f"layer {layer}"
