"""The program verbs_pair.c on two nodes, and what it printed: the judge of its trace."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sigmatrace.trace_format import Op
from sigmatrace.validate.compare import OP_OF, Request
from sigmatrace.validate.wire import KIND_OF
from tests.rigs.node import Result
from tests.rigs.programs import Ran
from tests.rigs.rig import Rig
from tests.rigs.traced import Traced

SOURCE = Path(__file__).with_name("verbs_pair.c")
GRH_BYTES = 40
KINDS = {**KIND_OF, 7: "INVALIDATE", 8: "BIND"}
"""As ``KIND_OF``, with what is on no wire."""
OPS = {**OP_OF, "INVALIDATE": Op.INVALIDATE, "BIND": Op.BIND}
LIFE_PSNS = 100_000
"""Sequence numbers of a connection; those of the next one on the queue pair are beyond."""


class Sent(NamedTuple):
    """A request that the provider accepted."""

    peer: int
    wr_id: int
    opcode: int
    size_bytes: int
    address: int
    rkey: int
    immediate: int
    signaled: int
    sges: int

    @property
    def op(self) -> int:
        """What a trace calls it."""
        return OPS[self.kind]

    @property
    def kind(self) -> str:
        """What the wire calls it."""
        return KINDS[self.opcode]

    @property
    def told(self) -> Request:
        """As a message of the wire is told."""
        return Request(self.kind, self.size_bytes, self.address, self.rkey, self.immediate)


class Completed(NamedTuple):
    """A completion as it was polled."""

    receive: int
    wr_id: int
    status: int
    opcode: int
    size_bytes: int
    immediate: int


@dataclass
class Connection:
    """What the program said of a queue pair, from its connection to its end or reset.

    Attributes:
        phase: Of the program.
        sent: Requests, in order.
        completed: Completions, in order.
        receives: Posted to its own queue.
    """

    phase: str
    sent: list[Sent] = field(default_factory=list)
    completed: list[Completed] = field(default_factory=list)
    receives: int = 0

    @property
    def shares_receives(self) -> bool:
        """Whether it takes receives of a shared queue (a server that has posted none itself)."""
        return self.phase == "shared" and not self.sent

    def completions(self, *, receive: bool) -> list[Completed]:
        """Those of one queue, in order."""
        return [one for one in self.completed if one.receive == receive]

    def arrivals(self) -> list[int]:
        """Sizes of what was received, in order; a datagram's without its global route header."""
        header = GRH_BYTES if self.phase == "datagrams" else 0
        return [
            one.size_bytes - header for one in self.completions(receive=True) if one.status == 0
        ]


Key = tuple[int, int, int]
"""Node, number of the queue pair there, and how often it was connected before."""
Said = dict[Key, Connection]


def compiled(rig: Rig) -> list[str]:
    """The program in the share, as the begin of a command line."""
    target = rig.share / "verbs_pair"
    if not target.exists():
        flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(
            [shutil.which("cc") or "gcc", *flags, str(SOURCE), "-o", str(target), "-libverbs"],
            check=True,
        )
    return ["/share/verbs_pair"]


def said(ran: Ran) -> Said:
    """What both programs printed."""
    found: Said = {}
    for node, result in enumerate((ran.server, ran.client)):
        for what, phase, qpn, life, numbers in _lines(result):
            one = found.setdefault((node, qpn, life), Connection(phase))
            if what == "sent":
                one.sent.append(Sent(*numbers))
            elif what == "wc":
                one.completed.append(Completed(*numbers))
            elif what == "receives":
                one.receives += numbers[0]
    return found


def _lines(result: Result) -> Iterator[tuple[str, str, int, int, list[int]]]:
    for line in result.stdout.splitlines():
        if line.startswith("polls "):
            continue
        what, phase, *numbers = line.split()
        qpn, life, *rest = map(int, numbers)
        yield what, phase, qpn, life, rest


def polls(result: Result) -> tuple[int, int]:
    """How often a program polled, and how often in vain."""
    (line,) = [one for one in result.stdout.splitlines() if one.startswith("polls ")]
    total, empty = map(int, line.split()[1:])
    return total, empty


def phase(all_said: Said, name: str, node: int) -> list[Connection]:
    """A node's connections of a phase."""
    return [one for (where, _, _), one in all_said.items() if (one.phase, where) == (name, node)]


class Trace:
    """The trace of the program, by connection."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        traced.sql.execute(
            """create view owns as
            select e.proc, e.object, cast(substr(p.host, 5) as int) as node, e.life,
                cast('0x' || split_part(e.local, ':', 3) as int) as qpn
            from endpoints e join processes p on p.proc = e.proc
            where e.type = 'ib_qp' and e.local <> ''"""
        )

    def _by_connection(self, query: str) -> dict[Key, list[tuple[int, ...]]]:
        found = defaultdict(list)
        for node, qpn, life, *rest in self._traced.rows(query):
            found[node, qpn, life].append(tuple(rest))
        return dict(found)

    def operations(self) -> dict[Key, list[tuple[int, ...]]]:
        """(position, op, bytes, signaled) of what was sent, in the order of the send queue."""
        return self._by_connection(
            """select w.node, w.qpn, w.life, o.aux, o.op, o.size_bytes, (o.flags & 64) >> 6
            from ops o join channels c on c.channel = o.channel
            join owns w on w.proc = c.proc and w.object = c.object
            where o.op <> 2 order by o.aux"""
        )

    def arrivals(self) -> dict[Key, list[tuple[int, ...]]]:
        """(position, bytes) of what was received, in the order of the receive queue."""
        return self._by_connection(
            """select w.node, w.qpn, w.life, o.aux, o.size_bytes
            from ops o join channels c on c.channel = o.channel
            join owns w on w.proc = c.proc and w.object = c.object
            where o.op = 2 order by o.aux"""
        )

    def requests(self) -> dict[Key, list[tuple[int, ...]]]:
        """(position, wr_id, opcode, bytes, address, rkey, immediate, signaled, elements)."""
        return self._by_connection(
            """select w.node, w.qpn, w.life, r.position, r.wr_id, r.opcode, r.size_bytes,
                r.raddr, r.rkey, r.imm, (r.flags & 2) >> 1, r.sges
            from requests r join owns w on w.proc = r.proc and w.object = r.object
            where r.queue = 1 order by r.position"""
        )

    def retired(self) -> dict[Key, int]:
        """How many requests of the send queue are known to be done."""
        found = self._by_connection(
            """select w.node, w.qpn, w.life, q.retired
            from queues q join owns w on w.proc = q.proc and w.object = q.object
            where q.queue = 1"""
        )
        return {key: number for key, [(number,)] in found.items()}

    def receives(self) -> dict[Key, list[tuple[int, ...]]]:
        """(count) of receives posted to the connection's own queue."""
        return self._by_connection(
            """select w.node, w.qpn, w.life, count(*)
            from requests r join owns w on w.proc = r.proc and w.object = r.object
            where r.queue = 2 group by all"""
        )

    def completions(self, *, receive: bool) -> dict[Key, list[tuple[int, ...]]]:
        """`Completed`'s fields of one queue, in the order of its positions where it has some."""
        opcode = "case when c.status = 0 then c.opcode else 0 end"
        return self._by_connection(
            f"""select w.node, w.qpn, w.life, cast(c.queue <> 1 as int), c.wr_id, c.status,
                {opcode}, c.size_bytes, c.imm
            from cqes c join owns w on w.proc = c.proc and w.object = c.object
            where (c.queue <> 1) = {receive} order by c.position, c.t_ns"""
        )

    def aggregates(self) -> dict[Key, list[tuple[int, ...]]]:
        """(op, count, bytes) of mode ``aggregate``."""
        return self._by_connection(
            """select w.node, w.qpn, w.life, a.op, cast(sum(a.count) as bigint),
                cast(sum(a.size_bytes) as bigint)
            from aggregates a join channels c on c.channel = a.channel
            join owns w on w.proc = c.proc and w.object = c.object
            where a.count > 0 group by all order by a.op"""
        )
