"""Completions that are found in memory are those that the emulated NIC wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plain_reader import Rank, read_all

from tests.rigs.mlx5.emulated import ALL, DIALECTS, Emulated, Node, Wqe

REQUEST, CQE = 7, 8
SUCCESS, FLUSHED, REMOTE_ACCESS = 0, 5, 10
STATUS = {0: SUCCESS, 0x05: FLUSHED, 0x13: REMOTE_ACCESS}
AT_MOST = 128
SIZES = ("ops=150", "blocks=4", "threads=2", "qps=2", "slots=256")


def run(
    emulated: Emulated, shim: Path, tmp_path: Path, *options: str, ranks: int = 1, **env: str
) -> list[tuple[Node, Rank]]:
    """Runs gpu_pair traced."""
    out = tmp_path / "trace"
    more = {"SIGMATRACE_OUT": str(out), "SIGMATRACE_LAYERS": "mlx5dv,cuda", "LD_PRELOAD": str(shim)}
    more |= {"SIGMATRACE_MODE": "full", **env}
    nodes = emulated.pair(tmp_path / "run", *options, ranks=ranks, **more)
    found = {rank.header["pid"]: rank for rank in read_all(out)}
    return [(node, found[node.pid]) for node in nodes]


def lives(node: Node) -> dict[int, list[dict[int, Wqe]]]:
    """The NIC's WQEs by queue pair number, life, and slot counted since the life began."""
    found: dict[int, list[dict[int, Wqe]]] = {}
    at: dict[int, int] = {}
    for wqe in node.wqes:
        of_qp = found.setdefault(wqe.qpn, [])
        if not of_qp or (wqe.index == 0 and at[wqe.qpn] % 65536):
            of_qp.append({})
            at[wqe.qpn] = 0
        of_qp[-1][at[wqe.qpn]] = wqe
        at[wqe.qpn] += wqe.slots
    return found


def objects(rank: Rank, kind: str) -> dict[int, dict[str, Any]]:
    """All fields of each object of a type."""
    found: dict[int, dict[str, Any]] = {}
    for item in rank.objects_of(kind):
        found.setdefault(item["id"], {}).update(item)
    return found


def check(node: Node, rank: Rank, *, whole: bool = True) -> dict[int, list[dict[str, Any]]]:
    """Each completion is that of a WQE which the NIC executed; the last one is that of the last.

    Args:
        node: One process.
        rank: Its trace.
        whole: Whether the program waited for all.

    Returns:
        The completions by `mlx5_qp` object.
    """
    executed = lives(node)
    qps = {k: o for k, o in objects(rank, "mlx5_qp").items() if o.get("completions")}
    seen: dict[int, list[dict[str, Any]]] = {}
    for cqe in rank.records(CQE):
        seen.setdefault(cqe["object"], []).append(cqe)
    of_qpn: dict[int, int] = {}
    for key in sorted(qps):
        qpn = qps[key]["qpn"]
        if qpn not in executed:  # a target's
            assert key not in seen
            continue
        life = of_qpn[qpn] = of_qpn.get(qpn, -1) + 1
        wqes = executed[qpn][life]
        until = 0
        for cqe in seen[key]:
            wqe = wqes[cqe["position"]]
            assert (cqe["status"], cqe["flags"], cqe["queue"]) == (
                *(STATUS[wqe.syndrome], AT_MOST),
                1,
            )
            assert cqe["imm"] & 0xFF == wqe.syndrome
            assert cqe["first"] == until
            assert cqe["posted_tsc"] < cqe["t_tsc"]
            until = cqe["position"] + 1
        assert not whole or seen[key][-1]["position"] == max(wqes)
    assert of_qpn.keys() == executed.keys()
    assert {qpn: life + 1 for qpn, life in of_qpn.items()} == {
        qpn: len(found) for qpn, found in executed.items()
    }
    return seen


@pytest.mark.parametrize("memory", ["gpu", "dmabuf", "host"])
@pytest.mark.parametrize("dialect", ["nvshmem", "doca"])
def test_the_last_completion_is_the_nics(
    emulated: Emulated, shim: Path, tmp_path: Path, dialect: str, memory: str
) -> None:
    options = (ALL, f"dialect={dialect}", f"uar={DIALECTS[dialect]}", f"memory={memory}", *SIZES)
    ((node, rank),) = run(emulated, shim, tmp_path, *options)
    assert node.returncode == 0, node.stderr
    assert len(check(node, rank)) == 2
    assert not any("completion" in reason for reason in rank.end["lost"])


def test_each_one_that_is_waited_for(emulated: Emulated, shim: Path, tmp_path: Path) -> None:
    """Of slow requests, one at a time, each completion is seen."""
    options = ("mode=time", "mix=read", "ops=20", "warmup=0")
    delay_ns = 10_000_000
    ((node, rank),) = run(emulated, shim, tmp_path, *options, MLX5EMU_DELAY_NS=str(delay_ns))
    (cqes,) = check(node, rank).values()
    assert [cqe["position"] for cqe in cqes] == list(range(20))
    tsc = rank.header["tsc_hz"] / 1e9
    assert min(cqe["t_tsc"] - cqe["posted_tsc"] for cqe in cqes) > 0.9 * delay_ns * tsc


def test_two_processes(emulated: Emulated, shim: Path, tmp_path: Path) -> None:
    for node, rank in run(emulated, shim, tmp_path, ALL, *SIZES, ranks=2):
        assert node.returncode == 0, node.stderr
        check(node, rank)


@pytest.mark.parametrize("options", [("lives=3",), ("rounds=3",), ("dci=1",)], ids=" ".join)
def test_lives_and_numbers_that_come_again(
    emulated: Emulated, shim: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    ((node, rank),) = run(emulated, shim, tmp_path, ALL, "ops=70", *options)
    assert node.returncode == 0, node.stderr
    check(node, rank)


def test_an_error_and_what_is_flushed(emulated: Emulated, shim: Path, tmp_path: Path) -> None:
    options = ("mix=write", "ops=1000", "fault=remote_key", "slots=64")
    ((node, rank),) = run(emulated, shim, tmp_path, *options)
    assert node.wqes[0].syndrome == 0x13
    (cqes,) = check(node, rank, whole=False).values()  # the first error ends the program
    assert {cqe["status"] for cqe in cqes} <= {FLUSHED, REMOTE_ACCESS}
    assert [cqe["status"] == REMOTE_ACCESS for cqe in cqes] == [
        cqe["position"] == 0 for cqe in cqes
    ]


def test_queues_of_libmlx5_are_not_visible(emulated: Emulated, shim: Path, tmp_path: Path) -> None:
    options = (ALL, "make=verbs", "dialect=rdma", *SIZES)
    ((node, rank),) = run(emulated, shim, tmp_path, *options)
    assert node.returncode == 0, node.stderr
    assert not rank.records(CQE)
    qps = objects(rank, "mlx5_qp").values()
    assert not any(o.get("completions") for o in qps if o["qpn"] in node.posted)


def test_a_queue_says_what_it_is(emulated: Emulated, shim: Path, tmp_path: Path) -> None:
    ((_, rank),) = run(emulated, shim, tmp_path, "mix=write", "ops=20", "qps=2", "blocks=2")
    queues = objects(rank, "mlx5_cq").values()
    collapsed = [queue for queue in queues if queue["collapsed"]]
    assert [queue["umem_offset"] for queue in collapsed] == [0, 64]
    assert len({queue["umem"] for queue in collapsed}) == 1
    assert len(queues) == 4
    for queue in queues:
        assert (queue["cqe_bytes"], queue["overrun_ignored"]) == (64, 1)
        assert "closed_tsc" in queue
