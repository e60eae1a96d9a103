"""What is traced of GPU-initiated operations is what the emulated NIC executed, slot by slot."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from native_run import shim_in
from plain_reader import Rank, read_all

from tests.rigs.mlx5.emulated import ALL, DIALECTS, ROOMY, Emulated, Node, Wqe

SIZES = ("ops=150", "blocks=4", "threads=2", "qps=2")
OPERATION, REQUEST, DOORBELL, SLOT = 1, 7, 9, 10
FIRST, INVALID = 1, 3
DUMP = 0x23


@dataclass(frozen=True)
class Traced:
    """One process: what the program and the NIC say, and the trace."""

    node: Node
    rank: Rank

    @property
    def qpns(self) -> dict[int, int]:
        """Number of each `mlx5_qp` object."""
        return {o["id"]: o["qpn"] for o in self.rank.objects_of("mlx5_qp") if "qpn" in o}

    @property
    def uncopied(self) -> int:
        """Slots of which the trace says that they were not read before the queue pair's end."""
        return sum(o.get("uncopied_slots", 0) for o in self.rank.objects_of("mlx5_qp"))

    @property
    def executed(self) -> dict[tuple[int, int], Wqe]:
        """The NIC's WQEs by queue pair number and slot, counted since the queue pair was made."""
        slots: Counter[int] = Counter()
        found = {}
        for wqe in self.node.wqes:
            found[wqe.qpn, slots[wqe.qpn]] = wqe
            slots[wqe.qpn] += wqe.slots
        return found


def trace(
    emulated: Emulated, shim: Path, tmp_path: Path, *options: str, ranks: int = 1, **env: str
) -> list[Traced]:
    """Runs gpu_pair traced; all must go well for the program itself."""
    out = tmp_path / "trace"
    more = {"SIGMATRACE_OUT": str(out), "SIGMATRACE_LAYERS": "mlx5dv,cuda", **env}
    more = {"SIGMATRACE_MODE": "full", "LD_PRELOAD": str(shim), **more}
    nodes = emulated.pair(tmp_path / "run", *options, ranks=ranks, **more)
    found = {rank.header["pid"]: rank for rank in read_all(out)}
    for node in nodes:
        assert node.returncode == 0, node.stderr
        assert node.posted == node.executed == node.journal
        assert node.nic["bad_doorbells"] == 0
    return [Traced(node, found[node.pid]) for node in nodes]


def _ctrl(record: dict[str, Any]) -> tuple[int, int, int]:
    """Index, opcode and queue pair number that the slot itself says."""
    raw = record["w0"].to_bytes(8, "little")
    return int.from_bytes(raw[1:3], "big"), raw[3], int.from_bytes(raw[4:7], "big")


def judge(traced: Traced, *, whole: bool = True) -> None:
    """Each slot is accounted for, and each WQE in the trace is the one that was executed.

    Args:
        traced: One process.
        whole: Whether nothing may have been lost.
    """
    executed, rank = traced.executed, traced.rank
    slots = rank.records(SLOT)
    firsts = [record for record in slots if record["kind"] == FIRST]
    invalid = sum(record["kind"] == INVALID for record in slots)
    assert len(slots) + traced.uncopied == sum(wqe.slots for wqe in executed.values())
    assert invalid == 0 or not whole
    seen = []
    for record in firsts:
        wqe = executed[traced.qpns[record["qp"]], record["index"]]
        assert _ctrl(record) == (wqe.index, wqe.opcode, wqe.qpn)
        seen.append(wqe)
    assert not whole or (len(seen) == len(executed) and not traced.uncopied)
    operations = rank.records(OPERATION)
    assert len(operations) == len(seen)
    data = sum(wqe.size_bytes for wqe in seen if wqe.opcode != DUMP)
    assert sum(operation["size_bytes"] for operation in operations) == data
    asked = Counter(
        (traced.qpns[request["object"]], request["raddr"], request["rkey"])
        for request in rank.records(REQUEST)
        if request["rkey"]
    )
    assert asked == Counter((wqe.qpn, wqe.raddr, wqe.rkey) for wqe in seen if wqe.rkey)
    assert rank.end is not None


@pytest.mark.parametrize(("dialect", "uar"), DIALECTS.items())
def test_each_dialect(
    emulated: Emulated, shim: Path, tmp_path: Path, dialect: str, uar: str
) -> None:
    options = (ALL, f"dialect={dialect}", f"uar={uar}", *SIZES, ROOMY)
    for traced in trace(emulated, shim, tmp_path, *options):
        judge(traced)


@pytest.mark.parametrize(
    "options",
    [
        ("memory=dmabuf",),
        ("memory=host",),
        ("dci=1",),
        ("dci=1", "av=long"),
        ("receives=1",),
        ("group=16",),
        ("uar=shared",),
        ("uar=plain",),
        ("uar=plain", "dialect=doca"),
    ],
    ids=" ".join,
)
def test_each_way_of_setting_up(
    emulated: Emulated, shim: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    for traced in trace(emulated, shim, tmp_path, ALL, *SIZES, ROOMY, *options):
        judge(traced)


@pytest.mark.parametrize("order", ["forward-first", "copy-first", "sync"])
@pytest.mark.parametrize("slots", ["slots=32", "slots=256"])
def test_a_small_ring_loses_nothing_silently(
    emulated: Emulated, shim: Path, tmp_path: Path, order: str, slots: str
) -> None:
    options = (ALL, "ops=1000", slots)
    for traced in trace(emulated, shim, tmp_path, *options, SIGMATRACE_DOORBELL=order):
        judge(traced, whole=False)


@pytest.mark.parametrize("reread", ["0", "1"])
def test_a_nic_that_stands_still(
    emulated: Emulated, shim: Path, tmp_path: Path, reread: str
) -> None:
    """Its answer to a repeated doorbell may overtake what was forwarded; that is not silent."""
    options = (ALL, "ops=300", "slots=64", "qps=2", "blocks=2")
    found = trace(
        emulated,
        shim,
        tmp_path,
        *options,
        MLX5EMU_STALL_US="3000",
        MLX5EMU_STALL_EACH_US="3000",
        MLX5EMU_REREAD=reread,
    )
    for traced in found:
        judge(traced, whole=False)


def test_the_index_wraps(emulated: Emulated, shim: Path, tmp_path: Path) -> None:
    options = ("mix=inline", "ops=70000", "group=64", "slots=32768")
    for traced in trace(emulated, shim, tmp_path, *options):
        judge(traced, whole=False)


def test_two_processes(emulated: Emulated, shim: Path, tmp_path: Path) -> None:
    for traced in trace(emulated, shim, tmp_path, ALL, "ops=300", ROOMY, ranks=2):
        judge(traced)


def test_sends_of_two_processes(emulated: Emulated, shim: Path, tmp_path: Path) -> None:
    for traced in trace(emulated, shim, tmp_path, "mix=send,imm", "ops=100", ROOMY, ranks=2):
        judge(traced)


@pytest.mark.parametrize("dialect", ["rdma", "rocshmem"])
def test_queue_pairs_that_libmlx5_made(
    emulated: Emulated, shim: Path, tmp_path: Path, dialect: str
) -> None:
    """Their rings are read before they are freed; none is left to the NIC's own recovery."""
    options = (ALL, f"dialect={dialect}", "make=verbs", "qps=4", "blocks=4", "ops=200", ROOMY)
    env = {"MLX5EMU_RECOVER_US": "0", "MLX5EMU_REREAD": "0"}
    (traced,) = trace(emulated, shim, tmp_path, *options, **env)
    judge(traced)
    doorbells = traced.rank.records(DOORBELL)
    assert sum(record["slots"] for record in doorbells) == traced.node.total("slots")


@pytest.mark.parametrize("gpu_first", [True, False])
def test_beside_the_shim_of_layer_verbs(
    emulated: Emulated, shim: Path, tmp_path: Path, gpu_first: bool
) -> None:
    """Both see a queue pair's end where the GPU's stands first; nothing is done twice."""
    shims = [str(shim), str(shim_in(shim.parent, "verbs"))]
    options = (ALL, "dialect=rdma", "make=verbs", "qps=2", "blocks=2", "ops=100", ROOMY)
    more = {"SIGMATRACE_LAYERS": "verbs,gpu", "MLX5EMU_REREAD": "0"}
    more |= {"LD_PRELOAD": " ".join(shims if gpu_first else shims[::-1])}
    (traced,) = trace(emulated, shim, tmp_path, *options, **more)
    rank = traced.rank
    ends = [pair for pair in rank.objects_of("mlx5_qp") if pair.get("slots")]
    assert len([qp for qp in rank.objects_of("ib_qp") if "closed_tsc" in qp]) == 2
    assert len(ends) == (2 if gpu_first else 0)
    if gpu_first:
        assert sum(pair["slots"] for pair in ends) == traced.node.total("slots")


def test_doorbells_alone(emulated: Emulated, shim: Path, tmp_path: Path) -> None:
    options = (ALL, *SIZES)
    (traced,) = trace(emulated, shim, tmp_path, *options, SIGMATRACE_DOORBELL="off")
    assert not traced.rank.records(SLOT)
    doorbells = traced.rank.records(DOORBELL)
    assert sum(record["slots"] for record in doorbells) == traced.node.total("slots")


@pytest.mark.parametrize("memory", ["gpu", "dmabuf", "host"])
def test_as_on_a_real_gpu(emulated: Emulated, shim: Path, tmp_path: Path, memory: str) -> None:
    """Registers are ordinary memory to the driver, and the NIC needs it to reach the GPU's."""
    (traced,) = trace(
        emulated,
        shim,
        tmp_path,
        *(ALL, f"memory={memory}", *SIZES, ROOMY),
        LD_PRELOAD=f"{shim} {emulated.built.strip}",
        FAKE_CUDA_MMIO="0",
        MLX5EMU_COPIES="1",
    )
    judge(traced)
