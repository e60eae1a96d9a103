"""Regions and instants: what the program itself marks.

Marks are few. They are kept as they are until all partitions are known, so that a region may
begin in one partition and end in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sigmatrace.export.kernels.order import group_rows, pair_regions, sort_rows
from sigmatrace.export.perfetto_rows import Argument, Kind, Rows
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.partition import Partition, Run
from sigmatrace.trace_format import MarkKind

_FROM_BEFORE = "began before the window"
MARK = np.dtype(
    [
        ("proc", "i4"),
        ("thread", "u4"),
        ("t_ns", "i8"),
        ("value", "f8"),
        ("name", "u4"),
        ("kind", "u1"),
    ]
)
"""A mark, with the columns of the table ``marks``."""


def marks_of(part: Partition) -> np.ndarray:
    """Return a partition's marks as ``MARK`` rows."""
    marks = np.empty(part.tables["marks"].num_rows, MARK)
    for name in MARK.names or ():
        marks[name] = part.column("marks", name)
    return marks


def mark_texts(run: Run, marks: Any) -> tuple[np.ndarray, list[str]]:
    """Return for each mark the key u4 of its name, and the names by key.

    Args:
        run: The run with its table ``names``.
        marks: Has ``proc`` i4[n] and ``name`` u4[n].

    Names are numbered per process; a key means the same text in all.
    """
    texts: dict[str, int] = {}
    keys: dict[tuple[int, int], int] = {}
    columns = (run.tables["names"].column(k).to_pylist() for k in ("proc", "name", "text"))
    for proc, name, text in zip(*columns, strict=True):
        keys[proc, name] = texts.setdefault(text, len(texts))
    pairs, which = np.unique(
        marks["proc"].astype(np.int64) << 32 | marks["name"], return_inverse=True
    )
    of_pair = [
        keys.get((pair >> 32, pair & 0xFFFFFFFF), -1)
        if (pair >> 32, pair & 0xFFFFFFFF) in keys
        else texts.setdefault(f"name {pair & 0xFFFFFFFF}", len(texts))
        for pair in pairs.tolist()
    ]
    return np.array(of_pair, np.uint32)[which], list(texts)


def regions(
    marks: np.ndarray, key: np.ndarray, texts: Sequence[str], tracks: Tracks
) -> tuple[Rows, dict[str, int]]:
    """Return the program's regions and instants, and counts of what did not pair up.

    A region that was never ended is shown as an instant that says so. In a window of a run
    (``tracks.run`` has the fact ``window_ns``) one that began before it begins with it.

    Args:
        marks: ``MARK`` rows of the whole run.
        key: u4, name of each.
        texts: Names by key.
        tracks: Those of the run.
    """
    begin, kind = marks["t_ns"].copy(), marks["kind"].copy()
    length, is_open, is_stray = _pair(marks, begin, kind, key, tracks)
    window = tracks.run.window_ns
    from_before = is_stray & (window is not None)
    if window is not None:
        begin[from_before] = window[0]
        length[from_before] = marks["t_ns"][from_before] - window[0]
    shown = np.flatnonzero((kind == MarkKind.BEGIN) | (kind == MarkKind.INSTANT) | from_before)
    texts_of_ends = "never ended" if window is None else "no end in the window", _FROM_BEFORE
    none = np.zeros(shown.size, np.uint8)
    rows = Rows(
        track=tracks.numbers(Track.REGIONS, marks["thread"][shown]),
        begin_ns=begin[shown],
        length_ns=length[shown],
        depth=none,
        name=key[shown],
        shown=(is_open | from_before)[shown].astype(np.uint16),
        flow=none.astype(np.uint64),
        values=(from_before[shown].astype(np.uint64),),
        arguments=(Argument("region", Kind.TEXT),),
        name_text=texts.__getitem__,
        value_text=texts_of_ends.__getitem__,
        texts=len(texts_of_ends),
    )
    known = np.bincount(kind, minlength=256)
    counts = {
        "mark_records": marks.size,
        "mark_instants": int(known[MarkKind.INSTANT]),
        "mark_unknown": marks.size - int(known[list(MarkKind)].sum()),
        "regions_closed": int(known[MarkKind.BEGIN]) - int(is_open.sum()),
        "regions_open": int(is_open.sum()),
        "regions_stray_ends": int(is_stray.sum()),
        "regions_from_before": int(from_before.sum()),
    }
    return rows, counts


def _pair(
    marks: np.ndarray, begin: np.ndarray, kind: np.ndarray, key: np.ndarray, tracks: Tracks
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how long regions took (ns), which begins have no end, and which ends no begin."""
    length = np.zeros(marks.size, np.int64)
    is_open = np.zeros(marks.size, bool)
    zeros = np.zeros(marks.size, np.uint8)
    order, starts = group_rows(marks["thread"].copy(), 0, tracks.run.tables["threads"].num_rows)
    is_stray = kind == MarkKind.END
    for thread in np.flatnonzero(np.diff(starts)).tolist():
        mine = order[starts[thread] : starts[thread + 1]]
        sort_rows(mine, begin, length, zeros)
        ends, _ = pair_regions(mine, kind, key, MarkKind.BEGIN, MarkKind.END)
        paired = ends >= 0
        length[mine[paired]] = begin[ends[paired]] - begin[mine[paired]]
        is_open[mine[~paired]] = kind[mine[~paired]] == MarkKind.BEGIN
        is_stray[ends[paired]] = False
    return length, is_open, is_stray
