"""Step: a breadth-first search by persistent kernels, judged from the rank files alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sigmatrace.trace_format import Op
from tests.rigs.mlx5 import bfs_levels
from tests.rigs.mlx5.bfs import found_by, rmat
from tests.rigs.mlx5.bfs_levels import COUNTED, Levels, Posted, Way
from tests.rigs.mlx5.gpu import judge
from tests.rigs.mlx5.gpu.judge import AGAIN, DOORBELL, REQUEST, Traced, need
from tests.rigs.mlx5.gpu.runner import Runner

_OPS = {0: Op.PUT, 6: Op.ATOMIC_FETCH}
"""By ``enum ibv_wr_opcode`` of the requests that gpu_bfs makes."""


@dataclass(frozen=True)
class Search:
    """What is searched, and how.

    Attributes:
        scale: The graph has ``2**scale`` vertices.
        ranks: 2 to 4 processes.
        options: Of gpu_bfs. One thread a rank: each doorbell is waited for, so none merges.
    """

    scale: int
    ranks: int
    options: tuple[str, ...] = ("threads=1",)

    @property
    def name(self) -> str:
        """For the verdict."""
        words = ["BFS", f"scale {self.scale},", f"{self.ranks} processes,", *self.options]
        return " ".join(words)

    @property
    def alone(self) -> bool:
        """Whether one thread a rank does everything."""
        return self.options == ("threads=1",)


def _of_rank(rank: int, traced: Traced, places: dict[int, int]) -> Iterator[tuple[Posted, int]]:
    """All operations of one rank, each with its barrier's address."""
    requests = traced.rank.records(REQUEST)
    for qp, told in traced.rank.objects_of("mlx5_qp").items():
        own = np.sort(requests[requests["object"] == qp], order="position")
        atomics = own[own["opcode"] == 6]
        word, level = int(atomics["raddr"][-1]) if len(atomics) else 0, 0
        for request in own:
            op, raddr = _OPS[int(request["opcode"])], int(request["raddr"])
            size, t_tsc = int(request["size_bytes"]), int(request["t_tsc"])
            yield Posted(level, rank, places[told["dlid"]], op, raddr, size, t_tsc), word
            level += raddr == word


def _rung(rank: int, traced: Traced, places: dict[int, int]) -> Iterator[Way]:
    """Of each doorbell the level of its last operation; repetitions are left out."""
    requests, doorbells = traced.rank.records(REQUEST), traced.rank.records(DOORBELL)
    doorbells = doorbells[doorbells["flags"] & np.uint32(AGAIN) == 0]
    for qp, told in traced.rank.objects_of("mlx5_qp").items():
        own = np.sort(requests[requests["object"] == qp], order="position")
        atomics = own[own["opcode"] == 6]
        if not len(atomics):
            continue
        at_barrier = own["position"][own["raddr"] == atomics["raddr"][-1]]
        last = doorbells["index"][doorbells["qp"] == qp] - np.uint64(1)
        for level in np.searchsorted(at_barrier, last).tolist():
            yield level, rank, places[told["dlid"]]


def levels_of(found: Sequence[Traced]) -> Levels:
    """A search as its rank files tell it.

    Args:
        found: Of each rank, in their order; traced in mode `full`.
    """
    places = {
        qp["slid"]: rank
        for rank, traced in enumerate(found)
        for qp in traced.rank.objects_of("mlx5_qp").values()
    }
    rows = [row for rank, traced in enumerate(found) for row in _of_rank(rank, traced, places)]
    rung = Counter(way for rank, traced in enumerate(found) for way in _rung(rank, traced, places))
    words = sorted({(posted.dst, word) for posted, word in rows})
    return Levels([traced.node.program for traced in found], [row for row, _ in rows], words, rung)


def _arrivals(levels: Levels, tsc_hz: int) -> str:
    """How far arrivals at barriers, after the level's first one, are from what the kernels say."""
    kernel_hz = tsc_hz if levels.programs[0]["clock"] == "tsc" else 1e9
    seen: dict[tuple[int, int], int] = {}
    for posted in levels.posted:
        if posted.raddr == levels.programs[posted.dst][COUNTED]:
            key = (posted.level, posted.src)
            seen[key] = min(seen.get(key, posted.t_tsc), posted.t_tsc)
    said = {
        (level, rank): min(peer["posted"][1] for peer in of["to"])
        for rank, program in enumerate(levels.programs)
        for level, of in enumerate(program["levels"])
    }
    apart = []
    for level in {level for level, _ in said}:
        ranks = [rank for at, rank in said if at == level]
        first_seen = min(seen[level, rank] for rank in ranks)
        first_said = min(said[level, rank] for rank in ranks)
        for rank in ranks:
            late_s = (seen[level, rank] - first_seen) / tsc_hz
            apart.append(abs(late_s - (said[level, rank] - first_said) / kernel_hz) * 1e6)
    p50, most = np.percentile(apart, (50, 100))
    return f"arrivals within p50 {p50:.0f} us, at most {most:.0f} us of the kernels' own times"


def run(runner: Runner, search: Search) -> str:
    """Searches, traced in full.

    Raises:
        WrongError: Distances, slots, traffic, doorbells or barriers are not as they should be.
    """
    graph = rmat(search.scale, degree=8, seed=4)
    path = runner.scratch / f"graph-{search.scale}"
    graph.write(path)
    options = (f"graph={path}", f"root={graph.hub}", *search.options)
    # The NIC does nothing before its doorbell, as is explained in test_bfs.py.
    with runner.traced(*options, ranks=search.ranks, program="bfs", MLX5EMU_REREAD="0") as found:
        for traced in found:
            judge.slot_by_slot(traced)
        programs = [traced.node.program for traced in found]
        distances = found_by(programs, found[0].node.out)
        levels = levels_of(found)
        wrong = bfs_levels.judge(levels, exact=search.alone)
        need(not wrong, "; ".join(line[:300] for line in wrong))
        arrivals = _arrivals(levels, found[0].rank.tsc_hz)
    need(distances == graph.distances(graph.hub), "distances are not those of a plain search")
    took_s = max(program["run_ns"] for program in programs) / 1e9
    rung, count = sum(levels.rung.values()), len(programs[0]["levels"])
    return (
        f"{graph.vertices} vertices in {count} levels in {took_s:.2f} s; {len(levels.posted)} "
        f"operations of {rung} doorbells, each level's as the kernels counted; {arrivals}"
    )
