"""Sums of stage doorbell: of doorbells, slots and operations, by queue pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sigmatrace.partition import Partition, Run, column
from sigmatrace.stages.channels import Channels
from sigmatrace.table_order import grouped
from sigmatrace.trace_format import DoorbellFlag

QUEUE = ["proc", "object"]
BATCH = [*QUEUE, "log2"]
LOW, HIGH = np.iinfo(np.int64).max, np.iinfo(np.int64).min

_SUMS = (
    *("doorbells", "again", "synthesized", "late", "slots", "not_read", "read", "invalid"),
    *("wqes", "wqe_bytes", "operations", "size_bytes", "delay_total_ns", "gaps"),
)
_LEAST = ("delay_min_ns", "first_slot", "first_wqe", "first_op")
_MOST = ("slots_max", "delay_max_ns", "last_slot", "last_wqe", "last_op")
_HOW = (
    *((name, "sum") for name in _SUMS),
    *((name, "min") for name in _LEAST),
    *((name, "max") for name in _MOST),
)
_ZERO = {**dict.fromkeys(_SUMS, 0), **dict.fromkeys(_LEAST, LOW), **dict.fromkeys(_MOST, HIGH)}
_ZERO["slots_max"] = _ZERO["delay_max_ns"] = 0
_CHANNEL_HOW = [
    *(("operations", "sum"), ("size_bytes", "sum")),
    *(("first", "min"), ("last", "max"), ("first_op", "min"), ("last_op", "max")),
]


def add_queues(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one row for each queue pair: sums, least and largest values."""
    return grouped(pa.concat_tables(tables), QUEUE, _HOW)


def add_batches(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one row for each queue pair and size of batch: doorbells."""
    return grouped(pa.concat_tables(tables), BATCH, [("doorbells", "sum")])


def add_channels(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one row for each channel: operations, bytes, first and last ordinal and position."""
    return grouped(pa.concat_tables(tables), ["channel"], _CHANNEL_HOW)


def of_doorbells(part: Partition) -> tuple[pa.Table, pa.Table, int, int]:
    """Sum up a partition's doorbells.

    Returns:
        What ``add_queues`` and ``add_batches`` take; how many doorbells are of no known queue
        pair; and how many values do not lead to the index that was recorded.
    """
    from sigmatrace.stages.kernels.wqe import doorbell_kernel

    names = ("proc", "qp", "value", "index", "slots", "flags", "delay_ns")
    row = {name: part.column("doorbells", name) for name in names}
    known = row["qp"] != 0
    unknown = int(known.size - known.sum())
    row = {name: values[known] for name, values in row.items()}
    qpn, index = np.empty(row["qp"].size, np.uint32), np.empty(row["qp"].size, np.uint64)
    if qpn.size:  # else nothing is compiled for nothing
        doorbell_kernel(row["value"], row["index"] - row["slots"], qpn, index)
    again = row["flags"] & DoorbellFlag.AGAIN != 0
    slots = row["slots"].astype(np.int64)
    keys = {"proc": row["proc"], "object": row["qp"]}
    values = {
        "doorbells": ~again,
        "again": again,
        "synthesized": row["flags"] & DoorbellFlag.SYNTHESIZED != 0,
        "late": row["flags"] & DoorbellFlag.LATE != 0,
        "slots": slots,
        "not_read": np.where(row["flags"] & DoorbellFlag.NOT_READ != 0, slots, 0),
        "slots_max": slots,
        "delay_total_ns": row["delay_ns"],
        "delay_min_ns": row["delay_ns"],
        "delay_max_ns": row["delay_ns"],
    }
    batched = slots > 0
    batches = {name: values_[batched] for name, values_ in keys.items()}
    log2 = np.frexp(slots[batched].astype(np.float64))[1].astype(np.int64) - 1
    batches |= {"log2": log2, "doorbells": np.ones(log2.size, np.int64)}
    return _frame(keys, values), pa.table(batches), unknown, int((index != row["index"]).sum())


def of_slots(part: Partition) -> pa.Table:
    """Sum up a partition's slots; those of no known queue pair count as read alone."""
    names = ("proc", "qp", "index", "decoded", "slots", "size_bytes")
    proc, qp, index, decoded, slots, size_bytes = (part.column("wqes", name) for name in names)
    first = slots > 0
    at = np.minimum(index, np.uint64(LOW)).astype(np.int64)
    values = {
        "read": np.ones(qp.size, bool),
        "invalid": decoded == 3,
        "wqes": first,
        "wqe_bytes": size_bytes,
        "first_slot": at,
        "last_slot": at,
        "first_wqe": np.where(first, at, LOW),
        "last_wqe": np.where(first, at, HIGH),
    }
    return _frame({"proc": proc, "object": qp}, values)


def of_operations(part: Partition, layer: int) -> pa.Table:
    """Sum up a partition's operations of a layer, by channel."""
    mine = Channels.of(part).rows_of_layer(layer)
    names = ("channel", "ordinal", "aux", "size_bytes")
    channel, ordinal, aux, size_bytes = (part.column("ops", name)[mine] for name in names)
    return pa.table(
        {
            "channel": channel,
            "operations": np.ones(mine.size, np.int64),
            "size_bytes": size_bytes.astype(np.int64),
            "first": ordinal.astype(np.int64),
            "last": ordinal.astype(np.int64),
            "first_op": aux.astype(np.int64),
            "last_op": aux.astype(np.int64),
        }
    )


def of_channels(channels: pa.Table, run: Run) -> pa.Table:
    """Return what ``add_queues`` takes of channels; ``gaps``: those that miss operations."""
    row = column(channels, "channel")
    keys = {"proc": run.column("channels", "proc")[row]}
    keys["object"] = run.column("channels", "object")[row]
    names = ("operations", "size_bytes", "first_op", "last_op")
    values = {name: column(channels, name) for name in names}
    first, last = column(channels, "first"), column(channels, "last")
    values["gaps"] = (first != 0) | (last + 1 != values["operations"])
    return _frame(keys, values)


def _frame(keys: Mapping[str, Any], values: Mapping[str, Any]) -> pa.Table:
    """Return a table of keys and i8 values; those that are not given add nothing."""
    size = len(keys["proc"])
    columns = {
        name: np.asarray(values[name]).astype(np.int64, copy=False)
        if name in values
        else np.full(size, nothing, np.int64)
        for name, nothing in _ZERO.items()
    }
    return pa.table({**keys, **columns})
