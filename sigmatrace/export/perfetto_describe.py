"""Descriptors of a trace's tracks: processes, threads, and what stands below them."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator
from pathlib import PurePath

import numpy as np

from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.partition import Run

_PIDS_FROM = 1 << 22


def describe(
    run: Run, tracks: Tracks, used: Iterable[int], described: np.ndarray | None = None
) -> bytes:
    """Return the descriptors of processes, threads, and the other tracks that have events.

    Perfetto tells processes apart by pid alone. Of several that have the same (on other hosts,
    after exec) all but one get a number beyond Linux's pids; their names hold the real pid, since
    the viewer writes the number that we give behind each name.

    Args:
        run: The run with its tables ``processes`` and ``threads``.
        tracks: Its tracks.
        used: Numbers of tracks that have events, or counters below them.
        described: bool, processes that are there at all; None: all.
    """
    pids = _pids(run)
    if described is None:
        described = np.ones(len(pids), bool)
    processes = itertools.compress(_processes(run, tracks, pids), described)
    threads = itertools.compress(
        _threads(run, tracks, pids), described[run.column("threads", "proc")]
    )
    out = [packets.root(), *processes, *threads]
    for number in tracks.with_parents(used):
        if tracks.kind(number) not in (Track.CALLS, Track.PROCESS):
            parent = tracks.parent(number)
            out.append(packets.track(number, name=tracks.name(number), parent=parent))
    return b"".join(out)


def _pids(run: Run) -> list[int]:
    """Return a number for each process that no other one has: its pid where that is possible."""
    pids: list[int] = []
    seen: set[int] = set()
    for proc, pid in enumerate(run.column("processes", "pid").tolist()):
        usable = 0 < pid < _PIDS_FROM and pid not in seen
        seen.add(pid)
        pids.append(pid if usable else _PIDS_FROM + proc)
    return pids


def _processes(run: Run, tracks: Tracks, pids: list[int]) -> Iterator[bytes]:
    keys = ("label", "rank", "command", "host", "pid")
    columns = (run.tables["processes"].column(key).to_pylist() for key in keys)
    for proc, (label, rank, command, host, pid) in enumerate(zip(*columns, strict=True)):
        name = label if rank >= 0 else _program(command) or label
        real_pid = "" if pids[proc] == pid else f", pid {pid}"
        where = packets.process(pids[proc], f"{name} ({host}{real_pid})")
        yield packets.track(tracks.number(Track.PROCESS, proc), where, rank=proc)


def _program(command: str) -> str:
    """Return the base name of the program that a command line starts, "" if there is none."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return PurePath(words[0]).name if words else ""


def _threads(run: Run, tracks: Tracks, pids: list[int]) -> Iterator[bytes]:
    real = run.column("processes", "pid").tolist()
    owners, tids = (run.column("threads", key).tolist() for key in ("proc", "tid"))
    for thread, (proc, tid) in enumerate(zip(owners, tids, strict=True)):
        number = tracks.number(Track.CALLS, thread)
        shown = pids[proc] if tid == real[proc] else tid
        where = packets.thread(pids[proc], shown, tracks.name(number))
        yield packets.track(number, where, parent=tracks.parent(number))
