"""A counter of the whole run where only a window of it was read: records over time, by process.

The index knows of each chunk how many records it has and when the first and last were; between
these they are taken as evenly spread.
"""

from __future__ import annotations

import numpy as np

from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.perfetto_budget import cumulated
from sigmatrace.export.perfetto_counters import Counters
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.partition import Run

NAME = "records in the files"
_BINS = 1024


def activity_counters(run: Run, tracks: Tracks, uuid: int) -> Counters:
    """Return records per second over the whole run, a counter for each process.

    Where everything was read there is none: counters of the events themselves tell more.

    Args:
        run: The run with its table ``chunk_times``; its fact ``window_ns`` says that a window alone
            was read.
        tracks: Those of the run.
        uuid: Number of the first counter.
    """
    columns = ("proc", "count", "first_ns", "last_ns")
    if run.window_ns is None or not run.tables["chunk_times"].num_rows:
        none = np.empty(0, np.int64)
        return Counters(none, none, np.empty(0), b"", (), uuid)
    proc, count, first, last = (run.column("chunk_times", name) for name in columns)
    begin, end = int(first.min()), int(last.max()) + 1
    edges = begin + np.arange(_BINS + 1) * (end - begin) // _BINS
    edges = np.unique(edges)
    times, values, numbers, described, parents = [], [], [], [], []
    for number in np.unique(proc).tolist():
        mine = proc == number
        points, total = cumulated(first[mine], last[mine], count[mine])
        rate = np.diff(np.interp(edges - begin, points - begin, total)) * 1e9 / np.diff(edges)
        rate = np.append(np.where(rate > 1e-6, rate, 0.0), 0.0)
        change = np.flatnonzero(np.diff(rate, prepend=0.0))
        parents.append(tracks.number(Track.PROCESS, number))
        unit = packets.counter("records/s")
        described.append(packets.track(uuid, unit, name=NAME, parent=parents[-1]))
        times.append(edges[change])
        values.append(rate[change])
        numbers.append(np.full(change.size, uuid))
        uuid += 1
    at, value, which = (np.concatenate(parts) for parts in (times, values, numbers))
    return Counters(which, at, value, b"".join(described), parents, uuid)
