"""Names, dtypes and units: the one place that says what a column is.

The tables that flow through the pipeline; those of GPUs are in ``schema_gpu.py``,
those of analyses in ``schema_analysis.py``. Columns carry
their unit in their name: ``_ns``, ``_bytes``, ``_tsc``. The layouts of records are in
``trace_format.py``.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from sigmatrace.schema_analysis import ANALYSIS_TABLES
from sigmatrace.schema_gpu import GPU_INDEX_TABLES, GPU_STAGE_TABLES
from sigmatrace.trace_format import RECORDS, Schema

Columns = dict[str, dict[str, str]]
"""Table name to column name to dtype, as numpy spells it ("u4", "i8", "f8", "str")."""

INDEX_TABLES: Columns = {
    # One row per process (rank file). `proc` is its number in the run: 0..n-1, ordered by
    # (rank known first, rank, host, pid, start). `label` is what a user sees ("rank 3", "pid 812").
    # `absent`: records that were dropped, or written and are not in its file; `lost`: what else it
    # says it could not record. Without `end`, both are only what is known.
    "processes": {
        "proc": "i4",
        "label": "str",
        "rank": "i4",
        "world": "i4",
        "host": "str",
        "boot_id": "str",
        "pid": "i8",
        "ppid": "i8",
        "start_ns": "i8",
        "run_id": "str",
        "mode": "str",
        "layers": "str",
        "command": "str",
        "tsc_hz": "u8",
        "path": "str",
        "end": "str",
        "absent": "u8",
        "lost": "u8",
    },
    # Threads that recorded something; `thread` is dense over the whole run.
    "threads": {"thread": "u4", "proc": "i4", "tid": "u4", "name": "str"},
    "clocks": {"proc": "i4", "tsc": "u8", "wall_ns": "i8", "width_tsc": "u8", "source": "str"},
    # `channel` is dense over the whole run; `id` is the number in its process.
    "channels": {
        "channel": "u4",
        "proc": "i4",
        "id": "u4",
        "object": "u4",
        "peer": "u8",
        "tag": "u8",
        "data": "u8",
        "kind": "u1",
        "dir": "u1",
        "layer": "u1",
        "flags": "u1",
    },
    # Endpoint-like objects with canonical names that are equal at both ends ("" = unknown).
    # `local`: its own name; `peer`: the other end's, of connected endpoints; `owner`: the
    # object whose name is meant when this one has none (a ucp_ep's worker, a uct_ep's iface);
    # `av`: the address vector that resolves its channels' `peer`; `life`: how many connections of
    # the same two names came before in this process; `gone_tsc`: 0 when it was never closed.
    # Queue pairs: `place` and `peer_place` are the ports at both ends (as in `gids` and `ports`;
    # "" = unknown), `qpn` and `peer_qpn` the numbers of the queue pairs there. `lossy`: 1 where the
    # transport may lose messages or exchange them; `sq_psn`: a queue pair's first packet sequence
    # number, -1 unknown.
    "endpoints": {
        "proc": "i4",
        "object": "u4",
        "layer": "u1",
        "type": "str",
        "local": "str",
        "peer": "str",
        "owner": "u4",
        "av": "u4",
        "depth": "u1",
        "life": "u4",
        "born_tsc": "u8",
        "gone_tsc": "u8",
        "place": "str",
        "qpn": "u4",
        "peer_place": "str",
        "peer_qpn": "u4",
        "lossy": "u1",
        "sq_psn": "i8",
    },
    # Registered memory; `key` is what the other end names it by (rkey, fi_mr_key).
    "regions": {
        "proc": "i4",
        "object": "u4",
        "layer": "u1",
        "key": "u8",
        "address": "u8",
        "length_bytes": "u8",
        "born_tsc": "u8",
        "gone_tsc": "u8",
    },
    **GPU_INDEX_TABLES,
    # Ports of NICs, by the process that opened them (layer verbs); numa: 2^32-1 when unknown.
    # `place`: what names it where a path has no GID ("" = it has no LID).
    "ports": {
        "proc": "i4",
        "object": "u4",
        "device": "str",
        "node_guid": "u8",
        "numa": "u4",
        "port": "u1",
        "lid": "u4",
        "link_layer": "str",
        "mtu_bytes": "u4",
        "rate_mbps": "u4",
        "netdev": "str",
        "place": "str",
    },
    # `place`: the GID that stands for the port, equal in all processes; the GID itself where two
    # ports claim it.
    "gids": {
        "proc": "i4",
        "port": "u4",
        "index": "u4",
        "gid": "str",
        "type": "str",
        "place": "str",
    },
    # When a connection of a queue pair entered a state, by the name of the state ("rtr"), last.
    "qp_transitions": {"proc": "i4", "object": "u4", "t_tsc": "u8", "state": "str"},
    # The socket addresses between which rdma_cm connected the queue pair `object` ("" = unknown).
    "qp_sockets": {"proc": "i4", "object": "u4", "local": "str", "remote": "str"},
    # `place` and `qpn`: of queue pairs, as in `endpoints`.
    "addresses": {
        "proc": "i4",
        "av": "u4",
        "addr": "u8",
        "name": "str",
        "place": "str",
        "qpn": "u4",
    },
    "names": {"proc": "i4", "name": "u4", "text": "str"},
    "libraries": {
        "proc": "i4",
        "layer": "str",
        "name": "str",
        "version": "str",
        "path": "str",
        "how": "str",
    },
    "calls": {"call": "u1", "text": "str"},
    # The chunks of events whose records have times, by process, in the order of the file.
    "chunks": {"proc": "i4", "schema": "u1", "count": "i8", "first_tsc": "u8", "last_tsc": "u8"},
    # Everything that is not a whole, checksummed item: `what` is "damaged", "cut" or "unknown".
    "damage": {"proc": "i4", "path": "str", "offset": "i8", "size_bytes": "i8", "what": "str"},
}
"""Whole-run tables that the index provides (object data only, no event bytes)."""

EVENT_NAMES = {
    Schema.OP: "ops",
    Schema.COMPLETION: "completions",
    Schema.MARK: "marks",
    Schema.TARGET: "targets",
    Schema.AGGREGATE: "aggregates",
    Schema.REQUEST: "requests",
    Schema.CQE: "cqes",
    Schema.DOORBELL: "doorbells",
    Schema.WQE: "wqes",
    Schema.KERNEL: "kernels",
}
"""Event table by schema. Channels are not events; the index holds them."""


def _event_columns(dtype: np.dtype) -> dict[str, str]:
    fields = {name: dtype[name] for name in dtype.names or ()}
    own = {name: one.str[1:] for name, one in fields.items() if one.subdtype is None}
    return {"proc": "i4", "thread": "u4", **own}


EVENT_TABLES: Columns = {
    name: _event_columns(RECORDS[schema]) for schema, name in EVENT_NAMES.items()
}
"""Tables of a partition as the reader delivers them: process and thread, then the record's
fields without padding. Stages add columns."""


class Fate(IntEnum):
    """What the matching can say of an operation (column ``ops.fate``)."""

    MATCHABLE = 0
    ONE_SIDED = 1
    NOT_A_MESSAGE = 2
    PEER_UNKNOWN = 3
    PEER_NOT_TRACED = 4
    SOURCE_AMBIGUOUS = 5
    BYTE_STREAM = 6
    TOO_MANY_CHANNELS = 7
    TAG_UNKNOWN = 8
    RECEIVER_NOT_VISIBLE = 9


class RegionFate(IntEnum):
    """What is known of the memory that a request names (column ``requests.owner``)."""

    NOT_ONE_SIDED = 0
    REGION = 1
    NO_REGION = 2
    AMBIGUOUS = 3
    TARGET_UNKNOWN = 4


TIMELINE_BINS = 2048
"""The timeline has at most this many bins, and at least half of them on a long run of few ranks."""

TIMELINE_CELLS = 1 << 20
"""It has at most this many rows, or one bin: of thousands of ranks the bins are wider."""

NO_REGION = 2**32 - 1
"""No region is known (column ``requests.region``)."""

NO_GROUP = 2**32 - 1
"""No stream of messages that both ends share (column ``ops.group``)."""

STAGE_TABLES: Columns = {
    # topology: one row per channel, in the order of `channel`. `lossy`: 1 where the transport at
    # either end may lose messages or exchange them: the k-th sent need not be the k-th received.
    "routes": {
        "channel": "u4",
        "src_proc": "i4",
        "dst_proc": "i4",
        "src_name": "str",
        "dst_name": "str",
        "group": "u4",
        "fate": "u1",
        "lossy": "u1",
    },
    # clock: one row per process.
    "clock_quality": {
        "proc": "i4",
        "pairs": "i4",
        "bad_pairs": "i4",
        "offset_ns": "i8",
        "drift_ppm": "f8",
        "error_ns": "f8",
        "calibrated": "bool",
    },
    # clock: the rows of `chunks`, with Unix times of their first and last record.
    "chunk_times": {"proc": "i4", "schema": "u1", "count": "i8", "first_ns": "i8", "last_ns": "i8"},
    # match: one row per group that carried messages. Operations of unknown size add 0 bytes;
    # `size_unknown` counts those of both ends, and `uncertain` those whose order is not sure.
    "messages": {
        "group": "u4",
        "src_proc": "i4",
        "dst_proc": "i4",
        "layer": "u1",
        "kind": "u1",
        "sent": "u8",
        "received": "u8",
        "matched": "u8",
        "sent_bytes": "u8",
        "received_bytes": "u8",
        "size_unknown": "u8",
        "uncertain": "u8",
    },
    # traffic: nested = 0 are each layer's outermost operations, whatever layer above called them;
    # nested = 1 (``OpFlag.NESTED``) were made by another operation of the same layer, whose bytes
    # they carry. Not to be summed over layers: a lower one sees the same bytes again.
    "traffic": {
        "src_proc": "i4",
        "dst_proc": "i4",
        "layer": "u1",
        "op": "u1",
        "nested": "u1",
        "count": "u8",
        "size_bytes": "u8",
        "size_unknown": "u8",
    },
    # traffic by size: the rows of `traffic` by the process, its endpoint (ib_qp, ucp_worker, ...),
    # the names of both ends (as in `routes`) and the size. `count` operations had at least
    # `least_bytes` and at most `most_bytes`: 0 to 0, 1 to 1, 2 to 3, 4 to 7, ..., and 0 to 2^64-1
    # where the API does not tell.
    "sizes": {
        "proc": "i4",
        "object": "u4",
        "src_proc": "i4",
        "dst_proc": "i4",
        "src_name": "str",
        "dst_name": "str",
        "layer": "u1",
        "op": "u1",
        "nested": "u1",
        "least_bytes": "u8",
        "most_bytes": "u8",
        "count": "u8",
        "size_bytes": "u8",
    },
    # traffic over time: bin b begins at the fact `timeline_ns` + b * the fact `bin_ns`. Bins are
    # aligned to multiples of `bin_ns`, so bin 0 may begin a part of a bin before `base_ns`.
    # Each layer's outermost operations; op as in `ops`.
    "timeline": {
        "bin": "u4",
        "proc": "i4",
        "layer": "u1",
        "op": "u1",
        "count": "u8",
        "size_bytes": "u8",
    },
    # completion: one row per process, object (ib_qp, ib_srq) and ``trace_format.Queue``. `joined`:
    # completions of a known request; `retired`: requests that they completed. `posted`: requests by
    # the highest position that any record names; `completed`: those up to the last that completed;
    # `visible`: whether completions can be seen; `outstanding`: requests posted after that one,
    # null where that is not known. Positions of queue pairs of layer mlx5dv are slots. `qpn`,
    # `peer_proc` and `gpu` say which queue pair it is: its number (0: unknown, or a shared receive
    # queue), the process at its other end (-1: unknown, or several), and the object in whose memory
    # its queue lies (0: the host's).
    "queues": {
        "proc": "i4",
        "object": "u4",
        "qpn": "u4",
        "peer_proc": "i4",
        "gpu": "u4",
        "queue": "u1",
        "requests": "i8",
        "cqes": "i8",
        "joined": "i8",
        "retired": "i8",
        "errors": "i8",
        "posted": "i8",
        "completed": "i8",
        "visible": "bool",
        "outstanding": "i8",
    },
    # completion: from post to completion; `timed` of the `count` completions tell, `min_ns` and
    # `max_ns` are null when none does. opcode: format.md 2.8. `at_most`: of completions of which is
    # known when they were seen, and not when they came (layer mlx5dv).
    "latencies": {
        "proc": "i4",
        "queue": "u1",
        "opcode": "u1",
        "status": "u1",
        "at_most": "bool",
        "count": "i8",
        "size_bytes": "i8",
        "timed": "i8",
        "total_ns": "i8",
        "min_ns": "i8",
        "max_ns": "i8",
    },
    **GPU_STAGE_TABLES,
    # wire (with validate.pcap): one row per flow and operation. Ends by IP address; qpn: the
    # receiving queue pair; verdict: ``validate.compare.Verdict``; repeated: request packets of the
    # flow, whatever the operation, that were sent again.
    "wire_flows": {
        "source": "str",
        "destination": "str",
        "qpn": "u4",
        "op": "u1",
        "traced": "u8",
        "traced_bytes": "u8",
        "captured": "u8",
        "captured_bytes": "u8",
        "verdict": "str",
        "repeated": "u8",
    },
    # messages (an exchange, opt-in): one row per message seen at both ends. `uncertain`: the order
    # of either end is not sure, or the transport may have lost messages before.
    "message_pairs": {
        "flow": "u8",
        "src_proc": "i4",
        "dst_proc": "i4",
        "layer": "u1",
        "size_bytes": "u8",
        "received_bytes": "u8",
        "sizes_known": "bool",
        "uncertain": "bool",
        "send_ns": "i8",
        "receive_ns": "i8",
        "latency_ns": "i8",
    },
    **ANALYSIS_TABLES,
}
"""Whole-run tables that the built-in stages add."""
