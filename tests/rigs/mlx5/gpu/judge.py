"""Whether a trace holds what the emulated NIC executed, and what the GPU counted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.rigs.mlx5.emulated import Node, Wqe
from tests.rigs.mlx5.gpu.trace import Rank, Records

OPERATION, REQUEST, DOORBELL, SLOT, KERNEL = 1, 7, 9, 10, 11
FIRST, INVALID = 1, 3
DUMP = 0x23
SYNTHESIZED, AGAIN, LATE, NOT_READ = 1, 2, 32, 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class WrongError(Exception):
    """A trace, a NIC's account or a program's is not as it should be."""


def need(right: object, what: str) -> None:
    """Raises `WrongError` unless it is so."""
    if not right:
        raise WrongError(what)


@dataclass(frozen=True)
class Traced:
    """One process: what the program and the NIC say, and the trace."""

    node: Node
    rank: Rank

    @property
    def qpns(self) -> dict[int, int]:
        """Number of each `mlx5_qp` object."""
        return {i: o["qpn"] for i, o in self.rank.objects_of("mlx5_qp").items() if "qpn" in o}

    @property
    def uncopied(self) -> int:
        """Slots of which the trace says that they were not read before the queue pair's end."""
        objects = self.rank.objects_of("mlx5_qp").values()
        return sum(o.get("uncopied_slots", 0) for o in objects)

    @property
    def invalid(self) -> int:
        """Slots that were overwritten before they were read."""
        return int(np.count_nonzero(self.rank.records(SLOT)["kind"] == INVALID))

    @property
    def missing(self) -> int:
        """Slots of which the trace does not tell what they held."""
        return self.node.total("slots") - len(self.rank.records(SLOT)) + self.invalid


def went_well(node: Node) -> None:
    """The program's memory is right, and its account is the NIC's."""
    need(node.returncode == 0, f"gpu_pair ended with {node.returncode}: {node.stderr[-600:]}")
    need(node.posted == node.executed, "GPU and NIC count different operations")
    need(node.nic["bad_doorbells"] == 0, "the NIC got doorbells of no queue pair")
    need(node.total("errors") == 0, "the NIC failed operations")


def _control(slots: Records) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Index, opcode and queue pair number that the slots themselves say."""
    raw = np.ascontiguousarray(slots["w0"]).view(np.uint8).reshape(-1, 8).astype(np.uint64)
    eight, sixteen = np.uint64(8), np.uint64(16)
    index = raw[:, 1] << eight | raw[:, 2]
    return index, raw[:, 3], raw[:, 4] << sixteen | raw[:, 5] << eight | raw[:, 6]


def _lives(traced: Traced) -> Iterator[tuple[int, list[Wqe]]]:
    """What the NIC executed, life by life: the queue pair's object, and its WQEs.

    A number is that of several objects when its queue pair was reset, or made anew; the lives that
    had doorbells are those of the objects that had some, in their order.
    """
    objects: dict[int, list[int]] = {}
    for qp in sorted(set(traced.rank.records(DOORBELL)["qp"].tolist())):
        need(qp in traced.qpns, "doorbells of no queue pair")
        objects.setdefault(traced.qpns[qp], []).append(qp)
    journal: dict[int, deque[Wqe]] = {}
    for wqe in traced.node.wqes:
        journal.setdefault(wqe.qpn, deque()).append(wqe)
    for life in traced.node.nic["lives"]:
        if not life["doorbells"] + life["from_record"]:
            continue
        own, qpn = journal.get(life["qpn"], deque[Wqe]()), life["qpn"]
        need(objects.get(qpn), f"a life of queue pair {qpn} that is not in the trace")
        wqes, left = list[Wqe](), life["slots"]
        while left > 0:
            wqes.append(own.popleft())
            left -= wqes[-1].slots
        yield objects[qpn].pop(0), wqes
    need(not any(objects.values()), "lives in the trace that the NIC does not know")


def _executed(traced: Traced) -> dict[tuple[int, int], Wqe]:
    """The NIC's WQEs by queue pair object and slot, counted since its life began."""
    found = {}
    for qp, wqes in _lives(traced):
        at = 0
        for wqe in wqes:
            found[qp, at] = wqe
            at += wqe.slots
    return found


Control = tuple[int, int, int]
"""Index, opcode and queue pair number."""


def _firsts(traced: Traced) -> Iterator[tuple[tuple[int, int], Control]]:
    """Queue pair object and index of each WQE in the trace, and what its own bytes say."""
    slots = traced.rank.records(SLOT)
    firsts = slots[slots["kind"] == FIRST]
    said = zip(*(column.tolist() for column in _control(firsts)), strict=True)
    places = zip(firsts["qp"].tolist(), firsts["index"].tolist(), strict=True)
    yield from zip(places, said, strict=True)


def _seen(traced: Traced, executed: dict[tuple[int, int], Wqe]) -> Iterator[Wqe]:
    """What was executed of each WQE in the trace; they must be the same."""
    for (qp, index), control in _firsts(traced):
        wqe = executed.get((qp, index))
        need(wqe, f"slot {index} of queue pair {traced.qpns[qp]} was never executed")
        assert wqe is not None
        need(control == (wqe.index, wqe.opcode, wqe.qpn), f"slot {index} is another WQE's")
        yield wqe


def slot_by_slot(traced: Traced, *, whole: bool = True) -> None:
    """Each slot is accounted for, and each WQE in the trace is the one that was executed.

    Args:
        traced: One process whose NIC kept a journal.
        whole: Whether nothing may have been lost.

    Raises:
        WrongError: It is not so.
    """
    node, rank = traced.node, traced.rank
    went_well(node)
    need(node.journal == node.executed, "the NIC's journal is not what it counts")
    need(rank.end is not None, "no end of the trace")
    executed = _executed(traced)
    told = len(rank.records(SLOT)) + traced.uncopied
    need(told == node.total("slots"), f"{told} slots told of {node.total('slots')}")
    seen = list(_seen(traced, executed))
    if whole:
        need(not traced.missing, f"{traced.missing} slots missing")
        need(len(seen) == len(executed), f"{len(seen)} WQEs of {len(executed)}")
        need(not rank.lost, f"lost: {dict(rank.lost)}")
    operations, requests = rank.records(OPERATION), rank.records(REQUEST)
    need(len(operations) == len(seen), f"{len(operations)} operations of {len(seen)} WQEs")
    data = sum(wqe.size_bytes for wqe in seen if wqe.opcode != DUMP)
    need(int(operations["size_bytes"].sum()) == data, "other bytes than were moved")
    requests = requests[requests["rkey"] != 0]
    qps = [traced.qpns[qp] for qp in requests["object"].tolist()]
    asked = sorted(zip(qps, requests["raddr"].tolist(), requests["rkey"].tolist(), strict=True))
    wanted = sorted((wqe.qpn, wqe.raddr, wqe.rkey) for wqe in seen if wqe.rkey)
    need(asked == wanted, "other remote addresses than were asked for")


def given_up(traced: Traced) -> int:
    """Of queue pairs that were destroyed while the NIC was at work: what the kernel had rung for.

    What the NIC did is in the trace, and of all else index, number and opcode are the kernel's.

    Returns:
        WQEs that the NIC did not come to.

    Raises:
        WrongError: It is not so, or the NIC had come to all.
    """
    node = traced.node
    need(node.returncode == 0, f"gpu_pair ended with {node.returncode}: {node.stderr[-600:]}")
    need(node.nic["bad_doorbells"] == 0, "the NIC got doorbells of no queue pair")
    executed, counted = _executed(traced), Counter[tuple[int, int]]()
    for (qp, index), control in _firsts(traced):
        wqe = executed.get((qp, index))
        if wqe is not None:
            need(control == (wqe.index, wqe.opcode, wqe.qpn), f"slot {index} is another WQE's")
        need(control[::2] == (index & 0xFFFF, traced.qpns[qp]), f"slot {index} is not its own")
        counted[control[2], control[1]] += 1
    posted = {
        (qpn, opcode): count for qpn, of in node.posted.items() for opcode, (count, _) in of.items()
    }
    slots = sum(qp["slots"] for qp in node.program["qps"])
    told = len(traced.rank.records(SLOT)) + traced.uncopied
    need(told == slots, f"{told} slots told of {slots} that the kernel filled")
    need(not traced.uncopied and not traced.invalid, "slots missing, and the ring was not reused")
    need(dict(counted) == posted, "other operations than the kernel posted")
    left = sum(posted.values()) - len(executed)
    need(left > 0, "the NIC had come to all of it: nothing was in flight")
    return left


def late(traced: Traced) -> int:
    """Doorbells that were forwarded though their slots had not been copied in time."""
    return int(np.count_nonzero(traced.rank.records(DOORBELL)["flags"] & np.uint32(LATE)))


def doorbells_alone(traced: Traced) -> int:
    """Order `off`: the trace says of every doorbell that its WQEs were not read.

    Returns:
        Slots that were announced: all.

    Raises:
        WrongError: It is not so.
    """
    went_well(traced.node)
    doorbells = traced.rank.records(DOORBELL)
    announcing = doorbells[doorbells["slots"] > 0]
    unread = announcing["flags"] & np.uint32(NOT_READ)
    need(bool(unread.all()), "doorbells whose WQEs were read")
    need(not len(traced.rank.records(SLOT)), "slots were read")
    announced, slots = int(doorbells["slots"].sum()), traced.node.total("slots")
    need(announced == slots, f"{announced} slots announced of {slots}")
    return announced


def doorbells_one_by_one(traced: Traced) -> int:
    """Each doorbell of the GPU is in the trace, and reached the NIC.

    Returns:
        Their number.
    """
    flags = traced.rank.records(DOORBELL)["flags"]
    own = int(np.count_nonzero(flags & np.uint32(SYNTHESIZED | AGAIN) == 0))
    rings: int = sum(qp["rings"] for found in traced.node.rounds for qp in found["qps"])
    need(own == rings, f"{own} doorbells traced of {rings} that the GPU rang")
    at_nic = traced.node.total("doorbells")
    # Repetitions that the NIC finds in one look are one to it.
    need(own <= at_nic <= len(flags), f"{len(flags)} doorbells traced, {at_nic} at the NIC")
    return rings


def forwarding(traced: Traced) -> str:
    """How long doorbells took from being seen to being forwarded."""
    ticks = traced.rank.records(DOORBELL)["delay_tsc"]
    p50, p99, most = np.percentile(ticks, (50, 99, 100)) * 1e9 / traced.rank.tsc_hz
    return f"seen to forwarded: p50 {p50:.0f} ns, p99 {p99:.0f} ns, at most {most / 1e3:.0f} us"


def counts(traced: Traced) -> None:
    """Operations and bytes of each queue pair are those that the NIC and the GPU counted."""
    went_well(traced.node)
    need(not traced.rank.lost, f"lost: {dict(traced.rank.lost)}")
    operations = traced.rank.records(OPERATION)
    wanted = [of for found in traced.node.executed.values() for of in found.values()]
    count, size = sum(of[0] for of in wanted), sum(of[1] for of in wanted)
    need(len(operations) == count, f"{len(operations)} operations of {count}")
    traced_bytes = int(operations["size_bytes"].sum())
    need(traced_bytes == size, f"{traced_bytes} bytes of {size}")


def inline_values(traced: Traced) -> None:
    """Of inline WRITEs, one thread on each queue pair: every slot holds the thread's next value."""
    slots = traced.rank.records(SLOT)
    need(len(slots) == traced.node.total("slots"), f"{traced.missing} slots missing")
    need(bool((slots["kind"] == FIRST).all()), "slots that are no WQE's first")
    thread_of = {qp["qpn"]: i for i, qp in enumerate(traced.node.program["qps"])}
    for qp, qpn in traced.qpns.items():
        if qpn not in thread_of:
            continue
        own = slots[slots["qp"] == qp]
        indices = np.arange(len(own), dtype=np.uint64)
        need(bool((own["index"] == indices).all()), "slots out of order")
        index, _, number = _control(own)
        need(bool((index == indices & np.uint64(0xFFFF)).all()), "another index in a slot")
        need(bool((number == qpn).all()), "another queue pair's number in a slot")
        rank_and_thread = np.uint64(traced.node.program["rank"] << 56 | thread_of[qpn] << 32)
        values = (rank_and_thread | indices) * _GOLDEN
        # Control and address segments are 32 bytes; 4 bytes of the inline one; then the value.
        low, high = own["w4"] >> np.uint64(32), own["w5"] << np.uint64(32)
        need(bool((low | high == values).all()), "another value in a slot")


def longest_pause_ms(traced: Traced) -> float:
    """The longest time between two doorbells of all."""
    times = np.sort(traced.rank.records(DOORBELL)["t_tsc"])
    return float(np.diff(times).max()) * 1e3 / traced.rank.tsc_hz


def kernels(traced: Traced, name: str, blocks: int, threads: int) -> str:
    """The kernel is in the trace, and all doorbells lie within its time.

    Returns:
        How far inside.
    """
    names = {i: item.get("name") for i, item in traced.rank.objects_of("name").items()}
    found = traced.rank.records(KERNEL)
    own = [kernel for kernel in found if names.get(int(kernel["name"])) == name]
    need(len(own) == 1, f"{len(own)} kernels {name} in the trace: {sorted(map(str, names))}")
    (kernel,) = own
    need((kernel["blocks"], kernel["threads"]) == (blocks, threads), "another shape of the kernel")
    times = traced.rank.records(DOORBELL)["t_tsc"].astype(np.int64)
    start, duration = int(kernel["t_tsc"]), int(kernel["duration_tsc"])
    before, after = int(times.min()) - start, start + duration - int(times.max())
    need(before >= 0 and after >= 0, f"doorbells outside of the kernel: {before}, {after} ticks")
    tick_us = 1e6 / traced.rank.tsc_hz
    return (
        f"{duration * tick_us / 1e3:.1f} ms; the first doorbell {before * tick_us:.1f} us after "
        f"its start, the last one {after * tick_us:.1f} us before its end"
    )
