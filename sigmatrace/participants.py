"""Who could have had traffic at a layer, whether there was any or not; what members are called."""

from __future__ import annotations

from sigmatrace.partition import Run
from sigmatrace.trace_format import layer_text

_WORDS = {
    "node": ("node", "nodes"), "rank": ("rank", "ranks"), "gpu": ("GPU", "GPUs"),
    "nic": ("NIC", "NICs"), "qp": ("queue pair or endpoint", "queue pairs or endpoints"),
}  # fmt: skip


def member_words(run: Run, level: str) -> tuple[str, str]:
    """Return what one member of a level is called, and several: ranks are processes if none is one.

    Args:
        run: With the column ``rank`` of ``processes``.
        level: Of the table ``communication``.
    """
    if level == "rank" and not (run.column("processes", "rank") >= 0).any():
        return "process", "processes"
    return _WORDS[level]


def participants(run: Run, layer: int) -> list[int]:
    """Return the processes that could have had traffic at a layer, ascending.

    These are the ones that recorded the layer; where ranks are known, those that have one:
    launchers and helpers do not take part.

    Args:
        run: With the columns ``rank`` and ``layers`` of ``processes``.
        layer: Of ``trace_format.Layer``.
    """
    layers = run.tables["processes"].column("layers").to_pylist()
    ranked = run.column("processes", "rank") >= 0
    takes_part = ranked if ranked.any() else ~ranked
    name = layer_text(layer)
    return [proc for proc, of in enumerate(layers) if takes_part[proc] and name in of.split(",")]
