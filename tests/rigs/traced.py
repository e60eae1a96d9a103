"""Traced programs on the rig: what the trace says, in the terms of the wire."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb

from sigmatrace import api
from sigmatrace.capture.libs import library
from sigmatrace.schema import Op
from sigmatrace.validate.pcap import Message
from tests.rigs.programs import PORT, Ran, run_pair
from tests.rigs.rig import Rig

OP_OF = {
    **dict.fromkeys(("SEND", "SEND_IMM", "SEND_INV"), Op.SEND),
    **{"WRITE": Op.PUT, "WRITE_IMM": Op.PUT_DATA, "READ": Op.GET},
    **dict.fromkeys(("COMPARE_SWAP", "FETCH_ADD"), Op.ATOMIC_FETCH),
}
"""What a message on the wire is in a trace."""
KIND_OF = ("WRITE", "WRITE_IMM", "SEND", "SEND_IMM", "READ", "COMPARE_SWAP", "FETCH_ADD")
"""``enum ibv_wr_opcode`` as the wire names it."""
CM_QPN = 1
Amount = tuple[int, int]
Flows = dict[tuple[int, int], dict[Op, Amount]]


@dataclass(frozen=True)
class Traced:
    """A pair of programs that ran traced.

    Attributes:
        ran: The programs and the wire.
        mode: Of the capture.
        result: Of the pipeline.
        sql: Its Parquet tables as views, and ``peers`` (proc, object, node, qpn of the other end).
    """

    ran: Ran
    mode: str
    result: api.Result
    sql: duckdb.DuckDBPyConnection

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.sql.execute(query).fetchall()

    @property
    def stage(self) -> dict[str, Any]:
        """The stages' part of the ledger."""
        return self.result.ledger["stages"]

    @cached_property
    def operations(self) -> Flows:
        """By sending node and receiving queue pair, operations with their count and bytes."""
        found: Flows = defaultdict(dict)
        query = f"""select p.node, p.qpn, o.op, count(*), sum(o.size_bytes) from ops o
            join channels c on c.channel = o.channel
            join peers p on p.proc = c.proc and p.object = c.object and p.peer = c.peer
            where o.op <> {Op.RECV} group by all"""
        for node, qpn, op, count, size in self.rows(query):
            found[node, qpn][Op(op)] = (count, int(size))
        return dict(found)

    @cached_property
    def wire(self) -> Flows:
        """The same, as the packets say."""
        found: Flows = defaultdict(dict)
        nodes = {node.address: node.number for node in self.ran.rig.nodes}
        for flow in self.ran.wire.flows:
            amounts: Counter[tuple[Op, int]] = Counter()
            for message in flow.messages:
                amounts[OP_OF[message.kind], 0] += 1
                amounts[OP_OF[message.kind], 1] += message.length
            if amounts and flow.qpn != CM_QPN:
                to = found[nodes[flow.source], flow.qpn]  # of several senders of datagrams, too
                for op in {op for op, _ in amounts}:
                    count, size = to.get(op, (0, 0))
                    to[op] = (count + amounts[op, 0], size + amounts[op, 1])
        return dict(found)

    def requests(self, node: int, qpn: int) -> list[tuple[Any, ...]]:
        """(kind, bytes, address, rkey, immediate) of each request to a queue pair, in order."""
        query = f"""select r.opcode, r.size_bytes, r.raddr, r.rkey, r.imm from requests r
            join peers p on p.proc = r.proc and p.object = r.object and p.peer = p.object
            where r.queue = 1 and p.node = {node} and p.qpn = {qpn} order by r.object, r.position"""
        return [
            (KIND_OF[opcode], size, raddr, rkey, imm)
            for opcode, size, raddr, rkey, imm in self.rows(query)
        ]


def told(message: Message) -> tuple[Any, ...]:
    """A message of the wire as ``Traced.requests`` tells it."""
    address, rkey, imm = message.address or 0, message.rkey or 0, message.immediate or 0
    return (message.kind, message.length, address, rkey, imm)


def run_traced(
    rig: Rig,
    folder: Path,
    mode: str,
    server: Sequence[str],
    client: Sequence[str] | None = None,
    *,
    port: int = PORT,
    layers: str = "verbs",
    **more: Any,
) -> Traced:
    """Runs a pair of programs traced, and correlates what they left; any loss is an error."""
    run = rig.share / folder.name

    def fresh() -> None:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()

    env = environment(folder, mode, layers)
    ran = run_pair(rig, folder, server, client, port=port, env=env, before=fresh, **more)
    return correlated(ran, folder, mode, strict=True)


def environment(folder: Path, mode: str, layers: str = "verbs") -> dict[str, str]:
    """What a guest's program is traced by, into a folder of the share named like `folder`."""
    return {
        "LD_PRELOAD": ":".join(str(library(name)) for name in ("core", "verbs")),
        "SIGMATRACE_OUT": f"/share/{folder.name}",
        "SIGMATRACE_MODE": mode,
        "SIGMATRACE_LAYERS": layers,
    }


def correlated(ran: Ran, folder: Path, mode: str, *, strict: bool) -> Traced:
    """Runs the pipeline over what programs left."""
    out = folder / "out"
    run = ran.rig.share / folder.name
    result = api.run(run, export=["parquet"], out=out, strict=strict)
    return Traced(ran, mode, result, _views(out / "parquet"))


def _views(parquet: Path) -> duckdb.DuckDBPyConnection:
    sql = duckdb.connect()
    for path in sorted(parquet.iterdir()):
        files = f"{path}/*.parquet" if path.is_dir() else str(path)
        sql.execute(f"create view {path.stem} as select * from read_parquet('{files}')")
    sql.execute(
        """create view peers as
        select e.proc, e.object, cast(substr(p.host, 5) as int) as node,
            coalesce(a.addr, e.object) as peer,
            cast('0x' || split_part(coalesce(a.name, e.peer), ':', 3) as int) as qpn
        from endpoints e join processes p on p.proc = e.proc
        left join addresses a on a.proc = e.proc and a.av = e.object
        where e.type = 'ib_qp' and (a.name is not null or e.peer <> '')"""
    )
    return sql
