"""What is compared: amounts of a run by key, from the tables of its analyses.

Keys are made of names that do not change from run to run (``identity.py``); layers are apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sigmatrace.diff.identity import (
    Ints,
    Names,
    host_names,
    ordinals,
    packed,
    process_names,
)
from sigmatrace.diff.sources import Source
from sigmatrace.errors import ChunkFormatError
from sigmatrace.partition import column

Floats = NDArray[np.float64]
Part = tuple[Ints, Floats]
"""Keys ``(n,)`` i8, distinct and ascending, and an amount ``(n,)`` f8 of each."""
Amounts = Mapping[str, Part]
"""Parts by measure."""

LAYER, OP, CLASS, END, NAME, ORDINAL = 6, 8, 7, 18, 18, 20
"""Bits of what keys are made of."""
NO_LAYER = 0
UNKNOWN_SIZE = 65
"""Class of sizes that are not known; others: bits of the largest size."""
_MOST = np.uint64(2**64 - 1)
_END = (
    r"^(?P<label>(?:rank|pid) [0-9]+(?: pid [0-9]+)?(?: @[^ ]+)?(?: [0-9]{16,})?)"
    r"(?: (?P<rest>.*))?$"
)
"""A queue pair or endpoint: the label of its process (``capture/merge.py``), and its own name."""
_QP = r"^QP 0x(?P<number>[0-9a-f]+)(?P<more>.*)$"
_HEX_DIGITS = 8
_BARRIERS = {"doorbell": "doorbells of GPUs", "phase": "phases of traffic"}


class Reader:
    """Reads amounts of one run.

    Args:
        source: The run.
        names: Names of all runs.
        hosts_by_rank: Whether hosts are told by their ranks.
    """

    def __init__(self, source: Source, names: Names, *, hosts_by_rank: bool) -> None:
        self._source = source
        self._names = names
        processes = source.processes
        self._labels: list[str] = processes.column("label").to_pylist()
        self._proc = names.numbers(process_names(processes))
        hosts = host_names(processes, by_rank=hosts_by_rank)
        self._hosts = {host: names.number(name) for host, name in hosts.items()}
        own = zip(self._labels, self._proc.tolist(), strict=True)
        self._by_label = dict(own)

    def run(self) -> Amounts:
        """Return what the whole run did, by layer where there are layers."""
        source = self._source
        found: dict[str, Part] = {"processes": _one(len(self._labels))}
        if source.window_ns is None and source.duration_ns:
            found["duration_ns"] = _one(source.duration_ns)
        layer, values = self._table("communication", ("operations", "size_bytes"), "rank")
        found |= _sums(packed((layer, LAYER)), values)
        if source.duration_ns:
            keys, size = found["size_bytes"]
            found["bandwidth"] = keys, size / (source.duration_ns / 1e9)
        layer, values = self._table("message_latency", ("messages", "mean_ns"))
        timed = values["messages"] > 0  # clocks leave some pairs without any latency
        count, mean = (values[name][timed] for name in ("messages", "mean_ns"))
        keys, messages = _summed(layer[timed], count)
        found["mean_ns"] = keys, _summed(layer[timed], count * mean)[1] / messages
        late = self._source.read("stragglers", ["caused_ns"], None)
        found["caused_ns"] = _one(column(late, "caused_ns").sum())
        return found

    def operations(self) -> Amounts:
        """Return operations and bytes by layer and operation."""
        columns = ["layer", "op", "nested", "count", "size_bytes"]
        table = _outermost(self._source.read("traffic", columns, None))
        key = packed((_ints(table, "layer"), LAYER), (_ints(table, "op"), OP))
        values = {"operations": _floats(table, "count"), "size_bytes": _floats(table, "size_bytes")}
        return _sums(key, values)

    def sizes(self) -> Amounts:
        """Return operations by layer, operation and class of sizes."""
        columns = ["layer", "op", "nested", "least_bytes", "most_bytes", "count"]
        table = _outermost(self._source.read("sizes", columns, None))
        least, most = column(table, "least_bytes"), column(table, "most_bytes")
        bits = np.ceil(np.log2(most.astype(np.float64) + 1)).astype(np.int64)
        bits[(least == 0) & (most == _MOST)] = UNKNOWN_SIZE
        fields = (_ints(table, "layer"), LAYER), (_ints(table, "op"), OP), (bits, CLASS)
        return _sums(packed(*fields), {"operations": _floats(table, "count")})

    def processes(self) -> Amounts:
        """Return what each process sent and got, and what others waited for it."""
        wanted = ("operations", "size_bytes")
        found: dict[str, Part] = {}
        layer, values, src, dst = self._ends("rank")
        for end, way in ((src, "sent"), (dst, "received")):
            key = packed((layer, LAYER), (end, END))
            found |= _sums(key, {f"{way}_{name}": values[name] for name in wanted})
        late = self._source.read("stragglers", None, None)
        key = packed((np.full(late.num_rows, NO_LAYER), LAYER), (self._procs(late, "proc"), END))
        for name in ("last", "caused_ns", "late_sender_ns"):
            found[name] = _summed(key, _floats(late, name))
        return found

    def hosts(self) -> Amounts:
        """Return operations and bytes by pair of hosts."""
        layer, values, src, dst = self._ends("node")
        return _sums(packed((layer, LAYER), (src, END), (dst, END)), values)

    def pairs(self) -> Amounts:
        """Return operations and bytes by pair of processes."""
        layer, values, src, dst = self._ends("rank")
        return _sums(packed((layer, LAYER), (src, END), (dst, END)), values)

    def queue_pairs(self) -> Amounts:
        """Return operations and bytes by queue pair (endpoint), in order of its pair's numbers."""
        columns = ["layer", "src", "dst", "operations", "size_bytes"]
        table = self._source.read("communication", columns, "qp")
        (src, src_order), (dst, dst_order) = (self._named_ends(table, way) for way in columns[1:3])
        ends = (_ints(table, "layer"), LAYER), (src, END), (dst, END)
        order = src_order * (dst_order.max(initial=0) + 1) + dst_order
        key = packed(*ends, (ordinals(packed(*ends), order), ORDINAL))
        return _sums(key, {name: _floats(table, name) for name in columns[3:]})

    def latency(self) -> Amounts:
        """Return median and 99th percentile of latencies, by pair of processes."""
        columns = ["layer", "src_proc", "dst_proc", "p50_ns", "p99_ns"]
        table = self._source.read("message_latency", columns, None)
        table = table.filter(pc.is_valid(table.column("p50_ns")))
        src, dst = (self._procs(table, name) for name in columns[1:3])
        key = packed((_ints(table, "layer"), LAYER), (src, END), (dst, END))
        return {name: _summed(key, _floats(table, name)) for name in columns[3:]}

    def barriers(self) -> Amounts:
        """Return how many there are by name, and the spread of each, with who came last."""
        table = self._source.read("barriers", None, None)
        kinds, names = (table.column(name).to_pylist() for name in ("kind", "name"))
        titles = [_BARRIERS.get(kind, name) for kind, name in zip(kinds, names, strict=True)]
        name = self._names.numbers(titles)
        place = ordinals(name, _ints(table, "first_ns"))
        spread, sure = _floats(table, "spread_ns"), ~column(table, "uncertain").astype(bool)
        key = packed((name, NAME), (place + 1, ORDINAL))
        whole = packed((name, NAME), (np.zeros(name.size, np.int64), ORDINAL))
        groups, count = _summed(whole, np.ones(name.size))
        return {
            "barriers": (groups, count),
            "mean_spread_ns": (groups, _summed(whole, spread)[1] / count),
            "spread_ns": _summed(key, spread),
            "last": _summed(key, np.where(sure, self._procs(table, "last_proc"), 0.0)),
        }

    def errors(self) -> Amounts:
        """Return errors by layer, process, and what they are."""
        table = self._source.read("errors", None, None)
        kinds, states = (table.column(name).to_pylist() for name in ("kind", "status"))
        texts = [f"{kind}, status {state}" for kind, state in zip(kinds, states, strict=True)]
        ends = (_ints(table, "layer"), LAYER), (self._procs(table, "proc"), END)
        key = packed(*ends, (self._names.numbers(texts), NAME))
        return {"errors": _summed(key, _floats(table, "count"))}

    def _table(
        self, name: str, columns: Sequence[str], level: str | None = None
    ) -> tuple[Ints, dict[str, Floats]]:
        table = self._source.read(name, ["layer", *columns], level)
        return _ints(table, "layer"), {one: _floats(table, one) for one in columns}

    def _ends(self, level: str) -> tuple[Ints, dict[str, Floats], Ints, Ints]:
        """Return layer, amounts and both ends of the traffic at a level."""
        columns = ["layer", "src", "dst", "operations", "size_bytes"]
        table = self._source.read("communication", columns, level)
        known = self._by_label if level == "rank" else self._hosts
        src, dst = (_coded(table, way, known) for way in ("src", "dst"))
        values = {name: _floats(table, name) for name in columns[3:]}
        return _ints(table, "layer"), values, src, dst

    def _procs(self, table: pa.Table, name: str) -> Ints:
        """Return the name of each process; 0: not known."""
        number = _ints(table, name)
        if number.size and not -1 <= number.min() <= number.max() < self._proc.size:
            what = f"{self._source.name}: {name} of a table is no row of the table processes"
            raise ChunkFormatError(what, "tables are of different runs: make them again")
        found: Ints = np.append(self._proc, 0)[number]
        return found

    def _named_ends(self, table: pa.Table, way: str) -> tuple[Ints, Ints]:
        """Return the process of each end, and numbers by which its ends are in order."""
        names, place = _dictionary(table, way)
        split = pc.extract_regex(names, _END)
        label, rest = (pc.struct_field(split, [at]) for at in (0, 1))
        at = pc.fill_null(pc.index_in(label, pa.array(self._labels, pa.string())), -1)
        process = np.append(self._proc, 0)[at.to_numpy(zero_copy_only=False)]
        parts = pc.extract_regex(rest, _QP)
        number, more = (pc.struct_field(parts, [at]) for at in (0, 1))
        number = pc.utf8_lpad(number, _HEX_DIGITS, "0")
        text = pc.binary_join_element_wise(number, more, "")
        text = pc.coalesce(text, rest, names)
        order = pc.rank(text, tiebreaker="dense").to_numpy().astype(np.int64)
        return process[place], order[place]


def _coded(table: pa.Table, name: str, known: Mapping[str, int]) -> Ints:
    """Return the numbers of a column's texts; 0: not known."""
    texts, place = _dictionary(table, name)
    found = np.array([known.get(text, 0) for text in texts.to_pylist()], np.int64)
    return found[place]


def _dictionary(table: pa.Table, name: str) -> tuple[pa.Array, Ints]:
    """Return the distinct texts of a column, and the place of each row's among them."""
    one = table.column(name).combine_chunks().dictionary_encode()
    return one.dictionary, one.indices.to_numpy().astype(np.int64)


def _outermost(table: pa.Table) -> pa.Table:
    """Return the rows of operations that no other one of their layer made."""
    return table.filter(pc.equal(table.column("nested"), 0))


def _ints(table: pa.Table, name: str) -> Ints:
    return column(table, name).astype(np.int64)


def _floats(table: pa.Table, name: str) -> Floats:
    return column(table, name).astype(np.float64)


def _one(value: float) -> Part:
    """Return an amount that the run has one of."""
    return np.array([NO_LAYER], np.int64), np.array([value], np.float64)


def _sums(key: Ints, values: Mapping[str, Floats]) -> dict[str, Part]:
    return {name: _summed(key, one) for name, one in values.items()}


def _summed(key: Ints, values: Floats) -> Part:
    """Return the sum of values by key; of equal keys in the order of their rows."""
    keys, place = np.unique(key, return_inverse=True)
    total: Floats = np.bincount(place, weights=values, minlength=keys.size).astype(np.float64)
    return keys, total
