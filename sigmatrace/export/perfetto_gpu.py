"""Kernels and doorbells as rows of their GPU's tracks.

A kernel is a slice; kernels that run at once are on lanes. A doorbell is an instant. What it
announces of data (sends, writes, reads) is apart from what controls (atomics, NOP, ...): one that
announces both stands on both tracks, on each with its operations of this kind. They are known from
operations of the same queue pair and time, where they are in the same partition.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sigmatrace.export.perfetto_marks import mark_texts
from sigmatrace.export.perfetto_rows import Argument, Kind, Rows
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.lookup import find_objects
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import Columns
from sigmatrace.trace_format import DoorbellFlag, Layer, Op

GPU_COLUMNS: Columns = {
    "doorbells": {
        **{"proc": "i4", "t_tsc": "u8", "t_ns": "i8", "index": "u8", "qp": "u4"},
        **{"slots": "u4", "delay_ns": "i8", "flags": "u4"},
    },
    "kernels": {
        **{"proc": "i4", "t_ns": "i8", "duration_ns": "i8", "name": "u4", "gpu": "u4"},
        **{"stream": "u4", "correlation": "u4", "blocks": "u4", "threads": "u4"},
    },
    "wqes": {},
}
"""Columns read here, beside those of operations."""

_FLAGS = 128
_GROUPS = (
    *((Op.SEND, Op.PUT_DATA), (Op.PUT,), (Op.GET,)),
    *((Op.ATOMIC, Op.ATOMIC_FETCH), (Op.NOP, Op.BIND, Op.INVALIDATE)),
)
"""Operations that are counted together, in the order of ``_COUNTS``: data, then control."""
_COUNTS = ("sends", "puts", "gets", "atomics", "others")
_DATA = 3
"""How many of them are data."""
_KERNEL = tuple(Argument(name, Kind.U64) for name in ("blocks", "threads", "stream", "correlation"))
_DOORBELL = (
    Argument("qp", Kind.HEX),
    Argument("index", Kind.U64),
    Argument("slots", Kind.U64),
    Argument("delay_ns", Kind.U64),
    Argument("operations", Kind.U64),
    Argument("size_bytes", Kind.U64),
    *(Argument(name, Kind.U64) for name in _COUNTS),
    Argument("flags", Kind.TEXT),
)


def kernel_rows(part: Partition, run: Run, tracks: Tracks) -> Rows:
    """Return a partition's kernels; those of a GPU that is not known are left out."""
    row = {name: part.column("kernels", name) for name in GPU_COLUMNS["kernels"]}
    gpu = find_objects(tracks.gpus.keys, row["proc"], row["gpu"])
    row = {name: values[gpu >= 0] for name, values in row.items()}
    name, texts = mark_texts(run, row)
    size = name.size
    return Rows(
        track=tracks.numbers(Track.KERNELS, gpu[gpu >= 0]),
        begin_ns=row["t_ns"],
        length_ns=row["duration_ns"],
        depth=np.zeros(size, np.uint8),
        name=name,
        shown=np.full(size, (1 << len(_KERNEL)) - 1, np.uint16),
        flow=np.zeros(size, np.uint64),
        values=[row[argument.name].astype(np.uint64) for argument in _KERNEL],
        arguments=_KERNEL,
        name_text=lambda key: texts[key],
        value_text=str,
        texts=1,
        nests=False,
    )


def absence_rows(run: Run, tracks: Tracks, base_ns: int) -> Rows:
    """Return an instant where kernels would be, for each GPU whose kernels were not recorded."""
    columns = (run.tables["kernels_not_recorded"].column(x).to_pylist() for x in ("proc", "reason"))
    reasons = dict(zip(*columns, strict=True))
    proc, is_known = tracks.gpus.proc, tracks.gpus.keys & 0xFFFFFFFF != 0
    use = is_known | ~np.isin(proc, proc[is_known])
    gpu = np.flatnonzero(np.isin(proc, list(reasons)) & use)
    texts = [f"not recorded: {reasons[proc]}" for proc in tracks.gpus.proc[gpu].tolist()]
    return Rows(
        track=tracks.numbers(Track.KERNELS, gpu),
        begin_ns=np.full(gpu.size, base_ns),
        length_ns=np.zeros(gpu.size, np.int64),
        depth=np.zeros(gpu.size, np.uint8),
        name=np.arange(gpu.size, dtype=np.uint32),
        shown=np.zeros(gpu.size, np.uint16),
        flow=np.zeros(gpu.size, np.uint64),
        values=(),
        arguments=(),
        name_text=texts.__getitem__,
        value_text=str,
        texts=1,
    )


def doorbell_rows(part: Partition, tracks: Tracks) -> tuple[Rows, int]:
    """Return a partition's doorbells, and how many of them stand on two tracks.

    Those of a queue pair that is not known are left out.
    """
    row = {name: part.column("doorbells", name) for name in GPU_COLUMNS["doorbells"]}
    qp = find_objects(tracks.qps.keys, row["proc"], row["qp"])
    gpu = np.append(tracks.gpus.of_qp, -1)[qp]
    use = gpu >= 0
    row, qp, gpu = {name: values[use] for name, values in row.items()}, qp[use], gpu[use]
    counts, size_bytes = _announced(part, tracks, qp, row["t_tsc"])
    has_data, has_control = counts[:, :_DATA].any(axis=1), counts[:, _DATA:].any(axis=1)
    # Each doorbell once by what it announces, then once more those that announce both.
    both = np.flatnonzero(has_data & has_control)
    at = np.concatenate([np.arange(qp.size), both])
    kind = np.where(has_data, Track.DATA, np.where(has_control, Track.CONTROL, Track.DOORBELLS))
    kind = np.concatenate([kind, np.full(both.size, Track.CONTROL)])
    is_data = (kind == Track.DATA)[:, None]
    counts = counts[at] * np.where(np.arange(len(_COUNTS)) < _DATA, is_data, ~is_data)
    size_bytes = np.where(kind == Track.DATA, size_bytes[at, 0], size_bytes[at, 1])
    row = {name: values[at] for name, values in row.items()}
    track = tracks.numbers(kind, gpu[at])
    return _doorbells(row, tracks.qps.qpn[qp[at]], counts, size_bytes, track), both.size


def _doorbells(
    row: Mapping[str, np.ndarray],
    qpn: np.ndarray,
    counts: np.ndarray,
    size_bytes: np.ndarray,
    track: np.ndarray,
) -> Rows:
    """Return doorbells as rows of their tracks.

    Args:
        row: Columns of ``GPU_COLUMNS``, ``(n,)`` each.
        qpn: ``(n,)`` u8, numbers of their queue pairs.
        counts: ``(n, 5)`` u8, operations by ``_COUNTS``.
        size_bytes: ``(n,)`` u8, of these operations.
        track: ``(n,)`` u4.
    """
    size, flags = qpn.size, row["flags"].astype(np.uint64)
    known = counts.any(axis=1)
    given = [*(known, known), *(counts > 0).T, flags != 0]
    shown = np.full(size, 0b1111, np.uint16)
    for bit, column in enumerate(given, 4):
        shown |= column.astype(np.uint16) << np.uint16(bit)
    own = qpn, *(row[name] for name in ("index", "slots", "delay_ns"))
    values = *own, counts.sum(axis=1), size_bytes, *counts.T, flags
    return Rows(
        track=track,
        begin_ns=row["t_ns"],
        length_ns=np.zeros(size, np.int64),
        depth=np.zeros(size, np.uint8),
        name=np.zeros(size, np.uint32),
        shown=shown,
        flow=np.zeros(size, np.uint64),
        values=[np.ascontiguousarray(value).astype(np.uint64) for value in values],
        arguments=_DOORBELL,
        name_text=lambda _: "doorbell",
        value_text=flags_text,
        texts=_FLAGS,
    )


def flags_text(flags: int) -> str:
    """Return the names of ``DoorbellFlag``, with blanks between them."""
    known = [one.name.lower() for one in DoorbellFlag if one.name and flags & one]
    return " ".join(known)


def _announced(
    part: Partition, tracks: Tracks, qp: np.ndarray, t_tsc: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return of each doorbell what it announces; operations have the time of their doorbell.

    Returns:
        ``(n, 5)`` u8, operations by ``_COUNTS``, and ``(n, 2)`` u8, bytes of data and of control.
    """
    mine = np.flatnonzero(part.column("ops", "layer") == Layer.MLX5DV)
    own = tracks.qps.channel[part.column("ops", "channel")[mine]]
    pairs = np.concatenate([own, qp]).astype(np.int64)
    times = np.concatenate([part.column("ops", "t_tsc")[mine], t_tsc])
    order = np.lexsort((times, pairs))
    new = (np.diff(pairs[order]) != 0) | (times[order][1:] != times[order][:-1])
    group = np.empty(pairs.size, np.int64)
    group[order] = np.concatenate([[0], np.cumsum(new)])[: pairs.size]
    ops, doorbells = group[: mine.size], group[mine.size :]
    groups = int(group.max(initial=-1)) + 1
    op = part.column("ops", "op")[mine]
    size_bytes = part.column("ops", "size_bytes")[mine].astype(np.float64)
    data = np.isin(op, [one for some in _GROUPS[:_DATA] for one in some])
    weights = [np.isin(op, some) for some in _GROUPS]
    weights += [np.where(data, size_bytes, 0), np.where(data, 0, size_bytes)]
    sums = [np.bincount(ops, weight, groups)[doorbells].astype(np.uint64) for weight in weights]
    return np.stack(sums[: len(_GROUPS)], axis=1), np.stack(sums[len(_GROUPS) :], axis=1)
