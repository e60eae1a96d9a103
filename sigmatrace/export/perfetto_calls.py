"""Operations and completions as rows of their threads' tracks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sigmatrace.export.kernels.packets import SINK
from sigmatrace.export.kernels.rows import describe_operations
from sigmatrace.export.perfetto_rows import Argument, Kind, Rows
from sigmatrace.export.perfetto_targets import arrow_ids, has_flag, silent_targets
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import Fate
from sigmatrace.trace_format import Op, OpFlag

_OPERATION = (
    Argument("size_bytes", Kind.U64),
    Argument("peer", Kind.TEXT),
    Argument("unmatched", Kind.TEXT),
    Argument("failed", Kind.FLAG),
    Argument("uncertain", Kind.FLAG),
    Argument("nested", Kind.FLAG),
)
_VALUED, _UNCERTAIN, _NESTED = 3, 4, 5
"""How many of them have a value, which come first; the bits of the last two."""
_POSTED = (
    *_OPERATION[:_VALUED],
    Argument("op", Kind.TEXT),
    Argument("qp", Kind.HEX),
    Argument("position", Kind.U64),
    *_OPERATION[_VALUED:],
    Argument("signaled", Kind.FLAG),
)
"""Arguments where there are queue pairs."""
_COMPLETION = (
    Argument("size_bytes", Kind.U64),
    Argument("status", Kind.TEXT),
    Argument("failed", Kind.FLAG),
)
_FATES = _OPS = 256


def operations(part: Partition, run: Run, tracks: Tracks) -> Rows:
    """Return a partition's operations."""
    columns = (run.tables["calls"].column(k).to_pylist() for k in ("call", "text"))
    calls = dict(zip(*columns, strict=True))
    peers = run.tables["processes"].column("label").to_pylist()
    size = part.tables["ops"].num_rows
    name, shown = np.empty(size, np.uint32), np.empty(size, np.uint16)
    peer, why = np.empty(size, np.uint32), np.empty(size, np.uint32)
    keys = ("proc", "src_proc", "dst_proc", "op", "call", "fate", "flags")
    given = [part.column("ops", key) for key in keys]
    described: list[Any] = [*given, len(peers), name, shown, peer, why]
    describe_operations(*described)
    values: Sequence[np.ndarray]
    arguments: Sequence[Argument]
    values, arguments = (part.column("ops", "size_bytes"), peer, why), _OPERATION
    flow, texts = part.column("ops", "flow"), len(peers) + _FATES
    unsure = (part.column("ops", "lossy") > 0) | has_flag(part, OpFlag.ORDER_UNCERTAIN)
    nested = has_flag(part, OpFlag.NESTED)
    if unsure.any():
        shown |= (unsure & (flow != 0)).astype(np.uint16) << _UNCERTAIN
    if nested.any():
        shown |= nested.astype(np.uint16) << _NESTED
    if tracks.qps.keys.size:
        shown, flow, posted = _posted(part, tracks, shown, texts)
        values, arguments, texts = (*values, *posted), _POSTED, texts + _OPS

    def name_text(key: int) -> str:
        return calls.get(key & 0xFF) or op_text(key >> 8)

    def value_text(key: int) -> str:
        if key < len(peers):
            return str(peers[key])
        fate = key - len(peers)
        return _fate_text(fate) if fate < _FATES else op_text(fate - _FATES)

    return Rows(
        track=tracks.numbers(Track.CALLS, part.column("ops", "thread")),
        begin_ns=part.column("ops", "t_ns"),
        length_ns=part.column("ops", "call_ns"),
        depth=part.column("ops", "depth"),
        name=name,
        shown=shown,
        flow=flow,
        values=values,
        arguments=arguments,
        name_text=name_text,
        value_text=value_text,
        texts=texts,
    )


def _posted(
    part: Partition, tracks: Tracks, shown: np.ndarray, texts: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return what is shown of operations where there are queue pairs: bits, flows, further values.

    Args:
        part: The partition.
        tracks: Those of the run.
        shown: u2[n], bits of ``_OPERATION``.
        texts: Key of the text of operation 0.
    """
    qp = tracks.qps.channel[part.column("ops", "channel")]
    qpn = np.append(tracks.qps.qpn, np.uint64(0))[qp]
    is_posted = qp >= 0
    bits = shown & (SINK | 0b111)
    for bit, given in enumerate(
        (
            is_posted,
            qpn != 0,
            is_posted,
            has_flag(part, OpFlag.FAILED),
            shown >> _UNCERTAIN & 1,
            shown >> _NESTED & 1,
            is_posted & has_flag(part, OpFlag.SIGNALED),
        ),
        _VALUED,
    ):
        bits |= given.astype(np.uint16) << np.uint16(bit)
    flow = part.column("ops", "flow")
    silent = np.flatnonzero(silent_targets(part, tracks) >= 0)
    if silent.size:
        flow = flow.copy()
        flow[silent] = arrow_ids(part, silent)
    op = part.column("ops", "op").astype(np.uint32) + np.uint32(texts)
    # Flags come last, and have no value.
    return bits, flow, [op, qpn, part.column("ops", "aux")]


def completions(part: Partition, tracks: Tracks) -> Rows:
    """Return a partition's completions, as instants."""
    op, size = part.column("completions", "op"), part.column("completions", "size_bytes")
    flags = part.column("completions", "flags")
    statuses, status = np.unique(part.column("completions", "status"), return_inverse=True)
    has_size = (size != 0) & (flags & OpFlag.SIZE_UNKNOWN == 0)
    shown = has_size | (statuses[status] != 0) << 1 | (flags & OpFlag.FAILED > 0) << 2
    none = np.zeros(op.size, np.uint8)
    return Rows(
        track=tracks.numbers(Track.COMPLETIONS, part.column("completions", "thread")),
        begin_ns=part.column("completions", "t_ns"),
        length_ns=none.astype(np.int64),
        depth=none,
        name=op.astype(np.uint32),
        shown=shown.astype(np.uint16),
        flow=none.astype(np.uint64),
        values=(size, status.astype(np.uint32)),
        arguments=_COMPLETION,
        name_text=lambda key: f"{op_text(key)} completed",
        value_text=lambda key: str(statuses[key]),
        texts=statuses.size,
    )


def op_text(op: int) -> str:
    """Return the name of an operation; a number that is none names itself."""
    return Op(op).name.lower() if op in list(Op) else f"operation {op}"


def _fate_text(fate: int) -> str:
    return Fate(fate).name.lower().replace("_", " ") if fate in list(Fate) else f"fate {fate}"
