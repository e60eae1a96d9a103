"""One trace as several files: by groups of ranks or by time, and an overview."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sigmatrace.errors import ConfigError
from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.export.perfetto_chosen import Chosen, Mask
from sigmatrace.export.perfetto_tracks import Tracks
from sigmatrace.partition import Partition, Run
from sigmatrace.window import EVER_NS, UNITS_NS, duration_ns

FILES_MAX = 100
"""Files of one trace; each partition writes to all of them."""
_FORM = "write ranks:N, or time:T with a unit, both above 0, as in ranks:32 or time:10s"
_SECOND_NS = UNITS_NS["s"]
_SUMMED = ("slices", "instants", "counters", "flows", "flows_backwards")


@dataclass(frozen=True)
class Split:
    """How a trace is split.

    Attributes:
        by: "ranks" or "time".
        step: Ranks, or ns, of a file.
    """

    by: str
    step: int

    @classmethod
    def parse(cls, option: str, text: str) -> Split:
        """Return the split that a user wrote: ``ranks:32`` or ``time:10s``.

        Raises:
            ConfigError: It is not of this form.
        """
        by, _, size = text.partition(":")
        read = {"ranks": _count, "time": duration_ns}.get(by)
        step = read(size) if read else None
        if not step:
            raise ConfigError(f"{option}={text} is no split", _FORM)
        return cls(by, step)

    def parts(self, chosen: Chosen, run: Run, base_ns: int) -> list[tuple[str, Chosen]]:
        """Return the files' names, without an ending, and what each shows; an overview comes first.

        Args:
            chosen: What is shown at all.
            run: The run with its table ``chunk_times``.
            base_ns: Unix ns of the run's zero.

        Raises:
            ConfigError: These are too many files.
        """
        ways = {"ranks": self._by_ranks, "time": self._by_time}
        return [("overview", chosen.nothing), *ways[self.by](chosen, run, base_ns)]

    def _by_ranks(self, chosen: Chosen, run: Run, base_ns: int) -> Iterator[tuple[str, Chosen]]:
        rank = run.column("processes", "rank").astype(np.int64)
        mine = np.ones(rank.size, bool) if chosen.procs is None else chosen.procs
        group = np.where(rank < 0, -1, rank // self.step)
        numbers = np.unique(group[mine]).tolist()
        if len(numbers) > FILES_MAX:
            least = _least_step(np.unique(rank[mine]), self.step)
            raise _too_many(len(numbers), f"ranks:{least} would fit")
        digits = len(str(rank.max(initial=0)))
        for number in numbers:
            procs = mine & (group == number)
            ends = sorted({int(rank[procs].min()), int(rank[procs].max())})
            name = "-".join(["ranks", *(f"{end:0{digits}}" for end in ends)])
            if number < 0:
                name = "without-rank"
            yield name, replace(chosen, procs=procs, described=procs, unknown=())

    def _by_time(self, chosen: Chosen, run: Run, base_ns: int) -> Iterator[tuple[str, Chosen]]:
        first, last = (run.column("chunk_times", f"{end}_ns") for end in ("first", "last"))
        limits = run.window_ns or (-EVER_NS, EVER_NS)
        begin = max(int(first.min(initial=EVER_NS)), chosen.begin_ns, limits[0])
        end = min(int(last.max(initial=-EVER_NS)) + 1, chosen.end_ns, limits[1])
        begin = base_ns + (begin - base_ns) // self.step * self.step
        starts = range(begin, max(end, begin + 1), self.step)
        if len(starts) > FILES_MAX:
            raise _too_many(len(starts), "split less finely")
        decimals = len(f"{self.step % _SECOND_NS:09}".rstrip("0"))
        widest = Decimal(starts[-1] + self.step - base_ns) / _SECOND_NS
        digits = len(f"{widest:.{decimals}f}")
        for at in starts:
            ends = (Decimal(t - base_ns) / _SECOND_NS for t in (at, at + self.step))
            name = "-".join(f"{end:0{digits}.{decimals}f}s" for end in ends)
            # The outer ones have what lies beyond the times that the index knows.
            low = chosen.begin_ns if at == begin else max(at, chosen.begin_ns)
            high = chosen.end_ns if at + self.step >= end else min(at + self.step, chosen.end_ns)
            yield f"time-{name}", replace(chosen, begin_ns=low, end_ns=high, unknown=())


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9]\d*", text) else None


def _least_step(ranks: np.ndarray, step: int) -> int:
    """Return the next larger step by which there are no more files than there may be."""
    while np.unique(np.where(ranks < 0, -1, ranks // step)).size > FILES_MAX:
        step += 1
    return step


def _too_many(files: int, hint: str) -> ConfigError:
    what = f"export.perfetto.split makes {files} files, {FILES_MAX} are the most"
    return ConfigError(what, hint)


class SplitExporter(Exporter):
    """Writes several traces in one pass.

    Its counts are those of each file, behind the file's name, and the sums of some.

    Args:
        parts: By name of its file the exporter of each; each leaves as many files a piece.
    """

    name: ClassVar[str] = "perfetto"

    def __init__(self, parts: Mapping[str, Exporter]) -> None:
        self._parts = parts

    def write(self, part: Partition, run: Run, staging: Path) -> Piece:
        """Write what a partition contributes to each file."""
        pieces = {name: one.write(part, run, staging) for name, one in self._parts.items()}
        return Piece(
            part.number,
            tuple(file for piece in pieces.values() for file in piece.files),
            {f"{n}.{key}": x for n, piece in pieces.items() for key, x in piece.counts.items()},
            {key: x for piece in pieces.values() for key, x in piece.streams.items()},
        )

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Finish all files."""
        made = {
            name: one.finish([self._own(piece, name) for piece in pieces], run, staging)
            for name, one in self._parts.items()
        }
        counts: Counter[str] = Counter()
        for name, one in made.items():
            counts.update({f"{name}.{key}": value for key, value in one.counts.items()})
            counts.update({key: one.counts[key] for key in _SUMMED})
        return Exported(
            tuple(file for one in made.values() for file in one.files),
            dict(counts),
            "\n".join(_hints(made)),
            [
                {**equation, "name": f"{name}: {equation['name']}"}
                for name, one in made.items()
                for equation in (*one.balance, *_whole(one.counts))
            ],
        )

    def _own(self, piece: Piece, name: str) -> Piece:
        """Return what a file's exporter has left of a piece."""
        place, size = list(self._parts).index(name), len(piece.files) // len(self._parts)
        counts = {
            key.removeprefix(f"{name}."): value
            for key, value in piece.counts.items()
            if key.startswith(f"{name}.")
        }
        files = piece.files[place * size : (place + 1) * size]
        return replace(piece, files=files, counts=counts)


def _hints(made: Mapping[str, Exported]) -> Iterator[str]:
    """Yield how to open the overview, and what is to be known of each file."""
    for place, (name, one) in enumerate(made.items()):
        first, *notes = one.hint.splitlines()
        if place == 0:
            yield f"{first}, as that of the others is"
        yield from (f"{name}: {note}" for note in notes)


def described_alone(
    described: Mask | None,
    run: Run,
    marks: np.ndarray,
    amounts: list[np.ndarray],
    tracks: Tracks,
) -> tuple[Run, np.ndarray, list[np.ndarray]]:
    """Return what counters are made of, of the processes that a file has.

    Args:
        described: ``(processes,)`` bool, None: all.
        run: With its tables ``timeline`` and ``chunk_times``.
        marks: ``perfetto_marks.MARK`` rows.
        amounts: ``perfetto_counters.AMOUNT`` rows.
        tracks: Those of the run.
    """
    if described is None:
        return run, marks, amounts
    names = ("timeline", "chunk_times", "kernels_not_recorded")
    tables = {
        name: run.tables[name].filter(pa.array(described[run.column(name, "proc")]))
        for name in names
    }
    proc = tracks.qps.proc
    mine = [one[described[proc[one["stream"] >> 1]]] for one in amounts]
    return run.with_results(tables), marks[described[marks["proc"]]], mine


def _whole(counts: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield that each record is shown or left out, which the ledger sees of whole exporters."""
    for key, value in counts.items():
        schema = key.removesuffix("_left_out")
        if schema != key and f"{schema}_records" in counts:
            sides = {"left": value + counts[f"{schema}_records"], "right": f"records.{schema}"}
            yield {"name": f"{schema} records shown + left out", **sides}
