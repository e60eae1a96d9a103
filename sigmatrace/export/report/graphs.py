"""Graphs: nodes and GPUs on a circle, an arrow for each pair, as of a hypercube seen from above."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmatrace.export.report.flows import Flows, exact_sum
from sigmatrace.export.report.shape import Shape
from sigmatrace.export.report.style import byte_axis, figure_of, plain
from sigmatrace.text import byte_text, count_text, counted
from sigmatrace.trace_format import layer_text

ARROWS_MAX = 80
"""More would hide each other."""
LABELS_MAX = 48
ENDS_MIN, ENDS_MAX = 2, 128
"""Of more ends, the heaviest arrows are too small a part to say anything."""
_LIGHTEST = 0.8
"""The light end of the colours cannot be seen on white."""


def graphs(found: Iterable[Flows]) -> Iterator[Shape]:
    """Yield a graph of nodes, and one of GPUs (of ranks, where no GPU is known), by layer."""
    for one in _candidates(found):
        if one.known <= ENDS_MAX:
            yield _shape(one)


def not_drawn(found: Iterable[Flows]) -> list[str]:
    """Return of which levels there is no graph because they have too many ends."""
    return [
        f"{counted(one.known, *one.words)} at layer {layer_text(one.layer)} are too many "
        "for a graph; the heat map above has them all."
        for one in _candidates(found)
        if one.known > ENDS_MAX
    ]


def _candidates(found: Iterable[Flows]) -> list[Flows]:
    all_of = list(found)
    fine = {one.layer for one in all_of if one.level == "gpu"}
    return [
        one
        for one in all_of
        if one.level in ("node", "gpu") or (one.level == "rank" and one.layer not in fine)
        if one.known >= ENDS_MIN and one.between.size
    ]


def _shape(one: Flows) -> Shape:
    word, words = one.words
    layer = layer_text(one.layer)
    pairs = one.between
    whole = exact_sum(one.size_bytes[pairs])
    size = byte_text(whole)
    text = f"{counted(one.known, word, words)} on a circle, {size} between them."
    if pairs.size > ARROWS_MAX:
        shown = exact_sum(one.size_bytes[pairs[:ARROWS_MAX]])
        share = shown / whole
        text += (
            f" Arrows are the {ARROWS_MAX} heaviest of {count_text(pairs.size)} pairs, "
            f"which have {share:.0%} of the bytes."
        )
    else:
        text += f" An arrow for each of {counted(pairs.size, 'pair')}."
    own = one.total_bytes - whole
    if own:
        text += f" Not shown: {byte_text(own)} within one {word}, or with an end that is not known."
    text += " Darker and wider is more."
    name = f"graph-{one.level}-{layer.replace(' ', '-')}"
    return Shape(name, f"{words}, {layer}", text, lambda: _draw(one))


def _draw(one: Flows) -> Any:
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    figure, axes = figure_of(6.6, 4.6)
    pairs = one.between[:ARROWS_MAX][::-1]  # the heaviest is drawn last
    sizes = one.size_bytes[pairs].astype(np.float64)
    shades = matplotlib.colormaps["cividis"](np.linspace(_LIGHTEST, 0, 256))
    colours = LinearSegmentedColormap.from_list("heavy", shades)
    norm = Normalize(0.0, float(sizes.max()))
    at = _circle(one.known)
    for row, size in zip(pairs.tolist(), sizes.tolist(), strict=True):
        share = float(norm(size))
        _arrow(axes, at[one.src[row]], at[one.dst[row]], share, colours(share))
    axes.scatter(at[:, 0], at[:, 1], s=60 if one.known <= LABELS_MAX else 12, c="#222222", zorder=3)
    _label(axes, [plain(name) for name in one.names[: one.known]], at)
    axes.set_xlim(-1.45, 1.45)
    axes.set_ylim(-1.18, 1.18)
    axes.set_aspect("equal")
    axes.axis("off")
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, label="bytes", shrink=0.6)
    byte_axis(bar.ax.yaxis)
    return figure


def _arrow(axes: Any, begin: Any, end: Any, share: float, colour: Any) -> None:
    from matplotlib.patches import FancyArrowPatch

    axes.add_patch(
        FancyArrowPatch(
            tuple(begin),
            tuple(end),
            arrowstyle="-|>",
            mutation_scale=7 + 7 * share,
            linewidth=0.4 + 3.6 * share**2,
            color=colour,
            shrinkA=5,
            shrinkB=5,
            connectionstyle="arc3,rad=0.13",
        )
    )


def _circle(count: int) -> NDArray[np.float64]:
    """Return places on a circle, clockwise from the top."""
    turn = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)


def _label(axes: Any, labels: list[str], at: NDArray[np.float64]) -> None:
    """Name the ends; of many every k-th."""
    step = -(-len(labels) // LABELS_MAX)
    many = len(labels) > 16
    for label, (x, y) in list(zip(labels, at.tolist(), strict=True))[::step]:
        if many:  # along the radius, so that they do not meet
            turn = float(np.degrees(np.arctan2(y, x)))
            look = {"rotation": turn if x >= 0 else turn + 180, "rotation_mode": "anchor"}
            side, rise = "left" if x >= 0 else "right", "center"
        else:
            look = {}
            side = "left" if x > 0.1 else "right" if x < -0.1 else "center"
            rise = "center" if side != "center" else "bottom" if y > 0 else "top"
        size = 6 if many else 9
        axes.text(1.07 * x, 1.07 * y, label, ha=side, va=rise, fontsize=size, **look)
