"""Stage one_sided: whose memory a one-sided operation touches (layer verbs, mode ``full``).

An rkey belongs to a process, the one that the queue pair is connected to, and to a memory region
of it. Keys are used again: of several regions with one key, the one counts that contains the
address; where that does not decide, the request is ambiguous. (When each was registered would
decide more, but two hosts' clocks differ.) Source: docs/verbs.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import INDEX_TABLES, NO_REGION, Columns, Owner
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.trace_format import Dir, Layer

ONE_SIDED_OPCODES = (0, 1, 4, 5, 6, 15)
"""``enum ibv_wr_opcode``: write, write with immediate, read, compare-and-swap, fetch-and-add,
atomic write."""
_IS_ONE_SIDED = np.isin(np.arange(256), ONE_SIDED_OPCODES)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Regions:
    """What the index tells.

    Attributes:
        object_key: Processes and objects of queue pairs (``_pair``), ascending.
        peer: The process at the other end, -1 when it is not known.
        region_key: Processes and keys of regions (``_pair``), ascending.
        region: Row of the table ``regions``.
        address: First address of each.
        stop: One past the last.
    """

    object_key: NDArray[np.uint64]
    peer: Ints
    region_key: NDArray[np.uint64]
    region: Ints
    address: NDArray[np.uint64]
    stop: NDArray[np.uint64]


class OneSided(Stage):
    """Adds target, region and owner to requests."""

    name: ClassVar[str] = "one_sided"
    summary: ClassVar[SummaryKind] = "index"
    requires: ClassVar[Columns] = {
        "channels": INDEX_TABLES["channels"],
        "routes": {"dst_proc": "i4"},
        "regions": INDEX_TABLES["regions"],
        "requests": {
            "proc": "i4",
            "object": "u4",
            "opcode": "u1",
            "raddr": "u8",
            "size_bytes": "u4",
            "rkey": "u4",
        },
    }
    produces: ClassVar[Columns] = {
        # region: row of `regions` (NO_REGION: none); owner: schema.Owner.
        "requests": {"target_proc": "i4", "region": "u4", "owner": "u1"},
    }

    def survey(self, run: Run) -> Regions:
        """Sort queue pairs and regions by what requests name them by."""
        out = run.column("channels", "dir") == Dir.OUT
        pair = _pair(run.column("channels", "proc")[out], run.column("channels", "object")[out])
        objects, first = np.unique(pair, return_index=True)
        verbs = np.flatnonzero(run.column("regions", "layer") == Layer.VERBS)
        key = _pair(run.column("regions", "proc"), run.column("regions", "key"))
        order = verbs[np.argsort(key[verbs], kind="stable")]
        address = run.column("regions", "address")[order]
        return Regions(
            objects,
            run.column("routes", "dst_proc")[out][first].astype(np.int64),
            key[order],
            order,
            address,
            address + run.column("regions", "length_bytes")[order],
        )

    def apply(self, part: Partition, resolved: Regions) -> Partition:
        """Find the region of each one-sided request."""
        names = ("proc", "object", "opcode", "raddr", "size_bytes", "rkey")
        proc, thing, opcode, raddr, size_bytes, rkey = (
            part.column("requests", name) for name in names
        )
        rows = np.flatnonzero(_IS_ONE_SIDED[opcode])
        target = np.full(proc.size, -1, np.int32)
        region = np.full(proc.size, NO_REGION, np.uint32)
        owner = np.full(proc.size, Owner.NOT_ONE_SIDED, np.uint8)
        target[rows] = peers(resolved, proc[rows], thing[rows])
        found = owners(resolved, target[rows], rkey[rows], raddr[rows], size_bytes[rows])
        region[rows], owner[rows] = found
        columns: dict[str, NDArray[Any]] = {"target_proc": target, "region": region, "owner": owner}
        return part.with_columns("requests", columns)


def _pair(proc: NDArray[np.int32], number: NDArray[Any]) -> NDArray[np.uint64]:
    """Return process and number (32 bits of it) as one key; processes are at most 2^31."""
    low = number.astype(np.uint64) & np.uint64(0xFFFFFFFF)
    return (proc.astype(np.uint64) << np.uint64(32)) | low


def peers(known: Regions, proc: NDArray[np.int32], thing: NDArray[np.uint32]) -> Ints:
    """Return the process at the other end of each request's queue pair, -1 when not known."""
    if known.object_key.size == 0:
        return np.full(proc.size, -1, np.int64)
    key = _pair(proc, thing)
    at = np.minimum(np.searchsorted(known.object_key, key), known.object_key.size - 1)
    return np.where(known.object_key[at] == key, known.peer[at], -1)


def owners(
    known: Regions,
    target: NDArray[np.int32],
    rkey: NDArray[np.uint32],
    raddr: NDArray[np.uint64],
    size_bytes: NDArray[np.uint32],
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return the region of each request and what is known of its owner.

    Args:
        known: The regions.
        target: ``(n,)`` i4, process that is addressed, -1 unknown.
        rkey: ``(n,)`` u4.
        raddr: ``(n,)`` u8.
        size_bytes: ``(n,)`` u4.

    Returns:
        ``(n,)`` u4 row of the table ``regions`` or NO_REGION, and ``(n,)`` u1 ``schema.Owner``.

    Complexity O(n (log r + k)), k regions with the same key.
    """
    key = _pair(target, rkey)
    begin = np.searchsorted(known.region_key, key, "left")
    stop = np.searchsorted(known.region_key, key, "right")
    count = np.zeros(key.size, np.int64)
    region = np.full(key.size, NO_REGION, np.uint32)
    end = raddr + size_bytes
    for step in range(int((stop - begin).max(initial=0))):
        at = np.minimum(begin + step, max(known.region_key.size - 1, 0))
        inside = (begin + step < stop) & (known.address[at] <= raddr) & (end <= known.stop[at])
        region[inside] = known.region[at[inside]]
        count += inside
    owner = np.full(key.size, Owner.REGION, np.uint8)
    owner[count > 1] = Owner.AMBIGUOUS
    owner[count == 0] = Owner.NO_REGION
    owner[target < 0] = Owner.TARGET_UNKNOWN
    region[owner != Owner.REGION] = NO_REGION
    return region, owner
