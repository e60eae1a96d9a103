"""The exporter ``report``: gathers the parts of the page, and writes it with its figures."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.export.report import barriers, charts, facts, graphs, heat, svg, tables
from sigmatrace.export.report.flows import drawn_layers, flows
from sigmatrace.export.report.page import Section, page
from sigmatrace.export.report.shape import Shape
from sigmatrace.layout import REPORT
from sigmatrace.partition import Run
from sigmatrace.schema import Columns
from sigmatrace.version import version_text

FOLDER = "report"
_ROWS_MOST = 2000
"""Of a table; with more the file would be too large to open."""


class Report(Exporter):
    """Writes ``report.html``, and its figures as ``report/NAME.{png,svg}``.

    Args:
        rows: Rows of each table, the heaviest.
        dpi: Resolution of the PNG files.
    """

    name: ClassVar[str] = "report"
    requires: ClassVar[Columns] = {
        name: {}
        for name in (
            "communication", "imbalance", "links", "errors", "timeline", "sizes", "clock_quality",
            "processes", "findings", "message_latency", "latency_histogram", "waits", "in_flight",
            "barriers", "barrier_arrivals", "stragglers", "critical_path",
        )
    }  # fmt: skip

    def __init__(self, rows: int = 200, dpi: int = 120) -> None:
        if not 1 <= rows <= _ROWS_MOST:
            raise ValueError(f"rows must be 1 to {_ROWS_MOST}, not {rows}")
        if not 20 <= dpi <= 1200:
            raise ValueError(f"dpi must be 20 to 1200, not {dpi}")
        self.rows = rows
        self.dpi = dpi
        self.book: Mapping[str, Any] = {}
        self.said: Sequence[str] = ()

    def informed(self, book: Mapping[str, Any], said: Sequence[str]) -> Report:
        """Return the exporter with the ledger and what the summary says."""
        told = copy.copy(self)
        told.book, told.said = book, said
        return told

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Draw the figures and write the page."""
        folder = staging / FOLDER
        folder.mkdir(exist_ok=True)
        told = facts.told(self.said)
        sections = [*self._sections(run, folder)]
        shown = [*tables.shown(run, tables.SPECS, self.rows)]
        processes = [*tables.shown(run, [tables.PROCESSES], self.rows)]
        quality = [*tables.shown(run, tables.QUALITY, self.rows)]
        text = page(
            {
                "title": facts.title(run),
                "version": version_text(),
                "ran": facts.ran(run, told.ran),
                "verdicts": facts.verdicts(run, self.book),
                "quality": told.quality,
                "quality_tables": quality,
                "findings": facts.findings(run),
                "found": told.found,
                "sections": sections,
                "tables": [*shown, *processes],
                "anchors": _anchors([*shown, *processes, *quality]),
            }
        )
        (staging / REPORT).write_text(text, encoding="utf-8")
        counts = {
            "figures": sum(len(one.figures) for one in sections),
            "tables": len(shown) + len(processes) + len(quality),
            "rows_shown": sum(len(one.rows) for one in (*shown, *processes, *quality)),
        }
        hint = "open report.html in any browser; it needs no network"
        return Exported((REPORT, FOLDER), counts, hint)

    def _sections(self, run: Run, folder: Path) -> Iterator[Section]:
        found = [*flows(run)]
        notes = heat.not_drawn(found)
        layers = run.tables["communication"].column("layer").unique().to_pylist()
        if len(layers) > len(drawn_layers(run)):
            notes.append("Only the layers with most bytes are drawn; the tables have all.")
        kinds: Sequence[tuple[str, str, Iterator[Shape], Sequence[str], str]] = (
            ("matrix", "Who sent how much to whom", heat.heat_maps(found), notes,
             _no_matrix(run)),
            ("graphs", "The same as graphs", graphs.graphs(found), graphs.not_drawn(found),
             "No traffic between two nodes, GPUs or ranks was recorded."),
            ("bandwidth", "Bandwidth over time", charts.over_time(run), (),
             "No operation with a time was recorded (mode aggregate has none)."),
            ("histograms", "Message sizes and latencies", _histograms(run), (),
             "No traffic was recorded."),
            ("barriers", "Barriers", barriers.barriers(run), (), "No barriers were found."),
            ("uneven", "How even it is", charts.uneven(found), (),
             "No traffic between two nodes or ranks was recorded."),
        )  # fmt: skip
        for anchor, title, shapes, said, none in kinds:
            drawn = [
                {"name": one.name, "title": one.title, "text": one.text,
                 "svg": svg.save(one, folder, self.dpi)}
                for one in shapes
            ]  # fmt: skip
            yield Section(anchor, title, drawn, said, none)


def _no_matrix(run: Run) -> str:
    """Return why there is no heat map."""
    if not run.tables["communication"].num_rows:
        return "No traffic was recorded."
    return "All traffic is of one process with itself: there are no pairs to compare."


def _anchors(shown: Iterable[tables.Shown]) -> dict[str, str]:
    """Return where each table is shown first."""
    return {one.name: one.anchor for one in reversed([*shown])}


def _histograms(run: Run) -> Iterator[Shape]:
    yield from charts.sizes(run)
    yield from charts.latencies(run)
