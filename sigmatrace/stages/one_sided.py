"""Stage one_sided: whose memory a one-sided operation touches (queue pairs, mode ``full``).

An rkey belongs to a process, the one that the queue pair is connected to, and to a memory region
of it. Keys are used again: of several regions with one key, the one counts that contains the
address; where that does not decide, the request is ambiguous. (When each was registered would
decide more, but two hosts' clocks differ.) Memory that layer verbs registers is used at layer
mlx5dv, and the other way round. Where a queue pair reaches several processes (DCI), each of its
requests names its peer, as channels do (``wr_id``). Source: docs/verbs.md section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sigmatrace.lookup import find_objects, object_keys
from sigmatrace.partition import Partition, Run
from sigmatrace.schema import INDEX_TABLES, NO_REGION, Columns, RegionFate
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.trace_format import ONE_SIDED, QUEUE_PAIR_LAYERS, Dir, Layer

_IS_ONE_SIDED = np.isin(np.arange(256), list(ONE_SIDED))

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Regions:
    """What the index tells.

    Attributes:
        object_key: Processes and objects of queue pairs (``lookup.object_keys``), ascending.
        peer: The process at the other end, -1 when it is not known, or not the same for all.
        way_key: Of channels of layer mlx5dv: place in ``object_key``, and ``peer``, as one key
            (``_way_keys``), ascending.
        way_peer: ``peer`` of these channels, ascending, each once.
        way: The process at each one's other end, -1 when it is not known.
        region_key: Processes and keys of regions (``_region_keys``), ascending.
        region: Row of the table ``regions``.
        address: First address of each.
        length: Bytes of each.
        owners: ``(fates,)`` i8, requests of all partitions by ``schema.RegionFate``; None before
            they are read.
    """

    object_key: Ints
    peer: Ints
    way_key: Ints
    way_peer: NDArray[np.uint64]
    way: Ints
    region_key: Ints
    region: Ints
    address: NDArray[np.uint64]
    length: NDArray[np.uint64]
    owners: Ints | None = None


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
            "wr_id": "u8",
            "raddr": "u8",
            "size_bytes": "u4",
            "rkey": "u4",
        },
    }
    produces: ClassVar[Columns] = {
        # region: row of `regions` (NO_REGION: none); owner: schema.RegionFate.
        "requests": {"target_proc": "i4", "region": "u4", "owner": "u1"},
    }

    def survey(self, run: Run) -> Regions:
        """Sort queue pairs and regions by what requests name them by."""
        out = run.column("channels", "dir") == Dir.OUT
        own = (run.column("channels", name)[out] for name in ("proc", "object"))
        objects, which = np.unique(object_keys(*own), return_inverse=True)
        dst = run.column("routes", "dst_proc")[out]
        gpu = run.column("channels", "layer")[out] == Layer.MLX5DV
        way_peer = np.unique(run.column("channels", "peer")[out][gpu])
        way_key, way = np.unique(
            _way_keys(way_peer, which[gpu], run.column("channels", "peer")[out][gpu]),
            return_inverse=True,
        )
        usable = np.flatnonzero(np.isin(run.column("regions", "layer"), QUEUE_PAIR_LAYERS))
        key = _region_keys(run.column("regions", "proc"), run.column("regions", "key"))
        order = usable[np.argsort(key[usable], kind="stable")]
        return Regions(
            objects,
            _only(which, objects.size, dst),
            way_key,
            way_peer,
            _only(way, way_key.size, dst[gpu]),
            key[order],
            order,
            run.column("regions", "address")[order],
            run.column("regions", "length_bytes")[order],
        )

    def apply(self, part: Partition, resolved: Regions) -> Partition:
        """Find the region of each one-sided request."""
        names = ("proc", "object", "opcode", "wr_id", "raddr", "size_bytes", "rkey")
        proc, thing, opcode, wr_id, raddr, size_bytes, rkey = (
            part.column("requests", name) for name in names
        )
        rows = np.flatnonzero(_IS_ONE_SIDED[opcode])
        target = np.full(proc.size, -1, np.int32)
        region = np.full(proc.size, NO_REGION, np.uint32)
        owner = np.full(proc.size, RegionFate.NOT_ONE_SIDED, np.uint8)
        if rows.size:
            target[rows] = peers(resolved, proc[rows], thing[rows], wr_id[rows])
            found = owners(resolved, target[rows], rkey[rows], raddr[rows], size_bytes[rows])
            region[rows], owner[rows] = found
        columns: dict[str, NDArray[Any]] = {"target_proc": target, "region": region, "owner": owner}
        return part.with_columns("requests", columns)

    def summarize(self, part: Partition) -> Ints:
        """Count the partition's requests by ``schema.RegionFate``."""
        return np.bincount(part.column("requests", "owner"), minlength=len(RegionFate))

    def combine(self, left: Ints, right: Ints) -> Ints:
        """Add both."""
        return left + right

    def conclude(self, resolved: Regions, summary: Ints) -> Regions:
        """Add the counts to what the index tells."""
        return replace(resolved, owners=summary)

    def account(self, resolved: Regions) -> Mapping[str, object]:
        """Return requests by what is known of the memory that they name."""
        counts = np.zeros(len(RegionFate), np.int64) if resolved.owners is None else resolved.owners
        owners = {one.name.lower(): int(counts[one]) for one in RegionFate}
        whole = {
            "name": "requests = by owner of the memory",
            "left": "records.request",
            "right": list(owners.values()),
        }
        return {"owners": owners, "balance": [whole]}


def _only(which: Ints, count: int, values: NDArray[np.int32]) -> Ints:
    """Return the one value of each of ``count`` groups, -1 where it has several."""
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(low, which, values)
    np.maximum.at(high, which, values)
    return np.where(low == high, high, -1)


def _region_keys(proc: NDArray[np.int32], key: NDArray[Any]) -> Ints:
    """Return process and 32 bits of a key, which is all that a request has of it."""
    return object_keys(proc, key & key.dtype.type(0xFFFFFFFF))


def _way_keys(known: NDArray[np.uint64], thing: Ints, peer: NDArray[np.uint64]) -> Ints:
    """Return an object's place and the place of a peer in ``known`` as one key; -1 for others."""
    at = np.searchsorted(known, peer)
    found = (np.append(known, known.dtype.type(0))[at] == peer) & (at < known.size) & (thing >= 0)
    return np.where(found, thing * known.size + at, -1)


def peers(
    known: Regions,
    proc: NDArray[np.int32],
    thing: NDArray[np.uint32],
    named: NDArray[np.uint64],
) -> Ints:
    """Return the process that each request reaches, -1 when not known.

    Args:
        known: The queue pairs.
        proc: ``(n,)`` i4.
        thing: ``(n,)`` u4, the queue pair.
        named: ``(n,)`` u8, ``wr_id``: what counts where a DCI reaches several processes.
    """
    at = find_objects(known.object_key, proc, thing)
    target = np.append(known.peer, -1)[at]
    several = np.flatnonzero(target < 0)
    key = _way_keys(known.way_peer, at[several].astype(np.int64), named[several])
    way = np.searchsorted(known.way_key, key)
    found = np.append(known.way_key, -2)[way] == key
    target[several] = np.where(found, np.append(known.way, -1)[way], -1)
    return target


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
        ``(n,)`` u4 row of the table ``regions`` or NO_REGION, and ``(n,)`` u1
        ``schema.RegionFate``.

    Complexity O(n (log r + k)), k regions with the same key.
    """
    key = _region_keys(target, rkey)
    begin = np.searchsorted(known.region_key, key, "left")
    stop = np.searchsorted(known.region_key, key, "right")
    count = np.zeros(key.size, np.int64)
    region = np.full(key.size, NO_REGION, np.uint32)
    for step in range(int((stop - begin).max(initial=0))):
        at = np.minimum(begin + step, max(known.region_key.size - 1, 0))
        offset, length = raddr - known.address[at], known.length[at]  # ends may be 2^64: no sums
        inside = (begin + step < stop) & (raddr >= known.address[at])
        inside &= (offset <= length) & (size_bytes <= length - offset)
        region[inside] = known.region[at[inside]]
        count += inside
    owner = np.full(key.size, RegionFate.REGION, np.uint8)
    owner[count > 1] = RegionFate.AMBIGUOUS
    owner[count == 0] = RegionFate.NO_REGION
    owner[target < 0] = RegionFate.TARGET_UNKNOWN
    region[owner != RegionFate.REGION] = NO_REGION
    return region, owner
