"""Stage wire: compares the trace with a packet capture of RoCEv2 (layer verbs).

The capture is read where summaries are resolved, by the caller's process alone.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.stages.base import Stage, SummaryKind
from sigmatrace.text import count_text, counted
from sigmatrace.trace_format import Layer, Op, OpFlag, Queue
from sigmatrace.validate.compare import OP_OF, Compared, Key, Request, Sent, Verdict, compare
from sigmatrace.validate.packets import FrameCounts, check_file
from sigmatrace.validate.pcap import Total, read_capture

NAMED = 20
"""Differing flows that the ledger names; the counts are complete."""
SHOWN = 5
KIND_OF = {
    **{0: "WRITE", 1: "WRITE_IMM", 2: "SEND", 3: "SEND_IMM", 4: "READ"},
    **{5: "COMPARE_SWAP", 6: "FETCH_ADD", 9: "SEND_INV"},
}
"""Kind of a message by ``enum ibv_wr_opcode``; others (bind, invalidate) are on no wire."""
_ON_WIRE = frozenset(OP_OF.values())
_REQUEST = ("proc", "object", "position", "opcode", "size_bytes", "raddr", "rkey", "imm")


@dataclass(frozen=True)
class Seen:
    """What some partitions hold.

    Attributes:
        amounts: Operations and bytes by channel and operation, and how many of the operations are
            of an uncertain order.
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


class Wire(Stage):
    """Makes ``wire_flows``.

    Args:
        pcap: The capture file.
        mtu: Path MTU of its queue pairs (bytes); None: as the packets tell.

    Raises:
        PcapError: The file is no capture of an Ethernet.
    """

    name: ClassVar[str] = "wire"
    summary: ClassVar[SummaryKind] = "after"
    requires: ClassVar[Columns] = {
        "ops": {"channel": "u4", "op": "u1", "size_bytes": "u8", "flags": "u1"},
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
            "local": "str",
            "peer": "str",
        },
        "addresses": {"proc": "i4", "av": "u4", "addr": "u8", "name": "str"},
        "gids": {"proc": "i4", "port": "u4", "index": "u4", "gid": "str"},
    }
    produces: ClassVar[Columns] = {"wire_flows": STAGE_TABLES["wire_flows"]}

    def __init__(self, pcap: str, mtu: int | None = None) -> None:
        self._path, self._mtu = Path(pcap), mtu
        check_file(self._path)

    def summarize(self, part: Partition) -> Seen:
        """Add up the partition's operations; keep its send requests."""
        ops, requests = part.tables["ops"], part.tables["requests"]
        rows = ops.select(["channel", "op", "size_bytes"])
        rows = rows.append_column("count", pa.array([1] * rows.num_rows, pa.uint64()))
        uncertain = pc.bit_wise_and(
            ops.column("flags"), pa.scalar(OpFlag.ORDER_UNCERTAIN, pa.uint8())
        )
        rows = rows.append_column("uncertain", pc.not_equal(uncertain, 0).cast(pa.uint64()))
        sums = part.tables["aggregates"].select(["channel", "op", "size_bytes", "count"])
        none = pa.array([0] * sums.num_rows, pa.uint64())
        rows = pa.concat_tables([rows, sums.append_column("uncertain", none)])
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
        capture = read_capture(self._path, self._mtu)
        places = Places(run)
        sent = Flows(run, places).sent(summary)
        return Outcome(compare(sent, capture.flows, places.of_ip), capture.frames)

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
        """Return flows by verdict, requests compared, flows that differ, frames of the capture."""
        counts = {one.name.lower(): len(resolved.of(one)) for one in Verdict}
        texts = [flow.text() for flow in resolved.of(Verdict.DIFFERS)]
        return {
            "pcap": str(self._path),
            "flows": len(resolved.flows),
            **counts,
            "requests": sum(flow.requests for flow in resolved.flows),
            "differing": texts[:NAMED],
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
        if lost := frames.damaged + frames.cut + frames.fragments + frames.roce_v1:
            parts.append(f"{counted(lost, 'frame')} not decoded")
        lines = [f"wire       {', '.join([total, *parts])}"]
        lines += [f"             {flow.text()}" for flow in different[:SHOWN]]
        if len(different) > SHOWN:
            lines.append(f"             and {count_text(len(different) - SHOWN)} more")
        return lines


def _sums(rows: pa.Table) -> pa.Table:
    summed = ("size_bytes", "count", "uncertain")
    added = rows.group_by(["channel", "op"]).aggregate([(name, "sum") for name in summed])
    return added.rename_columns([name.removesuffix("_sum") for name in added.column_names])


class Places:
    """Ports of NICs by their GIDs; each is named by the IP address of its last GID.

    A GID that two ports claim, or that no process told, is a place of its own.
    """

    def __init__(self, run: Run) -> None:
        ports: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
        for row in run.tables["gids"].to_pylist():
            ports[row["proc"], row["port"]].append((row["index"], row["gid"]))
        claims: dict[str, set[str]] = defaultdict(set)
        for gids in ports.values():
            for _, gid in gids:
                claims[gid].add(max(gids)[1])
        self._name = {gid: _ip(min(of)) for gid, of in claims.items() if len(of) == 1}

    def of_gid(self, gid: str) -> str:
        """The place of a GID (32 hexadecimal digits)."""
        return self._name.get(gid) or _ip(gid)

    def of_ip(self, address: str) -> str:
        """The place of an IP address."""
        ip = ipaddress.ip_address(address)
        packed = bytes(10) + b"\xff\xff" + ip.packed if ip.version == 4 else ip.packed
        return self.of_gid(packed.hex())


def _ip(gid: str) -> str:
    ip = ipaddress.IPv6Address(bytes.fromhex(gid))
    return str(ip.ipv4_mapped or ip)


class Flows:
    """Which flow a channel and a queue pair belong to."""

    def __init__(self, run: Run, places: Places) -> None:
        self._run, self._places = run, places
        self._local: dict[tuple[int, int], str] = {}
        self._connected: dict[tuple[int, int], Key] = {}
        for row in _verbs(run, "endpoints"):
            at = row["proc"], row["object"]
            self._local[at] = row["local"]
            if (key := self._key(at, row["peer"])) is not None:
                self._connected[at] = key
        self._datagrams = {
            (row["proc"], row["av"], row["addr"]): row["name"]
            for row in run.tables["addresses"].to_pylist()
            if (row["proc"], row["av"]) in self._local
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
            if flow is not None and row["op"] in _ON_WIRE:
                found[flow].add(Op(row["op"]), row["count"], row["size_bytes"])
                found[flow].is_ordered &= not row["uncertain"]
        self._add_requests(found, seen.requests)
        return dict(found)

    def _of_channel(self, row: Mapping[str, Any]) -> Key | None:
        at = row["proc"], row["object"]
        name = self._datagrams.get((*at, row["peer"]))
        return self._connected.get(at) if name is None else self._key(at, name)

    def _add_requests(self, found: dict[Key, Sent], requests: pa.Table) -> None:
        modes = self._run.tables["processes"].select(["proc", "mode"]).to_pylist()
        full = {row["proc"] for row in modes if row["mode"] == "full"}
        for (proc, _), key in self._connected.items():
            if proc in full:
                found[key].requests = []
        order = [(name, "ascending") for name in ("proc", "object", "position")]
        for row in requests.sort_by(order).to_pylist():
            connection = self._connected.get((row["proc"], row["object"]))
            asked = found[connection].requests if connection is not None else None
            if asked is not None and row["opcode"] in KIND_OF:
                fields = (row[name] for name in ("size_bytes", "raddr", "rkey", "imm"))
                asked.append(Request(KIND_OF[row["opcode"]], *fields))

    def _key(self, at: tuple[int, int], peer: str) -> Key | None:
        """The flow from a queue pair to a named one; None where a name has no GID."""
        ends = [name.split(":") for name in (self._local[at], peer)]
        if any(len(end) != 3 or len(end[1]) != 32 for end in ends):
            return None
        (_, source, _), (_, destination, qpn) = ends
        return Key(self._places.of_gid(source), self._places.of_gid(destination), int(qpn, 16))


def _verbs(run: Run, table: str) -> list[dict[str, Any]]:
    rows = run.tables[table]
    chosen: list[dict[str, Any]] = rows.filter(
        pc.equal(rows.column("layer"), int(Layer.VERBS))
    ).to_pylist()
    return chosen
