"""What the program said that it posted, and the trace in the same terms."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from native_run import Result
from wqe_cases import WR

SEND, PUT, GET, FETCH, PUT_DATA, BIND, INVALIDATE, NOP = 1, 3, 4, 6, 10, 11, 12, 13
MSG, RMA = 1, 3
SIGNALED = 64


@dataclass(frozen=True)
class Posted:
    """One WQE."""

    object: int
    index: int
    slots: int
    opcode: int
    op: int
    size: int
    raddr: int
    rkey: int
    imm: int
    sges: int
    signaled: int
    qpn: int
    lid: int
    gid: int

    @property
    def message(self) -> bool:
        """Does it take its place among the messages?"""
        return self.op in (SEND, PUT_DATA)


@dataclass(frozen=True)
class Totals:
    """What the repeater says of a queue pair at its end."""

    doorbells: int
    slots: int
    invalid: int
    uncopied: int


class Run(Result):
    """A finished case."""

    def __init__(self, done: subprocess.CompletedProcess[str], out: Path) -> None:
        super().__init__(done, out)
        lines = [line.split() for line in self.stdout.splitlines()]
        self.posted = [Posted(*map(int, rest)) for what, *rest in lines if what == "wqe"]
        self.totals = {
            int(object_): Totals(*map(int, rest))
            for what, object_, *rest in lines
            if what == "totals"
        }
        self.nobody = [int(rest[0]) for what, *rest in lines if what == "nobody"]
        self.trace = self.rank()
        self.channels = {c["id"]: c for c in self.trace.records(2)}

    def lost(self) -> dict[str, int]:
        """What the trace says was lost."""
        assert self.trace.end is not None
        lost: dict[str, int] = self.trace.end["lost"]
        return lost

    def ops(self) -> dict[int, list[dict[str, Any]]]:
        """Operations by queue pair, in the order of the file."""
        found = defaultdict(list)
        for op in self.trace.records(1):
            found[self.channels[op["channel"]]["object"]].append(op)
        return found

    def doorbells(self) -> dict[int, list[dict[str, Any]]]:
        """Doorbells by queue pair; 0: nobody's."""
        found = defaultdict(list)
        for doorbell in self.trace.records(9):
            found[doorbell["qp"]].append(doorbell)
        return found

    def by_pair(self) -> dict[int, list[Posted]]:
        """What was posted, by queue pair."""
        found = defaultdict(list)
        for one in self.posted:
            found[one.object].append(one)
        return found


def same_operations(run: Run) -> None:
    """Each posted WQE is one operation, in order, with its size, flags, and channel."""
    ops = run.ops()
    for object_, posted in run.by_pair().items():
        assert [(op["op"], op["size_bytes"], op["flags"], op["aux"]) for op in ops[object_]] == [
            (one.op, one.size, SIGNALED * one.signaled, one.index) for one in posted
        ]
        ordinals: dict[int, int] = defaultdict(int)
        for op, one in zip(ops[object_], posted, strict=True):
            channel = run.channels[op["channel"]]
            assert (channel["kind"], channel["dir"], channel["layer"]) == (
                MSG if one.message else RMA,
                1,
                5,
            )
            assert op["ordinal"] == ordinals[channel["id"]]
            ordinals[channel["id"]] += 1
    assert sum(map(len, ops.values())) == len(run.posted)


def same_requests(run: Run) -> None:
    """So is each request; it names the peer of its operation's channel, if that is not fixed."""
    found = defaultdict(list)
    ways = {}
    for object_, ops in run.ops().items():
        peers = [(op["aux"], run.channels[op["channel"]]["peer"]) for op in ops]
        ways[object_] = {at: 0 if peer == object_ else peer for at, peer in peers}
    for r in run.trace.records(7):
        found[r["object"]].append(
            tuple(r[k] for k in ("position", "opcode", "size_bytes", "raddr", "rkey", "imm"))
            + tuple(r[k] for k in ("sges", "flags", "queue", "wr_id"))
        )
    for object_, posted in run.by_pair().items():
        assert found[object_] == [
            (
                *(one.index, WR[one.opcode], one.size, one.raddr, one.rkey, one.imm),
                *(one.sges, 2 * one.signaled, 1, ways[object_][one.index]),
            )
            for one in posted
            if one.opcode in WR
        ]


def whole_slots(run: Run) -> None:
    """Every slot is there once, with the index that its WQE tells."""
    found = defaultdict(list)
    for slot in run.trace.records(10):
        found[slot["qp"]].append((slot["index"], slot["kind"]))
        if slot["kind"] == 1:
            first = slot["w0"].to_bytes(8, "little")
            assert int.from_bytes(first[1:3], "big") == slot["index"] % 65536
    for object_, posted in run.by_pair().items():
        assert found[object_] == [
            (one.index + i, 2 if i else 1) for one in posted for i in range(one.slots)
        ]


def consistent_doorbells(run: Run) -> None:
    """The indices of a queue pair's doorbells add up to what was posted."""
    doorbells = run.doorbells()
    for object_, posted in run.by_pair().items():
        end = posted[-1].index + posted[-1].slots
        at = 0
        for doorbell in doorbells[object_]:
            at += doorbell["slots"]
            assert doorbell["index"] == at
        assert at == end
        if object_ in run.totals:
            assert run.totals[object_].doorbells == len(doorbells[object_])


def all_is_there(run: Run) -> None:
    """Nothing was lost, and the trace says what the program did."""
    same_operations(run)
    same_requests(run)
    whole_slots(run)
    consistent_doorbells(run)
    for object_, totals in run.totals.items():
        slots = sum(one.slots for one in run.by_pair()[object_])
        assert (totals.slots, totals.invalid, totals.uncopied) == (slots, 0, 0)
    assert run.lost() == {}
