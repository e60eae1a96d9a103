"""Stage wire: compares the trace with a packet capture of RoCEv2 (layer verbs). No files.

Whoever makes the stage hands it a function that reads the capture. It is called where summaries are
resolved, by the caller's process alone, so that no worker gets a copy of the capture.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.text import count_text, counted
from sigmatrace.trace_format import Layer, Op, OpFlag, Queue, WrOpcode
from sigmatrace.validate.compare import (
    KIND_CODE,
    OP_OF,
    REQUEST,
    UNKNOWN_PSN,
    Compared,
    Key,
    Sent,
    Verdict,
    compare,
)
from sigmatrace.validate.flows import PacketCapture, Total
from sigmatrace.validate.roce import FrameCounts

NAMED = 20
"""Differing flows that the ledger names; the counts are complete."""
SHOWN = 5
KIND_OF: dict[int, str] = {
    WrOpcode.RDMA_WRITE: "WRITE",
    WrOpcode.RDMA_WRITE_WITH_IMM: "WRITE_IMM",
    WrOpcode.SEND: "SEND",
    WrOpcode.SEND_WITH_IMM: "SEND_IMM",
    WrOpcode.RDMA_READ: "READ",
    WrOpcode.ATOMIC_CMP_AND_SWP: "COMPARE_SWAP",
    WrOpcode.ATOMIC_FETCH_AND_ADD: "FETCH_ADD",
    WrOpcode.SEND_WITH_INV: "SEND_INV",
}
"""Kind of a message by opcode; others are on no wire (bind, invalidate), or not decoded there."""
_GID_DIGITS = 32
_NO_CODE = 255
_CODE = np.full(256, _NO_CODE, np.uint8)
_CODE[list(KIND_OF)] = [KIND_CODE[kind] for kind in KIND_OF.values()]
_ON_WIRE = frozenset(OP_OF.values())
_TIMES = ("first_ns", "last_ns")
_REQUEST = ("proc", "object", "position", "opcode", "size_bytes", "raddr", "rkey", "imm")


@dataclass(frozen=True)
class Seen:
    """What some partitions hold.

    Attributes:
        amounts: Operations and bytes by channel and operation, how many of the operations are of an
            uncertain order, and when the first and the last were.
        requests: Columns ``_REQUEST`` of each send request.
    """

    amounts: pa.Table
    requests: pa.Table


@dataclass(frozen=True)
class Outcome:
    """The comparison.

    Attributes:
        flows: All flows.
        frames: What the capture holds.
    """

    flows: Sequence[Compared]
    frames: FrameCounts

    def of(self, verdict: Verdict) -> list[Compared]:
        """The flows with this verdict."""
        return [flow for flow in self.flows if flow.verdict is verdict]

    @property
    def repeated(self) -> int:
        """Request packets that were sent again."""
        return sum(flow.repeated for flow in self.flows)


class Wire(Stage):
    """Makes ``wire_flows``.

    Args:
        read: Reads the capture; picklable.
        source: Where it is from, for the ledger.
    """

    name: ClassVar[str] = "wire"
    summary: ClassVar[SummaryKind] = "after"
    requires: ClassVar[Columns] = {
        "ops": {"channel": "u4", "op": "u1", "size_bytes": "u8", "flags": "u1", "t_ns": "i8"},
        "aggregates": {"channel": "u4", "op": "u1", "count": "u8", "size_bytes": "u8"},
        "requests": {
            "proc": "i4",
            "object": "u4",
            "position": "u4",
            "queue": "u1",
            "opcode": "u1",
            "size_bytes": "u4",
            "raddr": "u8",
            "rkey": "u4",
            "imm": "u4",
        },
        "processes": {"proc": "i4", "mode": "str"},
        "channels": {
            "channel": "u4",
            "proc": "i4",
            "object": "u4",
            "peer": "u8",
            "layer": "u1",
        },
        "endpoints": {
            "proc": "i4",
            "object": "u4",
            "layer": "u1",
            "place": "str",
            "peer_place": "str",
            "peer_qpn": "u4",
            "sq_psn": "i8",
            "qpn": "u4",
        },
        "addresses": {"proc": "i4", "av": "u4", "addr": "u8", "place": "str", "qpn": "u4"},
        "gids": {"index": "u4", "gid": "str", "place": "str"},
    }
    produces: ClassVar[Columns] = {"wire_flows": STAGE_TABLES["wire_flows"]}

    def __init__(self, read: Callable[[], PacketCapture], source: str) -> None:
        self._read, self._source = read, source

    def summarize(self, part: Partition) -> Seen:
        """Add up the partition's operations; keep its send requests."""
        ops, requests = part.tables["ops"], part.tables["requests"]
        rows = ops.select(["channel", "op", "size_bytes"])
        rows = rows.append_column("count", pa.array(np.ones(rows.num_rows, np.uint64)))
        uncertain = pc.bit_wise_and(
            ops.column("flags"), pa.scalar(OpFlag.ORDER_UNCERTAIN, pa.uint8())
        )
        rows = rows.append_column("uncertain", pc.not_equal(uncertain, 0).cast(pa.uint64()))
        for name in _TIMES:
            rows = rows.append_column(name, ops.column("t_ns"))
        sums = part.tables["aggregates"].select(["channel", "op", "size_bytes", "count"])
        none = pa.array(np.zeros(sums.num_rows, np.uint64))
        sums = sums.append_column("uncertain", none)
        for name in _TIMES:
            sums = sums.append_column(name, pa.nulls(sums.num_rows, pa.int64()))
        rows = pa.concat_tables([rows, sums])
        sent = requests.filter(pc.equal(requests.column("queue"), int(Queue.SEND)))
        return Seen(_sums(rows), sent.select(_REQUEST))

    def combine(self, left: Seen, right: Seen) -> Seen:
        """Add both."""
        return Seen(
            _sums(pa.concat_tables([left.amounts, right.amounts])),
            pa.concat_tables([left.requests, right.requests]),
        )

    def resolve(self, summary: Seen, run: Run) -> Outcome:
        """Read the capture and compare."""
        capture = self._read()
        places = Places(run)
        sent = Flows(run, places).sent(summary)
        is_cut = capture.frames.undecoded > 0
        compared = compare(
            sent, capture.flows, places.of_ip, until_ns=capture.until_ns, is_cut=is_cut
        )
        return Outcome(compared, capture.frames)

    def results(self, resolved: Outcome) -> Mapping[str, pa.Table]:
        """Return ``wire_flows``."""
        rows = [
            {
                "source": flow.key.source,
                "destination": flow.key.destination,
                "qpn": flow.key.qpn,
                "op": int(op),
                "traced": left.messages,
                "traced_bytes": left.length,
                "captured": right.messages,
                "captured_bytes": right.length,
                "verdict": str(flow.verdict),
                "repeated": flow.repeated,
            }
            for flow in resolved.flows
            for op in sorted({*flow.traced, *flow.captured})
            for left, right in [[x.get(op, Total(0, 0)) for x in (flow.traced, flow.captured)]]
        ]
        types = {"u1": pa.uint8(), "u4": pa.uint32(), "u8": pa.uint64(), "str": pa.string()}
        columns = STAGE_TABLES["wire_flows"].items()
        schema = pa.schema([(name, types[dtype]) for name, dtype in columns])
        return {"wire_flows": pa.Table.from_pylist(rows, schema=schema)}

    def account(self, resolved: Outcome) -> Mapping[str, object]:
        """Return flows by verdict, requests compared, flows that differ, frames of the capture.

        Flows that are not whole in the capture are named as well, with both sides.
        """
        counts = {one.name.lower(): len(resolved.of(one)) for one in Verdict}
        texts = {
            verdict: [flow.text() for flow in resolved.of(verdict)[:NAMED]]
            for verdict in (Verdict.DIFFERS, Verdict.NOT_WHOLE)
        }
        return {
            "pcap": self._source,
            "flows": len(resolved.flows),
            **counts,
            "requests": sum(flow.requests for flow in resolved.flows),
            "repeated_packets": resolved.repeated,
            "differing": texts[Verdict.DIFFERS],
            "undecided": texts[Verdict.NOT_WHOLE],
            "frames": asdict(resolved.frames),
        }

    def lines(self, resolved: Outcome, run: Run) -> Sequence[str]:
        """Return how many flows are equal, and those that are not."""
        counts = Counter(flow.verdict for flow in resolved.flows)
        different = resolved.of(Verdict.DIFFERS)
        total = counted(len(resolved.flows), "flow")
        if resolved.flows and counts[Verdict.EQUAL] == len(resolved.flows):
            parts = ["all equal"]
        else:
            parts = [f"{count_text(n)} {one}" for one, n in sorted(counts.items()) if n]
        frames = resolved.frames
        if lost := frames.undecoded + frames.roce_v1 + frames.unsupported:
            parts.append(f"{counted(lost, 'frame')} not decoded")
        lines = [f"wire       {', '.join([total, *parts])}"]
        lines += [f"             {flow.text()}" for flow in different[:SHOWN]]
        if len(different) > SHOWN:
            lines.append(f"             and {count_text(len(different) - SHOWN)} more")
        if resolved.repeated:
            lines.append(f"             {counted(resolved.repeated, 'packet')} sent again")
        return lines


def _sums(rows: pa.Table) -> pa.Table:
    summed = ("size_bytes", "count", "uncertain")
    how = [*((name, "sum") for name in summed), *zip(_TIMES, ("min", "max"), strict=True)]
    added = rows.group_by(["channel", "op"]).aggregate(how)
    return added.rename_columns(["channel", "op", *summed, *_TIMES])


class Places:
    """Places of the table ``gids`` for people and for packets, which have IP addresses.

    A place is called by the last GID of its port: the first ones are made of the MAC address, and
    those of RoCE v2 for the port's IP addresses come after them.
    """

    def __init__(self, run: Run) -> None:
        self._of_gid: dict[str, str] = {}
        last: dict[str, tuple[int, str]] = {}
        columns = (
            run.tables["gids"].column(name).to_pylist() for name in ("index", "gid", "place")
        )
        for index, gid, place in zip(*columns, strict=True):
            self._of_gid[gid] = place
            last[place] = max(last.get(place, (-1, "")), (index, gid))
        self._name = {place: _ip(gid) for place, (_, gid) in last.items()}

    def name(self, place: str) -> str | None:
        """The IP address that a place is called by; None for a place by LID, which has none."""
        return (self._name.get(place) or _ip(place)) if len(place) == _GID_DIGITS else None

    def of_ip(self, address: str) -> str:
        """What the place is called that an IP address belongs to."""
        ip = ipaddress.ip_address(address)
        packed = bytes(10) + b"\xff\xff" + ip.packed if ip.version == 4 else ip.packed
        gid = packed.hex()
        return self._name.get(self._of_gid.get(gid, gid)) or _ip(gid)


def _ip(gid: str) -> str:
    ip = ipaddress.IPv6Address(bytes.fromhex(gid))
    return str(ip.ipv4_mapped or ip)


class Flows:
    """Which flow a channel and a queue pair belong to."""

    def __init__(self, run: Run, places: Places) -> None:
        self._run, self._places = run, places
        self._from: dict[tuple[int, int], str] = {}
        self._numbers: dict[tuple[int, int], tuple[int, int]] = {}
        self._connected: dict[tuple[int, int], Key] = {}
        for row in _verbs(run, "endpoints"):
            at = row["proc"], row["object"]
            self._from[at], self._numbers[at] = row["place"], (row["sq_psn"], row["qpn"])
            if (key := self._key(at, row["peer_place"], row["peer_qpn"])) is not None:
                self._connected[at] = key
        self._datagrams = {
            (row["proc"], row["av"], row["addr"]): (row["place"], row["qpn"])
            for row in run.tables["addresses"].to_pylist()
            if row["place"]
        }

    def sent(self, seen: Seen) -> dict[Key, Sent]:
        """What the trace says of each flow of RoCE."""
        found: dict[Key, Sent] = defaultdict(Sent)
        for key in self._connected.values():
            found[key].connections += 1
        channels = {row["channel"]: row for row in _verbs(self._run, "channels")}
        for row in seen.amounts.to_pylist():
            channel = channels.get(row["channel"])
            flow = self._of_channel(channel) if channel is not None else None
            if channel is not None and flow is not None and row["op"] in _ON_WIRE:
                found[flow].add(Op(row["op"]), row["count"], row["size_bytes"])
                found[flow].is_ordered &= not row["uncertain"]
                found[flow].between(row["first_ns"], row["last_ns"])
                at = channel["proc"], channel["object"]
                start, qpn = self._numbers.get(at, (UNKNOWN_PSN, 0))
                found[flow].starts.add(start)
                found[flow].qpns.add(qpn)
        self._add_requests(found, seen.requests)
        return dict(found)

    def _of_channel(self, row: Mapping[str, Any]) -> Key | None:
        at = row["proc"], row["object"]
        seat = self._datagrams.get((*at, row["peer"]))
        return self._connected.get(at) if seat is None else self._key(at, *seat)

    def _add_requests(self, found: dict[Key, Sent], requests: pa.Table) -> None:
        """Give each flow its requests, unless one of its connections is of another mode."""
        modes = self._run.tables["processes"].select(["proc", "mode"]).to_pylist()
        full = {row["proc"] for row in modes if row["mode"] == "full"}
        parts: dict[Key, list[np.ndarray]] = {key: [] for key in self._connected.values()}
        for (proc, thing), rows in _by_queue_pair(requests):
            if (proc, thing) in self._connected:
                parts[self._connected[proc, thing]].append(rows)
        others = {key for (proc, _), key in self._connected.items() if proc not in full}
        for key, arrays in parts.items():
            if key not in others:
                found[key].requests = np.concatenate([np.empty(0, REQUEST), *arrays])

    def _key(self, at: tuple[int, int], place: str, qpn: int) -> Key | None:
        """The flow from a queue pair to another one; None where a place is none of RoCE."""
        source = self._places.name(self._from.get(at, ""))
        destination = self._places.name(place)
        return None if source is None or destination is None else Key(source, destination, qpn)


def _by_queue_pair(requests: pa.Table) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """Yield process and object of each queue pair, and what it asked the wire for, in order."""
    columns = {name: requests.column(name).to_numpy() for name in _REQUEST}
    order = np.lexsort([columns[name] for name in ("position", "object", "proc")])
    order = order[_CODE[columns["opcode"][order]] != _NO_CODE]
    made = np.empty(order.size, REQUEST)
    made["kind"] = _CODE[columns["opcode"][order]]
    sources = {"length": "size_bytes", "address": "raddr", "rkey": "rkey", "immediate": "imm"}
    for name, source in sources.items():
        made[name] = columns[source][order]
    proc, thing = columns["proc"][order], columns["object"][order]
    begins = np.flatnonzero(np.diff(proc, prepend=-1) | np.diff(thing.astype(np.int64), prepend=-1))
    for begin, end in pairwise([*begins, order.size]):
        yield (int(proc[begin]), int(thing[begin])), made[begin:end]


def _verbs(run: Run, table: str) -> list[dict[str, Any]]:
    rows = run.tables[table]
    chosen: list[dict[str, Any]] = rows.filter(
        pc.equal(rows.column("layer"), int(Layer.VERBS))
    ).to_pylist()
    return chosen
