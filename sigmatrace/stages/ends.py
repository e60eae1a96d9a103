"""What stands at both ends of operations, at each level from queue pair to node.

An operation names its own endpoint, and the other end by its process and name. A queue pair at the
other end is the one of that name, of as many connections as the own one; where that is not
certain, it is not known, and neither are its GPU and NIC. Other endpoints are told by their names.

The GPU of an end is the one in whose memory the ring of its queue pair lies; where that is the
host's, or there is no such ring, the only GPU that its process uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.devices import Gpus, Nics, QueuePairs, connection_text
from sigmatrace.participants import participants
from sigmatrace.partition import Run, column
from sigmatrace.schema import Columns
from sigmatrace.stages.topology_names import find, number_rows
from sigmatrace.trace_format import Op

LEVELS = ("qp", "gpu", "nic", "rank", "node")
KNOWN_COLUMNS: Columns = {
    "processes": {"label": "str", "rank": "i4", "host": "str", "layers": "str"},
    "endpoints": {
        **{"proc": "i4", "object": "u4", "layer": "u1", "type": "str", "local": "str"},
        **{"life": "u4", "place": "str", "qpn": "u4"},
    },
    "channels": {"proc": "i4", "object": "u4", "layer": "u1"},
    "ports": {"proc": "i4", "object": "u4", "device": "str", "port": "u1", "place": "str"},
    "gids": {"proc": "i4", "port": "u4", "place": "str"},
    "gpus": {"proc": "i4", "object": "u4", "ordinal": "u4", "name": "str"},
    "gpu_queues": {"proc": "i4", "object": "u4", "qpn": "u4", "gpu": "u4"},
}
"""Columns that ``Known`` reads."""

Ints = NDArray[np.int64]


class Known:
    """Queue pairs, GPUs, NICs, processes and nodes of a run, each numbered from 0; -1: not known.

    Args:
        run: With the tables of ``KNOWN_COLUMNS``.

    Attributes:
        qps: The queue pairs.
        labels: Of processes.
        nodes: Names of hosts.
        node: ``(processes,)`` i8, host of each process.
        gpus: Names of GPUs.
        gpu: ``(queue pairs,)`` i8, GPU of each.
        only_gpu: ``(processes,)`` i8, GPU of those that use just one.
        nics: Names of ports.
        nic: ``(queue pairs,)`` i8, port of each.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.qps = QueuePairs.of(run)
        processes = run.tables["processes"]
        self.labels: list[str] = processes.column("label").to_pylist()
        hosts = processes.column("host").to_pylist()
        self.nodes = list(dict.fromkeys(hosts))
        number = {host: at for at, host in enumerate(self.nodes)}
        self.node = np.array([number[host] for host in hosts], np.int64)
        gpus = Gpus.of(run, self.qps)
        self._gpu_proc, self.gpus, of_gpu = self._real(gpus)
        self.only_gpu = np.full(len(self.labels), -1, np.int64)
        alone = np.bincount(self._gpu_proc, minlength=len(self.labels)) == 1
        at = np.flatnonzero(alone[self._gpu_proc])
        self.only_gpu[self._gpu_proc[at]] = at
        own = np.append(of_gpu, -1)[gpus.of_qp]
        self.gpu = np.where(own >= 0, own, self.only_gpu[self.qps.proc])
        nics = Nics.of(run, self.qps)
        self.nics, self.nic = list(nics.names), nics.of_qp.astype(np.int64)

    def _real(self, gpus: Gpus) -> tuple[Ints, list[str], Ints]:
        """Return process and name of each GPU, and its number by that of ``gpus``."""
        is_real = gpus.keys & 0xFFFFFFFF > 0
        at = np.flatnonzero(is_real)
        proc = gpus.proc[at].astype(np.int64)
        names = [
            f"{self.labels[p]} {gpus.names[k]}"
            for p, k in zip(proc.tolist(), at.tolist(), strict=True)
        ]
        return proc, names, np.where(is_real, np.cumsum(is_real) - 1, -1)

    @cached_property
    def pairs(self) -> list[str]:
        """Names of queue pairs, unique within a layer."""
        rows = pa.array(self.qps.rows)
        endpoints = self._run.tables["endpoints"].select(["layer", "life"]).take(rows)
        layers, lives = (endpoints.column(name).to_pylist() for name in ("layer", "life"))
        procs = (self.qps.keys >> 32).tolist()
        names = [
            f"{self.labels[proc]} {title}{connection_text(life)}"
            for proc, title, life in zip(procs, self.qps.titles, lives, strict=True)
        ]
        counts = Counter(zip(layers, names, strict=True))
        things = (self.qps.keys & 0xFFFFFFFF).tolist()
        return [
            f"{name} (object {thing})" if counts[layer, name] > 1 else name
            for layer, name, thing in zip(layers, names, things, strict=True)
        ]

    def members(self, layer: int) -> Mapping[str, list[str]]:
        """Return by level the names of all that could have had traffic at a layer.

        These are its participants, their nodes and GPUs, and the queue pairs of the layer with the
        ports that they go through. Other endpoints are not listed.
        """
        procs = participants(self._run, layer)
        own = self._run.column("endpoints", "layer")[self.qps.rows] == layer
        gpus = np.flatnonzero(np.isin(self._gpu_proc, procs)).tolist()
        nics = np.unique(self.nic[own & (self.nic >= 0)]).tolist()
        return {
            "qp": [self.pairs[qp] for qp in np.flatnonzero(own)],
            "gpu": [self.gpus[gpu] for gpu in gpus],
            "nic": [self.nics[nic] for nic in nics],
            "rank": [self.labels[proc] for proc in procs],
            "node": list(dict.fromkeys(self.nodes[self.node[proc]] for proc in procs)),
        }


@dataclass(frozen=True)
class Level:
    """Both ends of rows at a level.

    Attributes:
        names: Of all that there is; the last one, "", is of what is not known.
        src, dst: ``(n,)`` i8, places in ``names``.
    """

    names: Sequence[str]
    src: Ints
    dst: Ints

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """``(n,)``, whether anything is known of either end."""
        unknown = len(self.names) - 1
        known: NDArray[np.bool_] = (self.src != unknown) | (self.dst != unknown)
        return known


def levels_of(rows: pa.Table, run: Run, known: Known) -> dict[str, Level]:
    """Return both ends of operations, by level.

    Args:
        rows: Of the table ``sizes``, of operations that initiate traffic.
        run: Their run.
        known: What there is in it.
    """
    swap = column(rows, "op") == Op.GET  # bytes flow from the other end to the own one
    procs = [column(rows, f"{end}_proc").astype(np.int64) for end in ("src", "dst")]
    names = [rows.column(f"{end}_name") for end in ("src", "dst")]
    own, other = (np.where(swap, procs[1 - k], procs[k]) for k in (0, 1))
    is_swapped = pa.array(swap)
    own_name, other_name = (pc.if_else(is_swapped, names[1 - k], names[k]) for k in (0, 1))
    own_name = _with_objects(own_name, rows.column("object"))
    ends = _Ends.of(run, known, rows, (own, other), (own_name, other_name))
    sides = {
        "qp": ends.pairs(),
        "gpu": (known.gpus, [ends.of_pair(x, known.gpu, known.only_gpu) for x in (0, 1)]),
        "nic": (known.nics, [ends.of_pair(x, known.nic) for x in (0, 1)]),
        "rank": (known.labels, [own, other]),
        "node": (known.nodes, [_at(known.node, proc) for proc in (own, other)]),
    }
    return {name: _level(*sides[name], swap) for name in LEVELS}


def _level(names: Sequence[str], sides: Sequence[Ints], swap: NDArray[np.bool_]) -> Level:
    """Return a level of own and other ends, the way that bytes go."""
    own, other = (np.where(side < 0, len(names), side) for side in sides)
    return Level([*names, ""], np.where(swap, other, own), np.where(swap, own, other))


def _at(values: Ints, place: Ints) -> Ints:
    """Return ``values[place]``, -1 where the place is negative."""
    found: Ints = np.append(values, -1)[np.where(place < 0, values.size, place)]
    return found


def _with_objects(names: pa.ChunkedArray, things: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return names, and of own endpoints without one what tells them apart."""
    text = pc.binary_join_element_wise("object", things.cast(pa.string()), " ")
    nameless = pc.and_(pc.equal(names, ""), pc.greater(things, 0))
    return pc.if_else(nameless, text, names)


@dataclass(frozen=True)
class _Ends:
    """Own and other ends of rows.

    Attributes:
        known: What there is.
        procs: Processes, ``(n,)`` i8 each.
        codes: Places of their names in ``texts``, likewise.
        qps: Queue pairs, likewise; -1 where they are none, or not known.
        texts: Names, as the trace has them.
    """

    known: Known
    procs: tuple[Ints, Ints]
    codes: tuple[Ints, Ints]
    qps: tuple[Ints, Ints]
    texts: Sequence[str]

    @classmethod
    def of(
        cls,
        run: Run,
        known: Known,
        rows: pa.Table,
        procs: tuple[Ints, Ints],
        names: tuple[pa.ChunkedArray, pa.ChunkedArray],
    ) -> _Ends:
        """Find the queue pairs at both ends."""
        texts, (local, own_code, other_code) = _coded([_column(run, "local"), *names])
        proc, thing, layer, life = (
            run.column("endpoints", name).astype(np.int64)
            for name in ("proc", "object", "layer", "life")
        )
        asked = (column(rows, name).astype(np.int64) for name in ("proc", "object"))
        own = find((proc, thing), tuple(asked))
        # Names that are not known are equal to each other, and say nothing.
        end = np.where(other_code == _place(texts, ""), -2, procs[1])
        more = _at(life, own), column(rows, "layer").astype(np.int64)
        table, query = (proc, local, life, layer), (end, other_code, *more)
        other = find(table, query)
        for width in (3, 2):  # it may be seen at another layer; and datagrams have no connection
            again = find(table[:width], query[:width])
            if width == 2:
                numbers, count = number_rows(proc, local)
                is_one = np.bincount(numbers, minlength=count)[numbers] == 1
                again = np.where(_at(is_one.astype(np.int64), again) > 0, again, -1)
            other = np.where(other < 0, again, other)
        pair = np.full(proc.size, -1, np.int64)
        pair[known.qps.rows] = np.arange(known.qps.rows.size)
        found = _at(pair, own), _at(pair, other)
        return cls(known, procs, (own_code, other_code), found, texts)

    def pairs(self) -> tuple[list[str], list[Ints]]:
        """Return names of queue pairs and other endpoints, and the ends as places in them."""
        proc, code, qp = (np.concatenate(x) for x in (self.procs, self.codes, self.qps))
        number, count = number_rows(proc + 1, code)
        first = np.full(count, -1, np.int64)
        rest = np.flatnonzero(qp < 0)
        first[number[rest][::-1]] = rest[::-1]
        used = np.flatnonzero(first >= 0)
        labels = [*self.known.labels, ""]
        names = [
            f"{labels[p]} {self.texts[c]}".strip()
            for p, c in zip(proc[first[used]], code[first[used]], strict=True)
        ]
        place = np.full(count, -1, np.int64)
        place[used] = np.arange(used.size) + len(self.known.pairs)
        place[used[np.array([name == "" for name in names], bool)]] = -1
        ends = np.where(qp >= 0, qp, place[number])
        return [*self.known.pairs, *names], np.split(ends, 2)

    def of_pair(self, side: int, of_qp: Ints, of_proc: Ints | None = None) -> Ints:
        """Return what belongs to the queue pairs of a side, else to their processes."""
        found = _at(of_qp, self.qps[side])
        if of_proc is None:
            return found
        return np.where(found >= 0, found, _at(of_proc, self.procs[side]))


def _column(run: Run, name: str) -> pa.ChunkedArray:
    return run.tables["endpoints"].column(name)


def _coded(columns: Sequence[pa.ChunkedArray]) -> tuple[list[str], list[Ints]]:
    """Return the distinct texts of columns, and each column as places in them."""
    chunks = [chunk.cast(pa.string()) for one in columns for chunk in one.chunks]
    encoded = pa.chunked_array(chunks, pa.string()).combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    until = np.cumsum([len(one) for one in columns])[:-1]
    return encoded.dictionary.to_pylist(), np.split(codes, until)


def _place(texts: Sequence[str], text: str) -> int:
    return texts.index(text) if text in texts else -1
