"""Who could have had traffic at a layer, whether there was any or not."""

from __future__ import annotations

from sigmatrace.partition import Run
from sigmatrace.trace_format import layer_text


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
