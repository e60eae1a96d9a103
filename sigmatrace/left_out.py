"""What a trace does not show of its run, as the ledger beside it tells."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sigmatrace.errors import RunNotFoundError
from sigmatrace.layout import LEDGER, TRACE, facts_in
from sigmatrace.text import counted

_OUTSIDE = ("outside", "outside_open", "not_read", "not_read_open")
"""What becomes of records that are not in the window of a run (docs/ledger.md)."""
_CHOSEN = "as chosen (export.perfetto.window, ranks, qps, ops, split)"


def attention(trace: Path) -> list[str]:
    """Return the line that whoever asks or sees a trace has to know; none where it shows all.

    Args:
        trace: A trace file. Where no ledger lies beside it, nothing is known.
    """
    book: Mapping[str, Any] = {}
    with contextlib.suppress(RunNotFoundError):
        book = facts_in(trace.parent / LEDGER, "")
    missing = list(_missing(book, trace.name))
    if not missing:
        return []
    where = " made without window=" if _outside(book) else ""
    whole = f"the tables of export=parquet{where} have all of the run"
    return [f"{trace.name} does not show {', '.join(missing)}; {whole}"]


def _missing(book: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield what a trace of this name does not show, and why."""
    counts = _part(_part(book, "exports"), "perfetto")
    of_file = "" if name == TRACE else f"{name}."  # as SplitExporter names them
    beyond, not_chosen, regions, rows = (
        counts.get(of_file + key, 0)
        for key in ("beyond_budget", "not_chosen", "regions_left_out", "aggregate_left_out")
    )
    if beyond:
        yield f"{counted(beyond, 'record')} beyond its budget (export.perfetto.budget_mb)"
    if not_chosen - beyond:
        yield f"{counted(not_chosen - beyond, 'record')} {_CHOSEN}"
    if regions:
        yield f"{counted(regions, 'region or instant', 'regions and instants')} of the program"
    if rows:
        yield f"{counted(rows, 'row')} of mode aggregate, which have no times"
    if outside := _outside(book):
        yield f"{counted(outside, 'record')} outside of its window"


def _outside(book: Mapping[str, Any]) -> int:
    """Return how many records the window of a run left out."""
    schemas = _part(book, "records")
    return sum(_part(schemas, name).get(key, 0) for name in schemas for key in _OUTSIDE)


def _part(book: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = book.get(key)
    return found if isinstance(found, dict) else {}
