"""Kernels and doorbells as rows of their GPU's tracks.

A kernel is a slice; kernels that run at once are on lanes. A doorbell is an instant. Those that
announce data (sends, writes, reads) are apart from those that control (atomics, NOP, ...); what one
announces is known from operations of the same queue pair and time, where they are in the same
partition.
"""

from __future__ import annotations

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

_DATA = (Op.SEND, Op.PUT, Op.GET, Op.PUT_DATA)
_FLAGS = 128
_KERNEL = tuple(Argument(name, Kind.U64) for name in ("blocks", "threads", "stream", "correlation"))
_DOORBELL = (
    Argument("qp", Kind.HEX),
    Argument("index", Kind.U64),
    Argument("slots", Kind.U64),
    Argument("delay_ns", Kind.U64),
    Argument("operations", Kind.U64),
    Argument("size_bytes", Kind.U64),
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


def doorbell_rows(part: Partition, tracks: Tracks) -> Rows:
    """Return a partition's doorbells; those of a queue pair that is not known are left out."""
    row = {name: part.column("doorbells", name) for name in GPU_COLUMNS["doorbells"]}
    qp = find_objects(tracks.qps.keys, row["proc"], row["qp"])
    gpu = np.append(tracks.gpus.of_qp, -1)[qp]
    use = gpu >= 0
    row, qp, gpu = {name: values[use] for name, values in row.items()}, qp[use], gpu[use]
    operations, data, size_bytes = _announced(part, tracks, qp, row["t_tsc"])
    kind = np.where(data > 0, Track.DATA, Track.CONTROL)
    kind = np.where(operations > 0, kind, Track.DOORBELLS)
    size = qp.size
    flags = row["flags"].astype(np.uint64)
    known = operations > 0
    shown = np.full(size, 0b1111, np.uint16) | known << 4 | known << 5 | (flags != 0) << 6
    values = (
        tracks.qps.qpn[qp],
        row["index"],
        row["slots"],
        row["delay_ns"],
        operations,
        size_bytes,
        flags,
    )
    return Rows(
        track=tracks.numbers(kind, gpu),
        begin_ns=row["t_ns"],
        length_ns=np.zeros(size, np.int64),
        depth=np.zeros(size, np.uint8),
        name=np.zeros(size, np.uint32),
        shown=shown.astype(np.uint16),
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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of each doorbell its operations, how many of them carry data, and their bytes.

    Operations have the time of their doorbell.
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
    count = int(group.max(initial=-1)) + 1
    data = np.isin(part.column("ops", "op")[mine], _DATA)
    size_bytes = part.column("ops", "size_bytes")[mine].astype(np.float64)
    sums = (np.bincount(ops, weights, count) for weights in (None, data, size_bytes))
    operations, with_data, total = (one[doorbells].astype(np.uint64) for one in sums)
    return operations, with_data, total
