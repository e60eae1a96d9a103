"""What the exporters and the summary agree on: which traffic counts, and how numbers look."""

from __future__ import annotations

import numpy as np

from sigmatrace.partition import Run
from sigmatrace.schema import OP_CLASS, Layer, Op, OpClass

INITIATORS = tuple(op for op in Op if OP_CLASS[op] in (OpClass.SEND, OpClass.ONE_SIDED))
"""Operations by which traffic is counted: a RECV is the other end of a send."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


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


def byte_text(value: float) -> str:
    """Return bytes with a unit of 1024s: ``1.5 MiB``."""
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"


def count_text(value: int) -> str:
    """Return a count with thin groups: ``1 234 567``."""
    return f"{value:,}".replace(",", " ")


def layer_text(layer: int) -> str:
    """Return the name of a layer; a number that is none names itself."""
    return Layer(layer).name.lower() if layer in list(Layer) else f"layer {layer}"
