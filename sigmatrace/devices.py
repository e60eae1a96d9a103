"""Queue pairs, GPUs, and the ports of NICs: which there are, and how they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sigmatrace.lookup import find_objects, object_keys
from sigmatrace.partition import Run
from sigmatrace.queue_pairs import SEVERAL, numbers, other_ends
from sigmatrace.schema import Columns
from sigmatrace.trace_format import QUEUE_PAIR_LAYERS, ChannelFlag, Dir, Layer

QUEUE_PAIRS = ("ib_qp", "mlx5_qp")
OBJECT_COLUMNS: Columns = {
    "endpoints": {
        "proc": "i4",
        "object": "u4",
        "layer": "u1",
        "type": "str",
        "local": "str",
        "peer": "str",
        "life": "u4",
        "place": "str",
        "qpn": "u4",
        "peer_place": "str",
        "peer_qpn": "u4",
    },
    "channels": {"proc": "i4", "object": "u4", "dir": "u1", "layer": "u1", "flags": "u1"},
    "routes": {"src_proc": "i4", "dst_proc": "i4", "dst_name": "str"},
    "ports": {"proc": "i4", "object": "u4", "device": "str", "port": "u1", "place": "str"},
    "gids": {"proc": "i4", "port": "u4", "place": "str"},
    "gpus": {"proc": "i4", "object": "u4", "ordinal": "u4", "name": "str"},
    "gpu_queues": {"proc": "i4", "object": "u4", "qpn": "u4", "gpu": "u4", "completions": "bool"},
    "kernels_not_recorded": {"proc": "i4", "reason": "str"},
}
"""Columns read here, beside the processes' ``mode``."""


@dataclass(frozen=True)
class QueuePairs:
    """The connections of queue pairs of a run, ordered by process and object.

    Attributes:
        keys: i8[q], ``proc << 32 | object``, ascending.
        channel: i4[c], queue pair of each channel, -1 = of none.
        run: Where their names are.
        rows: i8[q], row of each in the table ``endpoints``.
    """

    keys: np.ndarray
    channel: np.ndarray
    run: Run
    rows: np.ndarray

    @classmethod
    def of(cls, run: Run) -> QueuePairs:
        """Return the queue pairs of a run, from its index."""
        rows = np.flatnonzero(np.isin(run.column("endpoints", "layer"), QUEUE_PAIR_LAYERS))
        if rows.size:
            kinds = run.column("endpoints", "type")[rows].astype(str)
            rows = rows[np.isin(kinds, QUEUE_PAIRS)]
        keys = object_keys(*(run.column("endpoints", name)[rows] for name in ("proc", "object")))
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows[order]
        channel = np.full(run.tables["channels"].num_rows, -1, np.int32)
        if keys.size:
            channel = find_objects(
                keys, *(run.column("channels", name) for name in ("proc", "object"))
            )
            channel[~np.isin(run.column("channels", "layer"), QUEUE_PAIR_LAYERS)] = -1
        return cls(keys, channel, run, rows)

    @property
    def proc(self) -> np.ndarray:
        """i8[q], process of each."""
        return self.keys >> 32

    @cached_property
    def is_gpu(self) -> np.ndarray:
        """bool[q], of layer mlx5dv."""
        found: np.ndarray = self.run.column("endpoints", "layer")[self.rows] == Layer.MLX5DV
        return found

    @cached_property
    def sees_completions(self) -> np.ndarray:
        """bool[q], whether completions can be seen; of GPUs' they often cannot."""
        sees = self.run.column("gpu_queues", "completions").astype(bool)
        seen = (self.run.column("gpu_queues", name)[sees] for name in ("proc", "object"))
        return ~self.is_gpu | np.isin(self.keys, object_keys(*seen))

    @cached_property
    def qpn(self) -> np.ndarray:
        """u8[q], number of each on its NIC, 0 when it is not known."""
        own = (self.run.column("endpoints", name)[self.rows] for name in ("proc", "object"))
        return numbers(self.run, *own).astype(np.uint64)

    @cached_property
    def has_requests(self) -> np.ndarray:
        """bool[q], whether requests and completions were recorded, and not operations alone."""
        modes = self.run.tables["processes"].column("mode").to_pylist()
        found: np.ndarray = np.array([mode != "simple" for mode in modes], bool)[self.proc]
        return found

    @cached_property
    def is_datagram(self) -> np.ndarray:
        """bool[q], of type UD: without a peer, and channels that are told apart by the sender."""
        tagged = self.run.column("channels", "flags") & ChannelFlag.HAS_TAG > 0
        tagged &= (self.run.column("channels", "dir") == Dir.IN) & (self.channel >= 0)
        found = np.zeros(self.keys.size, bool)
        found[self.channel[tagged]] = True
        found &= self.run.column("endpoints", "peer_qpn")[self.rows] == 0
        return found

    @cached_property
    def is_blind(self) -> np.ndarray:
        """bool[q], of GPUs, where no arrival is in the trace: none can be seen."""
        found = self.is_gpu.copy()
        arrivals = (self.run.column("channels", "dir") == Dir.IN) & (self.channel >= 0)
        found[self.channel[arrivals]] = False
        return found

    @cached_property
    def target(self) -> np.ndarray:
        """i4[c], queue pair at the other end of each channel out, -1 = not known.

        It is the one in the process that the channel leads to which has the same names, the other
        way round, and as many connections of them before it; where the queue pair itself is not
        connected, the one that has the name of the channel's destination.
        """
        keys = "proc", "layer", "local", "life", "place", "qpn", "peer_place", "peer_qpn"
        table = self.run.tables["endpoints"].select(keys).take(self.rows)
        procs, layers, names, lives, *ends = (table.column(key).to_pylist() for key in keys)
        paths = list(zip(*ends, strict=True))
        connected = _unique(zip(procs, paths, lives, layers, strict=True))
        named = _unique(zip(procs, names, layers, strict=True))
        proc, name = (self.run.column("routes", key) for key in ("dst_proc", "dst_name"))
        found = np.full(self.channel.size, -1, np.int32)
        out = (self.run.column("channels", "dir") == Dir.OUT) & (self.channel >= 0) & (proc >= 0)
        for channel in np.flatnonzero(out).tolist():
            qp, there = self.channel[channel], int(proc[channel])
            place, qpn, peer_place, peer_qpn = paths[qp]
            # Those of libibverbs without a peer are of type UD, which reads and writes nothing.
            if not peer_qpn and layers[qp] == Layer.VERBS:
                continue
            reverse = peer_place, peer_qpn, place, qpn
            for layer in (layers[qp], *QUEUE_PAIR_LAYERS):
                if qpn and peer_qpn:
                    at = connected.get((there, reverse, lives[qp], layer), -1)
                else:
                    at = named.get((there, name[channel], layer), -1)
                if at >= 0:
                    found[channel] = at
                    break
        return found

    def name(self, row: int) -> str:
        """Return ``QP 0x11 → rank 3``, with the peer's own name where its process is unknown."""
        peer, life = (self._cell(key, row) for key in ("peer", "life"))
        name = self.titles[row]
        proc = int(self._peers[row])
        if proc >= 0:
            peer = self.run.tables["processes"].column("label")[proc].as_py()
        elif proc == SEVERAL:
            peer = "several"
        name += f" → {peer}" if peer else ""
        return name + connection_text(life)

    @cached_property
    def titles(self) -> Sequence[str]:
        """``QP 0x11`` for each, without its connection; not unique where there are several NICs."""
        own = zip(self.qpn.tolist(), (self.keys & 0xFFFFFFFF).tolist(), strict=True)
        return [f"QP 0x{qpn:x}" if qpn else f"QP of object {thing}" for qpn, thing in own]

    def _cell(self, column: str, row: int) -> Any:
        return self.run.tables["endpoints"].column(column)[int(self.rows[row])].as_py()

    @cached_property
    def _peers(self) -> np.ndarray:
        """Process at the other end of each, -1 = not known, or ``SEVERAL``.

        It is the one that channels lead to; where there are none, as of those that only receive,
        the one whose queue pair has the name of the peer.
        """
        out = self.run.column("channels", "dir") == Dir.OUT
        other = np.where(
            out, self.run.column("routes", "dst_proc"), self.run.column("routes", "src_proc")
        )
        use = (self.channel >= 0) & (other >= 0)
        low = np.full(self.keys.size, np.iinfo(np.int32).max, np.int32)
        high = np.full(self.keys.size, -1, np.int32)
        np.minimum.at(low, self.channel[use], other[use])
        np.maximum.at(high, self.channel[use], other[use])
        found = np.where((high >= 0) & (low != high), SEVERAL, high)
        return np.where(found == -1, other_ends(self.run)[self.rows], found)


def connection_text(life: int) -> str:
    """Return what a connection is called that is not the first one of its two names."""
    return f" (connection {life + 1})" if life else ""


def _unique(keys: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    """Return the place of each key that stands there once."""
    listed = list(keys)
    counts = Counter(listed)
    return {key: place for place, key in enumerate(listed) if counts[key] == 1}


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a run, by process; a process's queues in the host's memory have one of their own.

    Attributes:
        keys: i8[g], ``proc << 32 | object``, ascending; object 0: the host's
            memory (queues), or not known (kernels).
        names: What a user sees, by number.
        of_qp: i4[q], GPU of each queue pair, -1 = of none.
    """

    keys: np.ndarray
    names: Sequence[str]
    of_qp: np.ndarray

    @classmethod
    def of(cls, run: Run, qps: QueuePairs) -> Gpus:
        """Return the GPUs of a run, from its index."""
        known = object_keys(*(run.column("gpus", name) for name in ("proc", "object")))
        queue = object_keys(*(run.column("gpu_queues", name) for name in ("proc", "object")))
        used = object_keys(*(run.column("gpu_queues", name) for name in ("proc", "gpu")))
        keys = np.union1d(known, used)
        of_qp = np.full(qps.keys.size, -1, np.int32)
        _, mine, theirs = np.intersect1d(qps.keys, queue, return_indices=True)
        of_qp[mine] = np.searchsorted(keys, used[theirs])
        columns = (run.tables["gpus"].column(name).to_pylist() for name in ("ordinal", "name"))
        rows = zip(known.tolist(), *columns, strict=True)
        named = {key: f"GPU {ordinal} ({name})" for key, ordinal, name in rows}
        nobody = "host memory, or a GPU that is not known"
        return cls(keys, [named.get(key, nobody) for key in keys.tolist()], of_qp)

    @property
    def proc(self) -> np.ndarray:
        """i8[g], process of each."""
        return self.keys >> 32


@dataclass(frozen=True)
class Nics:
    """The ports of NICs that queue pairs of a run go through.

    Attributes:
        names: What a user sees, by number.
        of_qp: i4[q], port of each queue pair, -1 = not known.
    """

    names: Sequence[str]
    of_qp: np.ndarray

    @classmethod
    def of(cls, run: Run, qps: QueuePairs) -> Nics:
        """Return the ports of a run, from its index.

        One that several processes of a host opened is one. A queue pair whose place is that of
        no known port goes through one named by this place.
        """
        hosts = run.tables["processes"].column("host").to_pylist()
        known = _ports(run, hosts)
        places = run.tables["endpoints"].column("place")
        numbers: dict[tuple[str, str], int] = {}
        of_qp = np.full(qps.keys.size, -1, np.int32)
        for qp, (proc, row) in enumerate(zip(qps.proc.tolist(), qps.rows.tolist(), strict=True)):
            place = places[row].as_py()
            if place:
                key = hosts[proc], known.get((hosts[proc], place), place)
                of_qp[qp] = numbers.setdefault(key, len(numbers))
        return cls([f"{name} ({host})" for host, name in numbers], of_qp)


def _ports(run: Run, hosts: Sequence[str]) -> Mapping[tuple[str, str], str]:
    """Return the names of ports, by host and place; a place that two of them claim is left out."""
    names: dict[tuple[int, int], str] = {}
    found: dict[tuple[str, str], set[str]] = {}
    columns = ("proc", "object", "device", "port", "place")
    ports = (run.tables["ports"].column(name).to_pylist() for name in columns)
    for proc, thing, device, port, place in zip(*ports, strict=True):
        names[proc, thing] = f"{device} port {port}"
        found.setdefault((hosts[proc], place), set()).add(names[proc, thing])
    gids = (run.tables["gids"].column(name).to_pylist() for name in ("proc", "port", "place"))
    for proc, port, place in zip(*gids, strict=True):
        if (proc, port) in names:
            found.setdefault((hosts[proc], place), set()).add(names[proc, port])
    return {where: next(iter(of)) for where, of in found.items() if len(of) == 1}
