"""Exchange messages: one row per message seen at both ends, with its latency.

It is opt-in: it takes a second look at rows, and its table is as long as the messages are many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sigmatrace.partition import Partition, column
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.base import Exchange
from sigmatrace.trace_format import Op, OpFlag

_WORST_FIRST = [("count_all", "descending"), ("src_proc", "ascending"), ("dst_proc", "ascending")]

BLOCK_BITS = np.uint64(16)
"""Messages of one group are spread over buckets in blocks of this many, not all in one."""
COLUMNS = ("flow", "op", "flags", "lossy", "src_proc", "dst_proc", "layer", "size_bytes", "t_ns")


class Messages(Exchange):
    """Makes ``message_pairs``."""

    name: ClassVar[str] = "messages"
    requires: ClassVar[Columns] = {
        "ops": {
            "flow": "u8",
            "op": "u1",
            "flags": "u1",
            "lossy": "u1",
            "src_proc": "i4",
            "dst_proc": "i4",
            "layer": "u1",
            "size_bytes": "u8",
            "t_ns": "i8",
        }
    }
    produces: ClassVar[Columns] = {"message_pairs": STAGE_TABLES["message_pairs"]}

    def split(self, part: Partition, buckets: int) -> Mapping[int, pa.Table]:
        """Return the partition's sends and receives by bucket."""
        flow = part.column("ops", "flow")
        rows = np.flatnonzero(flow)
        bucket = bucket_of(flow[rows], buckets)
        if buckets <= 2**16:
            bucket = bucket.astype(np.uint16)  # numpy sorts these by radix, in O(n)
        order = np.argsort(bucket, kind="stable")
        table = part.tables["ops"].select(COLUMNS).take(pa.array(rows[order]))
        begin = np.searchsorted(bucket[order], np.arange(buckets + 1))
        return {
            number: table.slice(begin[number], begin[number + 1] - begin[number])
            for number in range(buckets)
            if begin[number + 1] > begin[number]
        }

    def join(self, bucket: list[pa.Table]) -> pa.Table:
        """Pair the sends and receives of a bucket; of duplicates the earliest one counts."""
        rows = pa.concat_tables(bucket)
        op = column(rows, "op")
        send, receive = _firsts(rows, op != Op.RECV), _firsts(rows, op == Op.RECV)
        flow = column(rows, "flow")
        _, at_send, at_receive = np.intersect1d(
            flow[send], flow[receive], assume_unique=True, return_indices=True
        )
        return _pairs(rows, send[at_send], receive[at_receive])

    def account(self, joined: pa.Table) -> Mapping[str, object]:
        """Return violations of causality and sizes that differ, also by pair of processes."""
        latency = column(joined, "latency_ns")
        back = latency < 0
        known = column(joined, "sizes_known")
        differ = known & (column(joined, "size_bytes") != column(joined, "received_bytes"))
        pairs = joined.select(["src_proc", "dst_proc"]).filter(pa.array(back))
        counts = pairs.group_by(["src_proc", "dst_proc"]).aggregate([([], "count_all")])
        worst = counts.sort_by(_WORST_FIRST).slice(0, 20).to_pylist()
        return {
            "messages": joined.num_rows,
            "received_before_sent": int(back.sum()),
            "worst_violation_ns": int(-latency.min(initial=0)),
            "violations_by_pair": {
                f"{row['src_proc']} to {row['dst_proc']}": row["count_all"] for row in worst
            },
            "sizes_differ": int(differ.sum()),
            "sizes_not_known": int((~known).sum()),
            "uncertain": int(column(joined, "uncertain").sum()),
        }


def bucket_of(flow: NDArray[np.uint64], buckets: int) -> NDArray[Any]:
    """Return the bucket of each flow: a mix of its group and of its block of ordinals."""
    mixed = (flow >> BLOCK_BITS) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed ^ (mixed >> np.uint64(29))) % np.uint64(buckets)


def _firsts(rows: pa.Table, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the chosen rows in order of flow, the earliest one of each flow."""
    at = np.flatnonzero(chosen)
    flow, t_ns = column(rows, "flow")[at], column(rows, "t_ns")[at]
    at = at[np.lexsort((t_ns, flow))]
    flow = column(rows, "flow")[at]
    first = np.ones(at.size, bool)
    first[1:] = flow[1:] != flow[:-1]
    return at[first]


def _pairs(rows: pa.Table, send: NDArray[Any], receive: NDArray[Any]) -> pa.Table:
    sent = {name: column(rows, name)[send] for name in COLUMNS}
    got = {name: column(rows, name)[receive] for name in COLUMNS}
    flags = sent["flags"] | got["flags"]
    unsure = flags & (OpFlag.ORDER_UNCERTAIN | OpFlag.FAILED) != 0
    return pa.table(
        {
            "flow": sent["flow"],
            "src_proc": sent["src_proc"],
            "dst_proc": got["dst_proc"],
            "layer": sent["layer"],
            "size_bytes": sent["size_bytes"],
            "received_bytes": got["size_bytes"],
            "sizes_known": flags & OpFlag.SIZE_UNKNOWN == 0,
            "uncertain": unsure | (sent["lossy"] + got["lossy"] > 0),
            "send_ns": sent["t_ns"],
            "receive_ns": got["t_ns"],
            "latency_ns": got["t_ns"] - sent["t_ns"],
        }
    )
