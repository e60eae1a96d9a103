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
