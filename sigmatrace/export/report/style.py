"""How the figures of the report look: colours that everybody can tell apart, also in grey."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sigmatrace.export.matrix import ticks
from sigmatrace.text import byte_text

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""M. Okabe, K. Ito, Color Universal Design, 2008; lightest last, as the page is white."""
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "////", "....", "xxxx")
"""In print without colours, lines, marks and bars still differ."""
HEAT = "viridis"
LABEL_MAX = 28
_GREEK_END = 0x0400
"""The font of matplotlib has the letters below."""
TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the report's style. Names of hosts and programs are text, never formulas."""
    import matplotlib

    with matplotlib.rc_context(
        {
            "text.parse_math": False,
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "grid.color": "#dddddd",
            "hatch.linewidth": 0.6,
            "savefig.facecolor": "white",
        }
    ):
        yield


def figure_of(width: float, height: float, rows: int = 1, **options: Any) -> tuple[Any, Any]:
    """Return a figure, made without pyplot and its global state, and its axes.

    Args:
        width: In inches.
        height: In inches.
        rows: How many axes, one above the other.
        **options: Of ``Figure.subplots``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, 1, **options)


def byte_axis(axis: Any, suffix: str = "") -> None:
    """Label an axis whose values are bytes, or bytes per something, at round numbers of a unit.

    Args:
        axis: Of matplotlib, with its limits.
        suffix: What follows the unit: "/s".
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axis.get_view_interval()
    is_log = axis.get_scale() == "log"
    axis.set_major_locator(FixedLocator(ticks(max(low, 1.0), max(high, 1.0), is_log, "bytes")))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{byte_text(value)}{suffix}")


def plain(text: str, most: int = LABEL_MAX) -> str:
    """Return a label that any figure can show: short, and of letters that its font has."""
    shown = "".join(c if c.isprintable() and ord(c) < _GREEK_END else "?" for c in text)
    if len(shown) <= most:
        return shown
    half = (most - 3) // 2
    return f"{shown[:half]}...{shown[-half:]}"


def time_unit(most_ns: float) -> tuple[int, str]:
    """Return ns of the unit in which times up to ``most_ns`` are read best, and its name."""
    return next(((ns, unit) for ns, unit in TIMES if abs(most_ns) >= ns), TIMES[-1])
