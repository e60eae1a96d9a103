"""The chart of barriers: who came when, and who came last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sigmatrace.export.report.shape import Shape
from sigmatrace.export.report.style import (
    MARKERS,
    OKABE_ITO,
    figure_of,
    plain,
    time_unit,
)
from sigmatrace.partition import Run
from sigmatrace.text import count_text, counted, time_text

BARRIERS_MAX = 40
"""More are drawn as the widest."""
MEMBERS_MAX = 8
"""So many have a colour and a mark of their own."""


def barriers(run: Run) -> Iterator[Shape]:
    """Yield the chart, where barriers were found."""
    made = all(name in run.tables for name in ("barriers", "barrier_arrivals"))
    if not made or not run.tables["barriers"].num_rows:
        return
    spread = run.column("barriers", "spread_ns")
    widest = np.sort(np.argsort(spread, kind="stable")[::-1][:BARRIERS_MAX])
    rows = run.tables["barriers"].take(widest).to_pylist()
    labels = run.tables["processes"].column("label").to_pylist()
    median = int(np.sort(spread)[(spread.size - 1) // 2])
    text = [
        f"{counted(spread.size, 'barrier')}: each point is an arrival, by how long after the first "
        f"one it came. From first to last it took {time_text(int(spread.max()))} at most, "
        f"{time_text(median)} in the median."
    ]
    lasts = Counter(run.column("barriers", "last_proc")[spread > 0].tolist())
    for last, times in lasts.most_common(1):
        often = f"{count_text(times)} of {count_text(spread.size)}"
        text.append(f"{labels[last]} came last most often ({often}).")
    if uncertain := int(run.column("barriers", "uncertain").sum()):
        text.append(
            f"Who came last is not sure at {counted(uncertain, 'barrier')}: clocks of hosts may be "
            "off by as much."
        )
    if spread.size > BARRIERS_MAX:
        text.append(f"Shown are the {BARRIERS_MAX} widest, in order of time.")
    yield Shape("barriers", "arrivals", " ".join(text), lambda: _draw(run, rows, labels))


def _draw(run: Run, rows: Sequence[dict[str, Any]], labels: Sequence[str]) -> Any:
    arrivals = {
        name: run.column("barrier_arrivals", name) for name in ("barrier", "proc", "late_ns")
    }
    place = {row["barrier"]: at for at, row in enumerate(rows)}
    keep = np.isin(arrivals["barrier"], list(place))
    y = np.array([place[one] for one in arrivals["barrier"][keep].tolist()], np.int64)
    proc, late = arrivals["proc"][keep], arrivals["late_ns"][keep]
    figure, axes = figure_of(10, 1.3 + 0.21 * max(len(rows), 4))
    unit, name = time_unit(float(late.max(initial=1)))
    axes.hlines(range(len(rows)), 0, [row["spread_ns"] / unit for row in rows], color="#bbbbbb")
    members = sorted({*proc.tolist()})
    if len(members) <= MEMBERS_MAX:
        for at, one in enumerate(members):
            mine = proc == one
            look = {"color": OKABE_ITO[at], "marker": MARKERS[at], "label": plain(labels[one])}
            axes.scatter(late[mine] / unit, y[mine], s=26, zorder=3, **look)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    else:
        axes.scatter(late / unit, y, s=5, color="#555555", alpha=0.4, zorder=3, rasterized=True)
    for at, row in enumerate(rows):
        who = f"  {plain(labels[row['last_proc']])}" if len(members) > MEMBERS_MAX else ""
        axes.text(row["spread_ns"] / unit, at, who, va="center", fontsize=7)
    shown = [f"{row['barrier']} {plain(row['name'] or row['kind'])}" for row in rows]
    axes.set_yticks(range(len(rows)), shown, fontsize=8 if len(rows) <= 20 else 7)
    axes.invert_yaxis()
    axes.set_xlabel(f"after the first arrival, in {name}")
    axes.margins(x=0.06)
    axes.grid(axis="x")
    return figure
