"""A comparison as a page: that of the report, with what changed instead of what was found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from sigmatrace.diff import figures, words
from sigmatrace.diff.comparison import Comparison, Group
from sigmatrace.diff.quality import SIDES, noise_text, side_text
from sigmatrace.errors import OutputError
from sigmatrace.export.report import svg
from sigmatrace.export.report.facts import Finding, Line, Verdict
from sigmatrace.export.report.page import Section, page
from sigmatrace.export.report.shape import Shape
from sigmatrace.export.report.tables import Cell, Shown
from sigmatrace.text import count_text
from sigmatrace.version import version_text

_ROWS_MAX = 200
_FINDINGS = 3
"""Sentences of each kind; its table has more."""
_DPI = 72
"""Of files that nobody keeps."""
_HEAD = ("what", "layer", "A", "B", "change", "relative", "remark", "share")
_NOISE_HEAD = ("noise", "p")


def write(found: Comparison, doubts: Sequence[str], file: Path) -> None:
    """Write a page that is whole in itself.

    Args:
        found: The comparison.
        doubts: What ``quality.attention`` says of the runs.
        file: Where to.

    Raises:
        OutputError: It cannot be written.
    """
    tables = [_shown(found, group) for group in found.kinds()]
    verdicts = [Verdict(False, text) for text in doubts]
    verdicts.append(Verdict(found.is_noise_known, f"Noise: {noise_text(found)}."))
    if not doubts:
        verdicts.append(Verdict(True, "Nothing was lost, and runs do not differ in kind."))
    sides = zip(SIDES, found.sides, strict=True)
    text = page(
        {
            "heading": "SigmaTrace comparison",
            "title": words.closing(found),
            "version": version_text(),
            "ran": [Line(side, (side_text(runs),)) for side, runs in sides],
            "verdicts": verdicts,
            "quality": [],
            "quality_tables": [],
            "findings_title": "What changed",
            "findings_note": "The percentage is the share of the change in the larger side of all "
            "comparisons of its measure; the heaviest come first.",
            "findings": _findings(found),
            "found": [],
            "sections": [
                _pictures("changes", "Heaviest changes", figures.bars(found)),
                _pictures("matrix", "Between whom", figures.heat_maps(found)),
            ],
            "tables": tables,
            "anchors": {one.title: one.anchor for one in tables},
            "figures_note": "",
        }
    )
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{file}: {error.strerror}", "name another file by --html") from None


def _findings(found: Comparison) -> list[Finding]:
    """Return the heaviest changes of each kind as sentences, heaviest first."""
    told = []
    for group in found.kinds():
        for part, at in group.places(_FINDINGS):
            row = found.row(part, at)
            text = words.sentence(found.parts[part].measure, row)
            told.append((row["weight"] or 0.0, text, group.kind))
    told.sort(key=lambda one: -one[0])
    return [Finding(f"{weight:.0%}", "table", text, kind.title, "") for weight, text, kind in told]


def _pictures(anchor: str, title: str, shapes: Iterable[Shape]) -> Section:
    with tempfile.TemporaryDirectory(prefix="sigmatrace-diff-") as folder:
        drawn = [
            {"name": one.name, "title": one.title, "text": one.text,
             "svg": svg.save(one, Path(folder), _DPI)}
            for one in shapes
        ]  # fmt: skip
    return Section(anchor, title, drawn, (), "Nothing here changed that counts.")


def _shown(found: Comparison, group: Group) -> Shown:
    total = group.at.size
    more = ""
    if total > _ROWS_MAX:
        more = f"{count_text(_ROWS_MAX)} of {count_text(total)} rows, the heaviest; all are in "
        more += "--format csv."
    rows = [_cells(found, *one) for one in group.places(_ROWS_MAX)]
    name = group.kind.name
    head = (*_HEAD, *_NOISE_HEAD) if found.is_noise_known else _HEAD
    return Shown(name, f"table-{name}", group.kind.title, head, rows, more)


def _cells(found: Comparison, part: int, at: int) -> list[Cell]:
    row, measure = found.row(part, at), found.parts[part].measure
    unit = row["unit"]
    told = [row["verdict"] or row["status"].replace("changed", ""), words.last_text(row)]
    cells = [
        Cell(words.subject(measure, {**row, "layer": ""})),
        Cell(row["layer"]),
        _number(words.amount_text(unit, row["a"]), row["a"]),
        _number(words.amount_text(unit, row["b"]), row["b"]),
        _number(words.change_text(row), row["change"]),
        _number(words.relative_text(row), row["relative"]),
        Cell(", ".join(text for text in told if text)),
        _number(f"{row['weight'] or 0:.2%}", row["weight"]),
    ]
    if found.is_noise_known:
        p = "" if row["p"] is None else f"{row['p']:.2g}"
        cells.append(_number(words.amount_text(unit, row["spread"]), row["spread"]))
        cells.append(_number(p, row["p"]))
    return cells


def _number(text: str, value: float | None) -> Cell:
    """Return a number; an infinite one sorts above all others."""
    if value is None:
        return Cell(text)
    return Cell(text, str(value).replace("inf", "1e400"))
