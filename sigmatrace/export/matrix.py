"""The exporter ``matrix``: pictures of who sent how much to whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sigmatrace.export.amounts import added, balance, initiated, left_out
from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.text import byte_text, count_text
from sigmatrace.trace_format import layer_text

COLOURS = "viridis"
LOG_SPREAD = 100
"""Colours follow the logarithm when the largest cell is this many times the smallest."""
LABELS_MAX = 32
VALUES_MAX = 12
"""Cells carry their value in matrices of at most this many rows."""
CELLS_MAX = 1024
"""Larger matrices are summed in blocks: every cell has a pixel of its own, and thousands of
ranks do not become millions of cells."""
EMPTY = "#f2f2f2"


@dataclass(frozen=True)
class Matrix:
    """One picture.

    Attributes:
        name: Of the files, without suffix.
        title: Above the picture.
        unit: "bytes" or "operations".
        labels: Of rows (from) and columns (to); of blocks, of the first in each.
        values: ``(n, n)`` u8; row: source, column: destination.
        block: How many ranks or hosts a row, or a column, stands for.
    """

    name: str
    title: str
    unit: str
    labels: Sequence[str]
    values: np.ndarray
    block: int = 1


class MatrixExporter(Exporter):
    """Writes ``matrix/{rank,host}-{bytes,operations}[-LAYER].{png,svg}``.

    Counted are the operations by which traffic is initiated. Layers get a picture each when
    there are several, because one message may have been seen at two.

    Args:
        nested: Also count operations that another one of the same layer made.
        dpi: Resolution of the PNG files.
    """

    name: ClassVar[str] = "matrix"
    requires: ClassVar[Columns] = {"traffic": STAGE_TABLES["traffic"]}

    def __init__(self, nested: bool = False, dpi: int = 120) -> None:
        if not 20 <= dpi <= 1200:
            raise ValueError(f"dpi must be 20 to 1200, not {dpi}")
        self.nested = nested
        self.dpi = dpi

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Draw the pictures."""
        import matplotlib

        folder = staging / "matrix"
        folder.mkdir(exist_ok=True)
        made = matrices(run, nested=self.nested)
        for matrix in made:
            figure = draw(matrix)
            figure.savefig(folder / f"{matrix.name}.png", dpi=self.dpi)
            with matplotlib.rc_context({"svg.hashsalt": matrix.name}):  # ids are random without
                figure.savefig(folder / f"{matrix.name}.svg", metadata={"Date": None})
        shown = {
            unit: sum(sum(one.values.ravel().tolist()) for one in made if _is_total(one, unit))
            for unit in ("operations", "bytes")
        }
        operations, size_bytes = left_out(run, nested=self.nested)
        counts = {
            "pictures": 2 * len(made),
            "operations_shown": shown["operations"],
            "operations_left_out": operations,
            "traffic_operations": shown["operations"] + operations,
            "traffic_bytes": shown["bytes"] + size_bytes,
        }
        whole = balance(run, counts["traffic_operations"], counts["traffic_bytes"])
        return Exported(("matrix",), counts, "pictures: matrix/*.png, *.svg", whole)


def _is_total(matrix: Matrix, unit: str) -> bool:
    """Return whether this is one of the pictures by rank: one a layer, which have everything."""
    return matrix.unit == unit and matrix.name.startswith("rank-")


def matrices(run: Run, *, nested: bool = False) -> list[Matrix]:
    """Return all matrices of a run, by layer, level and unit.

    Traffic whose source or destination is not known or not traced is in the row or column
    "unknown", which is there only if needed, also beside blocks.
    """
    rows = initiated(run, nested=nested)
    layers = sorted({int(layer) for layer in rows["layer"]})
    labels = run.tables["processes"].column("label").to_pylist()
    by_host, hosts = _hosts(run)
    made = []
    for layer in layers or [0]:
        here = {key: values[rows["layer"] == layer] for key, values in rows.items()}
        word = layer_text(layer)
        suffix = f"-{word.replace(' ', '-')}" if len(layers) > 1 else ""
        seen = f" seen at {word}" if layers else ""
        levels = (("rank", np.arange(len(labels)), labels), ("host", by_host, hosts))
        for level, of_proc, names in levels:
            for column, unit in (("size_bytes", "bytes"), ("count", "operations")):
                title = f"{unit.capitalize()} from {level} to {level}{seen}"
                square = _square(here, column, of_proc, names)
                made.append(Matrix(f"{level}-{unit}{suffix}", title, unit, *square))
    return made


def _hosts(run: Run) -> tuple[np.ndarray, list[str]]:
    names = run.tables["processes"].column("host").to_pylist()
    hosts = sorted(set(names))
    place = {host: at for at, host in enumerate(hosts)}
    return np.array([place[name] for name in names], np.int64), hosts


def _square(
    rows: dict[str, np.ndarray], column: str, of_proc: np.ndarray, names: Sequence[str]
) -> tuple[list[str], np.ndarray, int]:
    """Return labels, values and the size of blocks."""
    block = -(-len(names) // CELLS_MAX)
    shown = list(names[::block])
    size = len(shown)
    place = np.append(of_proc // block, size)  # -1: unknown
    ends = [place[rows[end]] for end in ("src_proc", "dst_proc")]
    values = added((size + 1, size + 1), (ends[0], ends[1]), rows[column])
    if values[size].any() or values[:, size].any():
        return [*shown, "unknown"], values, block
    return shown, values[:size, :size], block


def draw(matrix: Matrix) -> Any:
    """Return a matplotlib figure of a matrix, made without pyplot and its global state."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    block = matrix.block
    values = np.ma.masked_equal(matrix.values.astype(np.float64), 0)
    size = len(values)
    side = min(max(5.0, 1.5 + 0.3 * size), 10.0 if size <= 512 else 14.0)
    figure = Figure(figsize=(side + 1.5, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low, high = (float(values.min()), float(values.max())) if values.count() else (0.0, 1.0)
    is_log = values.count() > 0 and high >= LOG_SPREAD * low
    norm = LogNorm(low, high) if is_log else Normalize(0, high)
    colours = matplotlib.colormaps[COLOURS].with_extremes(bad=EMPTY)
    image = axes.imshow(values, cmap=colours, norm=norm, interpolation="nearest")
    note = f"; a cell is {block} x {block}" if block > 1 else ""
    total = _text(sum(matrix.values.ravel().tolist()), matrix.unit)  # may be beyond 64 bits
    axes.set_title(f"{matrix.title}\ntotal {total}{note}")
    axes.set_xlabel("to")
    axes.set_ylabel("from")
    _label(axes, matrix.labels)
    if size <= VALUES_MAX:
        _write_values(axes, matrix, norm)
    scale = f"{matrix.unit}, logarithmic" if is_log else matrix.unit
    bar = figure.colorbar(image, ax=axes, label=f"{scale}; blank: none", shrink=0.8)
    bar.set_ticks(ticks(low, high, is_log, matrix.unit))
    bar.minorticks_off()
    bar.ax.yaxis.set_major_formatter(lambda value, _: _text(value, matrix.unit))
    return figure


def ticks(low: float, high: float, is_log: bool, unit: str) -> list[float]:
    """Return round numbers of the unit ("bytes" or another) from ``low`` to ``high``."""
    base = 2 if unit == "bytes" else 10
    if is_log:
        first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
        step = max(1, round((last - first) / 8))
        powers = range(-(-first // step) * step, last + 1, step)
        return [float(base**power) for power in powers if low <= base**power <= high]
    one = 1024.0 ** int(math.log(max(high, 1), 1024)) if unit == "bytes" else 1.0
    rough = high / one / 6
    decade = 10.0 ** math.floor(math.log10(rough))
    width = next(s for s in (1, 2, 5, 10) if s * decade >= rough) * decade * one
    return [at * width for at in range(int(high / width) + 1)]


def _label(axes: Any, labels: Sequence[str]) -> None:
    """Label rows and columns; of many every k-th."""
    step = -(-len(labels) // LABELS_MAX)
    at = list(range(0, len(labels), step))
    shown = [labels[number] for number in at]
    longest = max(map(len, shown), default=0)
    axes.set_xticks(at, shown, rotation=90 if longest > 3 or len(at) > 16 else 0)
    axes.set_yticks(at, shown)
    axes.tick_params(labelsize=9 if len(at) <= 16 else 7)


def _write_values(axes: Any, matrix: Matrix, norm: Any) -> None:
    for row, column in zip(*np.nonzero(matrix.values), strict=True):
        value = int(matrix.values[row, column])
        colour = "black" if norm(float(value)) > 0.6 else "white"
        shown = _text(value, matrix.unit)
        axes.text(column, row, shown, ha="center", va="center", color=colour, fontsize=7)


def _text(value: float, unit: str) -> str:
    if unit == "bytes":
        return byte_text(value)
    return count_text(int(value)) if value == int(value) else f"{value:g}"
