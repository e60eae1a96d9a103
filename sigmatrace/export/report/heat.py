"""Heat maps: who sent how much to whom, at each level."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sigmatrace.export.amounts import added
from sigmatrace.export.matrix import Matrix, draw
from sigmatrace.export.report.flows import Flows, exact_sum
from sigmatrace.export.report.shape import Shape
from sigmatrace.export.report.style import plain
from sigmatrace.text import byte_text, counted
from sigmatrace.trace_format import layer_text

CELLS_MAX = 256
"""Rows and columns of a heat map; more ends are summed in blocks."""
_ENDS_MIN = 2
VALUES_MAX = 8
"""Cells of larger ones are too narrow for their value."""
SMALL = {"qp": 64}
"""Levels that are drawn only if they have at most so many ends."""


def heat_maps(found: Iterable[Flows]) -> Iterator[Shape]:
    """Yield the heat maps of bytes."""
    for one in found:
        if _ENDS_MIN <= len(one.names) <= SMALL.get(one.level, len(one.names)):
            yield _shape(one)


def not_drawn(found: Iterable[Flows]) -> list[str]:
    """Return which levels have too many ends to be drawn, a sentence each."""
    return [
        f"{counted(len(one.names), *one.words)} at layer {layer_text(one.layer)} are too "
        "many for a picture; the table of communication has the heaviest pairs."
        for one in found
        if len(one.names) > SMALL.get(one.level, len(one.names))
    ]


def _shape(one: Flows) -> Shape:
    layer = layer_text(one.layer)
    word, words = one.words
    total = byte_text(one.total_bytes)
    text = [f"Bytes from {word} (row) to {word} (column): {total} at layer {layer}."]
    heavy = one.between[:1].tolist()
    if heavy:
        src, dst = (plain(one.names[ends[heavy[0]]]) for ends in (one.src, one.dst))
        size = byte_text(int(one.size_bytes[heavy[0]]))
        text.append(f"The heaviest pair of different {words} is {src} to {dst} with {size}.")
    if own := exact_sum(one.size_bytes[(one.src == one.dst) & (one.src < one.known)]):
        text.append(f"{byte_text(own)} stay within one {word}.")
    block = -(-one.known // CELLS_MAX)
    if block > 1:
        text.append(f"Each cell stands for {block} by {block} {words}.")
    name = f"matrix-{one.level}-{layer.replace(' ', '-')}"
    return Shape(name, f"{words}, {layer}", " ".join(text), lambda: _draw(one))


def _draw(one: Flows) -> Any:
    figure = draw(matrix_of(one))
    figure.set_size_inches(6.6, 5.6)  # all alike, whose letters can be read in two columns
    if len(one.names) > VALUES_MAX:
        for text in list(figure.axes[0].texts):
            text.remove()
    return figure


def matrix_of(one: Flows) -> Matrix:
    """Return the matrix of bytes, in blocks if there are many ends; "unknown" is never in one."""
    block = max(1, -(-one.known // CELLS_MAX))
    labels = [plain(name) for name in one.names[: one.known : block]]
    size = len(labels) + (len(one.names) > one.known)
    place = np.arange(len(one.names)) // block
    place[one.known :] = len(labels)
    values = added((size, size), (place[one.src], place[one.dst]), one.size_bytes)
    labels += ["unknown"] * (size - len(labels))
    word, layer = one.words[0], layer_text(one.layer)
    return Matrix("", f"Bytes from {word} to {word}, {layer}", "bytes", labels, values, block)
