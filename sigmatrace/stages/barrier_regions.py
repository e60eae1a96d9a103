"""Barriers that the program marks itself, by regions of one name in several processes.

The k-th region of each process is the k-th barrier. Where processes have different numbers of them
(one was killed, a window cuts), those beyond the least number are left out. A member may not leave
before the last one has come: what contradicts that, by more than clocks may err, is no barrier that
could be told, or its numbers are out of step, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Partition, Run, column
from sigmatrace.trace_format import MarkKind

Ints = NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max
COLUMNS = ("proc", "name", "kind", "t_ns")


@dataclass(frozen=True)
class Found:
    """Barriers of one kind and name.

    Attributes:
        kind, name: As in the table.
        proc, gpu: ``(members,)`` i8.
        arrival: ``(barriers, members)`` i8, Unix ns.
        incomplete: Barriers to which not all members came.
        contradicted: Barriers that a member left before the last one had come.
    """

    kind: str
    name: str
    proc: Ints
    gpu: Ints
    arrival: Ints
    incomplete: int = 0
    contradicted: int = 0


def marks_of(part: Partition, word: str) -> pa.Table:
    """Return begins and ends of the regions whose name contains a word, in any case."""
    marks = part.tables["marks"].select(COLUMNS)
    if not marks.num_rows:
        return marks
    kind = column(marks, "kind")
    chosen = np.isin(_keys(marks, "proc", "name"), list(_names(part.run, word)))
    chosen &= (kind == MarkKind.BEGIN) | (kind == MarkKind.END)
    return marks.filter(pa.array(chosen))


def _names(run: Run, word: str) -> dict[int, str]:
    """Return the names that contain a word, by process and number."""
    names = run.tables["names"]
    keys = _keys(names, "proc", "name").tolist()
    texts = names.column("text").to_pylist()
    return {k: text for k, text in zip(keys, texts, strict=True) if word.lower() in text.lower()}


def _keys(table: pa.Table, high: str, low: str) -> Ints:
    keys: Ints = column(table, high).astype(np.int64) << 32 | column(table, low)
    return keys


def barriers_of(marks: pa.Table, run: Run, word: str, tolerance_ns: int) -> list[Found]:
    """Return the barriers of each name.

    Args:
        marks: Of the whole run, as of ``marks_of``.
        run: With the table ``names``.
        word: What names contain.
        tolerance_ns: How much times of two processes may err.
    """
    names = _names(run, word)
    known, code = np.unique(_keys(marks, "proc", "name"), return_inverse=True)
    texts = np.array([names[key] for key in known.tolist()], object)
    proc, kind, t_ns = (column(marks, name) for name in ("proc", "kind", "t_ns"))
    order = np.lexsort((kind, t_ns, proc))
    groups: dict[str, Ints] = {
        text: order[(texts == text)[code[order]]] for text in sorted(set(texts.tolist()))
    }
    return [
        _barriers(text, proc[rows], kind[rows], t_ns[rows], tolerance_ns)
        for text, rows in groups.items()
    ]


def _barriers(
    text: str, proc: NDArray[np.int32], kind: NDArray[np.uint8], t_ns: Ints, tolerance_ns: int
) -> Found:
    """Return the barriers of one name, from its begins and ends by process and time."""
    members, at, count = np.unique(proc, return_index=True, return_counts=True)
    of_member = np.split(np.arange(proc.size), at[1:])
    is_begin = kind == MarkKind.BEGIN
    begins = [t_ns[rows[is_begin[rows]]] for rows in of_member]
    ends = [t_ns[rows[~is_begin[rows]]] for rows in of_member]
    cut = ~is_begin[at]  # the first that is seen of them is an end
    shift = np.where(cut & _is_shared(cut, begins, ends), 1, 0)
    total = np.array([one.size for one in begins], np.int64) + shift
    least, most, skipped = int(total.min()), int(total.max()), int(shift.max())
    arrival, release = np.full((2, max(least - skipped, 0), count.size), _NEVER)
    for member, (came, left) in enumerate(zip(begins, ends, strict=True)):
        from_before = int(cut[member])
        skip = skipped - int(shift[member])
        arrival[:, member] = came[skip:][: len(arrival)]
        own = left[from_before + skip :][: len(arrival)]
        release[: own.size, member] = own
    fits = np.ones(len(arrival), bool)
    if arrival.size:
        fits = arrival.max(axis=1) - release.min(axis=1) <= tolerance_ns
    return Found(
        *("region", text, members.astype(np.int64), np.zeros(count.size, np.int64), arrival[fits]),
        incomplete=most - len(arrival),
        contradicted=int((~fits).sum()),
    )


def _is_shared(cut: NDArray[np.bool_], begins: Sequence[Ints], ends: Sequence[Ints]) -> bool:
    """Return whether what began before the window for some began in it for others."""
    since = min((ends[k][0] for k in np.flatnonzero(cut).tolist()), default=-_NEVER)
    whole = [begins[k][0] for k in np.flatnonzero(~cut).tolist()]
    return bool(whole) and min(whole) <= since
