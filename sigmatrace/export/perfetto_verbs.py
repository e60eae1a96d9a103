"""Completions and requests of libibverbs as rows of their queue pairs' tracks.

A completion of the send queue is a slice from the posting to the poll that returned it; slices
of one queue pair overlap freely, so no lane holds one inside another. An arrival is an instant:
its buffer was posted long before, and that is an argument. A send request is an instant, too.
Of what a GPU posted a slice ends when the completion was seen: it took at most that long.
Numbers are those of ``infiniband/verbs.h``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sigmatrace.export.perfetto_rows import Argument, Kind, Rows
from sigmatrace.export.perfetto_tracks import Track, Tracks
from sigmatrace.export.verbs_names import (
    completion_text,
    request_text,
    send_flags_text,
    status_text,
)
from sigmatrace.lookup import find_objects, object_keys
from sigmatrace.partition import Partition
from sigmatrace.schema import Columns
from sigmatrace.trace_format import CQE_AT_MOST, NO_POSITION, ONE_SIDED, WITH_IMM, Queue

VERBS_COLUMNS: Columns = {
    "requests": {
        "proc": "i4",
        "t_ns": "i8",
        "wr_id": "u8",
        "raddr": "u8",
        "size_bytes": "u4",
        "rkey": "u4",
        "imm": "u4",
        "object": "u4",
        "position": "u4",
        "opcode": "u1",
        "sges": "u1",
        "flags": "u1",
        "queue": "u1",
    },
    "cqes": {
        "proc": "i4",
        "t_ns": "i8",
        "posted_ns": "i8",
        "posted_tsc": "u8",
        "wr_id": "u8",
        "size_bytes": "u4",
        "imm": "u4",
        "object": "u4",
        "position": "u4",
        "first": "u4",
        "opcode": "u1",
        "status": "u1",
        "flags": "u1",
        "queue": "u1",
    },
}
"""Columns read here."""

_WC_WITH_IMM, _WC_WITH_INV = 2, 8  # enum ibv_wc_flags
_GRH_BYTES = 40
_TEXTS = 256

_POSTED = (
    Argument("size_bytes", Kind.U64),
    Argument("wr_id", Kind.HEX),
    Argument("position", Kind.U64),
)
_COMPLETION = (
    *_POSTED,
    Argument("status", Kind.TEXT),
    Argument("imm", Kind.HEX),
    Argument("raddr", Kind.HEX),
    Argument("rkey", Kind.HEX),
    Argument("retires", Kind.U64),
    Argument("posted_before_ns", Kind.I64),
    Argument("at_most_ns", Kind.I64),
)
_REQUEST = (
    *_POSTED,
    Argument("raddr", Kind.HEX),
    Argument("rkey", Kind.HEX),
    Argument("imm", Kind.HEX),
    Argument("sges", Kind.U64),
    Argument("flags", Kind.TEXT),
)


def cqe_rows(part: Partition, tracks: Tracks) -> Rows:
    """Return a partition's completions; those of a queue pair that is not known are left out.

    The API defines size and immediate of a receive completion alone. A send completion shows size
    and target of its request, where that is in the same partition.
    """
    row = _with_requests(_table(part, "cqes", tracks), part, tracks)
    is_send = row["queue"] == Queue.SEND
    timed = row["posted_tsc"] != 0
    waited = row["t_ns"] - row["posted_ns"]
    is_slice = is_send & timed & (waited > 0)
    known = row["position"] != NO_POSITION
    retires = row["position"] - row["first"] + np.uint32(1)
    at_most = (row["flags"] & CQE_AT_MOST) != 0
    with_imm = ~is_send & ((row["flags"] & (_WC_WITH_IMM | _WC_WITH_INV)) != 0)
    has_size = row["joined"] | (row["size_bytes"] != 0) | (~is_send & (row["status"] == 0))
    kinds = np.where(is_send, Track.QUEUE_PAIR, Track.ARRIVALS)
    return Rows(
        track=tracks.numbers(kinds, row["qp"]),
        begin_ns=np.where(is_slice, row["posted_ns"], row["t_ns"]),
        length_ns=np.where(is_slice, waited, 0),
        depth=np.zeros(is_send.size, np.uint8),
        name=row["opcode"].astype(np.uint32),
        shown=_bits(
            has_size,
            np.ones(is_send.size, bool),
            known,
            row["status"] != 0,
            with_imm,
            row["addressed"],
            row["addressed"],
            is_send & known & (retires > 1) & ~at_most,  # of GPUs these are slots
            ~is_send & timed,
            at_most & timed,
        ),
        flow=np.zeros(is_send.size, np.uint64),
        values=_values(
            *(row[argument.name] for argument in _COMPLETION[:-3]),
            retires,
            waited,
            waited,
        ),
        arguments=_COMPLETION,
        name_text=completion_text,
        value_text=status_text,
        texts=_TEXTS,
        nests=False,
    )


def request_rows(part: Partition, tracks: Tracks) -> Rows:
    """Return a partition's send requests.

    Posted receives, and requests of a queue pair that is not known, are left out.
    """
    row = _table(part, "requests", tracks, queue=Queue.SEND)
    size = row["qp"].size
    addressed = np.isin(row["opcode"], list(ONE_SIDED))
    always = np.ones(size, bool)
    has_wr_id = ~tracks.qps.is_gpu[row["qp"]]  # there the field holds a peer
    return Rows(
        track=tracks.numbers(Track.REQUESTS, row["qp"]),
        begin_ns=row["t_ns"],
        length_ns=np.zeros(size, np.int64),
        depth=np.zeros(size, np.uint8),
        name=row["opcode"].astype(np.uint32),
        shown=_bits(
            *(always, has_wr_id, always, addressed, addressed),
            np.isin(row["opcode"], list(WITH_IMM)),
            always,
            row["flags"] != 0,
        ),
        flow=np.zeros(size, np.uint64),
        values=_values(*(row[argument.name] for argument in _REQUEST)),
        arguments=_REQUEST,
        name_text=request_text,
        value_text=send_flags_text,
        texts=_TEXTS,
    )


def _table(
    part: Partition, table: str, tracks: Tracks, queue: int | None = None
) -> Mapping[str, np.ndarray]:
    """Return the columns of a table, of rows of known queue pairs; ``qp``: which one."""
    columns = {name: part.column(table, name) for name in VERBS_COLUMNS[table]}
    qp = find_objects(tracks.qps.keys, columns["proc"], columns["object"])
    use = qp >= 0 if queue is None else (qp >= 0) & (columns["queue"] == queue)
    columns["qp"] = qp
    return columns if use.all() else {name: values[use] for name, values in columns.items()}


def _with_requests(
    row: Mapping[str, np.ndarray], part: Partition, tracks: Tracks
) -> Mapping[str, np.ndarray]:
    """Add what is known of the requests of send completions, and take off the GRH of datagrams.

    Args:
        row: Columns of completions.
        part: Their partition.
        tracks: Those of the run.

    Returns:
        The columns, ``size_bytes`` that of the message; ``joined``: whether the request is in this
        partition; ``addressed``: whether it names ``raddr`` and ``rkey``.
    """
    posts = _table(part, "requests", tracks, queue=Queue.SEND)
    keys = object_keys(posts["qp"], posts["position"])
    order = np.argsort(keys, kind="stable")
    post = find_objects(keys[order], row["qp"], row["position"])
    joined = (post >= 0) & (row["queue"] == Queue.SEND) & (row["position"] != NO_POSITION)
    post = order[post[joined]]
    same = posts["wr_id"][post] == row["wr_id"][joined]
    joined[joined] = same
    post = post[same]
    is_long = tracks.qps.is_datagram[row["qp"]] & (row["queue"] != Queue.SEND)
    is_long &= row["size_bytes"] >= _GRH_BYTES
    found = {"size_bytes": row["size_bytes"] - np.where(is_long, _GRH_BYTES, 0).astype(np.uint32)}
    found |= {name: np.zeros(joined.size, posts[name].dtype) for name in ("raddr", "rkey")}
    for name, values in found.items():
        values[joined] = posts[name][post]
    addressed = joined.copy()
    addressed[joined] = np.isin(posts["opcode"][post], list(ONE_SIDED))
    return {**row, **found, "joined": joined, "addressed": addressed}


def _bits(*columns: np.ndarray) -> np.ndarray:
    """Return bit k of u2[n] set where ``columns[k]`` is true."""
    bits = np.zeros(columns[0].size, np.uint16)
    for k, column in enumerate(columns):
        bits |= column.astype(np.uint16) << np.uint16(k)
    return bits


def _values(*columns: np.ndarray) -> list[np.ndarray]:
    return [column.astype(np.uint64, copy=False) for column in columns]
