"""Comparisons in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sigmatrace.diff.comparison import Comparison
from sigmatrace.diff.kinds import Measure
from sigmatrace.text import byte_text, count_text, counted, time_text

_TIMES_MIN = 10.0
"""Beyond it, "12 times" says more than a percentage."""
Row = Mapping[str, Any]


def amount_text(unit: str, value: float | None) -> str:
    """Return an amount with its unit; "" where there is none."""
    if value is None:
        return ""
    sign, size = "-" if value < 0 else "", abs(value)
    if unit == "ns":
        return sign + time_text(size)
    if unit.startswith("bytes"):
        return sign + byte_text(size) + unit.removeprefix("bytes")
    return sign + (count_text(int(size)) if float(size).is_integer() else f"{size:.4g}")


def change_text(row: Row) -> str:
    """Return by how much it changed: ``+1.5 MiB``."""
    text = amount_text(row["unit"], row["change"])
    return text if text.startswith("-") or not text else f"+{text}"


def relative_text(row: Row) -> str:
    """Return that as a share of side A: ``+12.5 %``, ``12 times``, ``from 0``."""
    share = row["relative"]
    if share is None:
        return ""
    if math.isinf(share):
        return "from 0"
    return f"{1 + share:.3g} times" if share >= _TIMES_MIN else f"{100 * share:+.3g} %"


def subject(measure: Measure, row: Row) -> str:
    """Return what changed: ``rank 0 -> rank 1, ofi: bytes``."""
    name = ", ".join(text for text in (row["name"], row["layer"]) if text)
    return f"{name}: {measure.title}" if name else measure.title


def last_text(row: Row) -> str:
    """Return who came last to a barrier: ``last rank 3, was rank 7``; "" if that is not known."""
    before, after = row["last_a"], row["last_b"]
    if not (before or after):
        return ""
    return f"last {after or '?'}" + (f", was {before or '?'}" if before != after else "")


def sentence(measure: Measure, row: Row) -> str:
    """Return a comparison as a sentence."""
    before, after = (amount_text(row["unit"], row[side]) for side in "ab")
    rest = [relative_text(row), row["verdict"], last_text(row)]
    return f"{subject(measure, row)} {before} -> {after} ({', '.join(x for x in rest if x)})"


def closing(found: Comparison) -> str:
    """Return how many comparisons changed."""
    changed = found.count()
    worse, better = (found.count(lambda one: one.worse), found.count(lambda one: one.better))
    of = f"{count_text(changed)} of {counted(found.comparisons, 'comparison')}"
    kinds = f": {count_text(worse)} worse, {count_text(better)} better" if worse + better else ""
    only = f"; {count_text(found.one_sided)} more on one side alone" if found.one_sided else ""
    return f"{of}{kinds}{only}"
