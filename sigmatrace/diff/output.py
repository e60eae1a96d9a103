"""A comparison as a table in the terminal, as CSV, or as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from sigmatrace.diff import words
from sigmatrace.diff.comparison import COLUMNS, Comparison
from sigmatrace.diff.noise import LEVEL
from sigmatrace.diff.quality import SIDES, noise_text, side_text
from sigmatrace.query.rows import Csv, Json, Table
from sigmatrace.text import count_text

_ROWS = 4096
_WIDTH = 11
_TERMS = ("what", "A", "B", "change", "relative")


def table(found: Comparison, doubts: Sequence[str], out: TextIO, top: int, *, every: bool) -> None:
    """Write what an engineer reads: quality of the data first, then what changed, by kind.

    Args:
        found: The comparison.
        doubts: What ``quality.attention`` says of the runs.
        out: Where to.
        top: Rows of each kind.
        every: Also what did not change.
    """
    for side, runs in zip(SIDES, found.sides, strict=True):
        _line(out, side, side_text(runs))
    _line(out, "attention" if doubts else "quality", *(doubts or ["nothing was lost or differs"]))
    _line(out, "noise", noise_text(found))
    _line(out, "changed", words.closing(found))
    for group in found.kinds(every=every):
        total = group.at.size
        shown = "" if total <= top else f", {count_text(top)} heaviest of {count_text(total)}"
        out.write(f"\n{group.kind.title}{shown}\n")
        names = (*_TERMS, *(["noise"] if found.is_noise_known else []), "")
        writer = Table(out)
        writer.take(names, [_cells(found, *one) for one in group.places(top)])
        writer.end()


def _line(out: TextIO, term: str, *texts: str) -> None:
    for at, text in enumerate(texts):
        out.write(f"{'' if at else term:<{_WIDTH}}{text}\n")


def _cells(found: Comparison, part: int, at: int) -> tuple[str, ...]:
    row, measure = found.row(part, at), found.parts[part].measure
    unit = row["unit"]
    noise = []
    if found.is_noise_known:
        noise = [f"+-{words.amount_text(unit, row['spread'])}" if row["spread"] is not None else ""]
    told = row["verdict"] or row["status"].replace("changed", "")
    remarks = ", ".join(text for text in (told, words.last_text(row)) if text)
    return (
        words.subject(measure, row),
        words.amount_text(unit, row["a"]),
        words.amount_text(unit, row["b"]),
        words.change_text(row),
        words.relative_text(row),
        *noise,
        remarks,
    )


def csv(found: Comparison, out: TextIO, *, every: bool) -> None:
    """Write rows of ``COLUMNS``."""
    writer = Csv(out)
    writer.take(COLUMNS, [])
    _stream(found, writer.take, every=every)
    writer.end()


def json_text(found: Comparison, doubts: Sequence[str], out: TextIO, *, every: bool) -> None:
    """Write an object: the runs, their quality, how noise was judged, counts, and the rows."""
    a, b = found.sides
    head: dict[str, Any] = {
        "a": [one.name for one in a],
        "b": [one.name for one in b],
        "attention": list(doubts),
        "noise": {
            "measured": found.is_noise_known,
            "level": LEVEL,
            "threshold": found.threshold,
            "text": noise_text(found),
        },
        "comparisons": found.comparisons,
        "one_sided": found.one_sided,
        "changed": found.count(),
        "worse": found.count(lambda one: one.worse),
        "better": found.count(lambda one: one.better),
    }
    out.write(json.dumps(head, ensure_ascii=False, indent=1).removesuffix("\n}"))
    out.write(',\n "changes": ')
    writer = Json(out)
    _stream(found, writer.take, every=every)
    writer.end()
    out.write("}\n")


def _stream(
    found: Comparison,
    take: Callable[[Sequence[str], list[tuple[Any, ...]]], None],
    *,
    every: bool,
) -> None:
    for rows in _batches(tuple(row.values()) for row in found.rows(every=every)):
        take(COLUMNS, rows)


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterable[list[tuple[Any, ...]]]:
    steady = iter(rows)
    while batch := list(itertools.islice(steady, _ROWS)):
        yield batch
