"""Figures of a comparison: what changed most, and between whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatrace.diff import words
from sigmatrace.diff.amounts import END
from sigmatrace.diff.comparison import Compared, Comparison
from sigmatrace.export.report.flows import in_order
from sigmatrace.export.report.heat import CELLS_MAX
from sigmatrace.export.report.shape import Shape
from sigmatrace.export.report.style import HATCHES, OKABE_ITO, figure_of, plain
from sigmatrace.text import counted
from sigmatrace.trace_format import layer_text

_BARS_MAX = 16
_TICKS_MAX = 16
_LABEL_MAX = 60
_RATIO_MAX = 1024.0
"""Bars end there; what comes from nothing, or goes, is beyond."""
_LOOK = {"worse": (OKABE_ITO[1], HATCHES[1]), "better": (OKABE_ITO[0], HATCHES[0])}
_NEITHER = OKABE_ITO[5], HATCHES[2]
_DIVERGING = "PuOr_r"
"""Can be told apart by those who see fewer colours."""
_MAPS = {("rank_pair", "size_bytes"): "bytes", ("latency", "p50_ns"): "median latency"}


def bars(found: Comparison) -> Iterator[Shape]:
    """Yield a figure of the heaviest changes; none where nothing changed."""
    rows = [
        (words.subject(found.parts[part].measure, row), row)
        for group in found.kinds()
        for part, at in group.places(_BARS_MAX)
        for row in [found.row(part, at)]
    ]
    rows.sort(key=lambda one: -(one[1]["weight"] or 0.0))
    if rows:
        heavy = rows[:_BARS_MAX]
        text = f"By how much the heaviest changes changed. {words.closing(found).capitalize()}."
        yield Shape("heaviest", "Heaviest changes", text, lambda: _bars(heavy))


def heat_maps(found: Comparison) -> Iterator[Shape]:
    """Yield figures of what changed between whom."""
    for part in found.parts:
        what = _MAPS.get((part.kind.name, part.measure.name))
        if what is not None and part.changed.any():
            yield from _maps(found, part, what)


def _bars(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
    figure, axis = figure_of(10, 1.1 + 0.28 * len(rows))
    for at, (_, row) in enumerate(rows):
        colour, hatch = _LOOK.get(row["verdict"], _NEITHER)
        axis.barh(at, np.log2(_ratio(row)), color=colour, hatch=hatch, edgecolor="white")
        axis.annotate(
            f" {words.relative_text(row)} ", (np.log2(_ratio(row)), at), va="center", fontsize=7,
            ha="left" if _ratio(row) > 1 else "right",
        )  # fmt: skip
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(rows)), [plain(name, _LABEL_MAX) for name, _ in rows])
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.xaxis.set_major_formatter(lambda value, _: f"x{2**value:.3g}")
    axis.set_xlabel("B : A (hatched: worse, plain: better, dotted: neither)")
    return figure


def _ratio(row: Mapping[str, Any]) -> float:
    """Return B : A, as far as a bar can show it."""
    if not row["a"] or row["b"] / row["a"] <= 0:
        return _RATIO_MAX if row["change"] > 0 else 1 / _RATIO_MAX
    return float(np.clip(row["b"] / row["a"], 1 / _RATIO_MAX, _RATIO_MAX))


def _maps(found: Comparison, part: Compared, what: str) -> Iterator[Shape]:
    """Yield the change of each pair as a picture, by layer."""
    layers, src, dst = part.keys >> 2 * END, part.keys >> END, part.keys
    src, dst = (end & (1 << END) - 1 for end in (src, dst))
    change = np.where(part.changed, part.judged.b - part.judged.a, 0.0)
    for layer in np.unique(layers[part.changed]).tolist():
        at = np.flatnonzero((layers == layer) & (src > 0) & (dst > 0))
        ends = np.union1d(src[at], dst[at])
        names = [found.names.text(end) for end in ends.tolist()]
        order = np.array(sorted(range(len(names)), key=lambda k: in_order(names[k])), np.int64)
        place = np.empty(order.size, np.int64)
        place[order] = np.arange(order.size)
        block = max(1, -(-order.size // CELLS_MAX))
        values = np.zeros((-(-order.size // block),) * 2)
        cells = (place[np.searchsorted(ends, end[at])] // block for end in (src, dst))
        np.add.at(values, tuple(cells), change[at])
        labels = [names[k] for k in order[::block].tolist()]
        text = (
            f"Change of {what} from rank (row) to rank (column), B less A, at layer "
            f"{layer_text(layer)}; {counted(int(part.changed[at].sum()), 'pair')} changed, all "
            "others are blank."
        )
        if block > 1:
            text += f" Each cell is the sum of {block} by {block} ranks."
        name = f"change-{part.measure.name}-{layer_text(layer)}".replace(" ", "-")
        title = f"Change of {what}, {layer_text(layer)}"
        yield Shape(name, title, text, _drawn(values, labels, part.measure.unit))


def _drawn(values: NDArray[np.float64], labels: Sequence[str], unit: str) -> Any:
    def draw() -> Any:
        figure, axis = figure_of(6.6, 5.6)
        most = max(float(np.abs(values).max()), 1.0)
        image = axis.imshow(values, cmap=_DIVERGING, vmin=-most, vmax=most)
        ticks = range(0, len(labels), -(-len(labels) // _TICKS_MAX))
        axis.set_xticks(ticks, [plain(labels[k]) for k in ticks], rotation=90)
        axis.set_yticks(ticks, [plain(labels[k]) for k in ticks])
        bar = figure.colorbar(image)
        bar.ax.yaxis.set_major_formatter(lambda value, _: words.amount_text(unit, value))
        return figure

    return draw
