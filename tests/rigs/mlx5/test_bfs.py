"""A breadth-first search of several processes: its levels and barriers, from the trace alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pytest

from sigmatrace import api
from tests.rigs.mlx5 import bfs_levels
from tests.rigs.mlx5.bfs import FAR, Graph, found_by, rmat
from tests.rigs.mlx5.bfs_levels import COUNTED, EXCHANGED, TAIL, Levels
from tests.rigs.mlx5.bfs_sql import documented_sql, levels_of, opened
from tests.rigs.mlx5.emulated import Emulated, Node
from tests.rigs.mlx5.gpu import bfs as raw
from tests.rigs.mlx5.gpu.judge import Traced, slot_by_slot
from tests.rigs.mlx5.gpu.trace import read_all

CLOCK_ERROR_NS = 10_000
CASES = {
    "two": (2, ("threads=1",), {}),
    "four": (4, ("threads=1", "batch=4", "dialect=rdma"), {}),
    "many threads": (3, ("threads=2", "blocks=2", "batch=8", "memory=host"), {}),
    "as on a GPU": (2, ("threads=1",), {"FAKE_CUDA_MMIO": "0", "MLX5EMU_COPIES": "1"}),
}


@dataclass(frozen=True)
class Searched:
    """A search that was traced.

    Attributes:
        alone: Whether one thread a rank does everything.
        found: Distances.
        ranks: Process by process: what the program and its NIC say, and the raw trace.
        result: Of the pipeline.
        sql: Its output, with the documentation's views.
        levels: By them.
    """

    graph: Graph
    alone: bool
    found: list[int]
    ranks: list[Traced]
    result: api.Result
    sql: duckdb.DuckDBPyConnection
    levels: Levels

    @property
    def nodes(self) -> list[Node]:
        return [traced.node for traced in self.ranks]

    @property
    def count(self) -> int:
        """How many levels there are."""
        return len(self.nodes[0].program["levels"])

    def documented(self, word: str) -> list[tuple[int, ...]]:
        """What the documentation's statement with a word gives."""
        (statement,) = [statement for statement in documented_sql() if word in statement]
        return self.sql.execute(statement).fetchall()


@pytest.fixture(scope="module", params=CASES)
def searched(
    request: pytest.FixtureRequest,
    emulated: Emulated,
    shim: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Searched:
    folder = tmp_path_factory.mktemp("bfs")
    graph = rmat(scale=9, degree=8, seed=4)
    graph.write(folder / "graph")
    ranks, options, env = CASES[request.param]
    nodes = emulated.bfs(
        folder / "run",
        *(f"graph={folder / 'graph'}", f"root={graph.hub}", *options),
        ranks=ranks,
        LD_PRELOAD=f"{shim} {emulated.built.strip}" if env else str(shim),
        SIGMATRACE_OUT=str(folder / "trace"),
        SIGMATRACE_LAYERS="mlx5dv,cuda",
        SIGMATRACE_MODE="full",
        # The NIC does nothing before its doorbell: else what the record announces may be done when
        # the one before is repeated, and is over when its own is seen.
        MLX5EMU_REREAD="0",
        **env,
    )
    for node in nodes:
        assert node.returncode == 0, node.stderr
        assert node.posted == node.executed == node.journal
    files = read_all(folder / "trace")
    result = api.run(folder / "trace", ["parquet"])
    sql = opened(result.out)
    return Searched(
        graph=graph,
        alone="threads=1" in options,
        found=found_by([node.program for node in nodes], folder / "run"),
        ranks=[Traced(node, files[node.pid]) for node in nodes],
        result=result,
        sql=sql,
        levels=levels_of([node.program for node in nodes], sql),
    )


def test_distances_are_those_of_a_plain_search(searched: Searched) -> None:
    distances = searched.graph.distances(searched.graph.hub)
    assert searched.found == distances
    reached = Counter(distances)
    levels = [node.program["levels"] for node in searched.nodes]
    assert {len(of) for of in levels} == {len(reached) - (FAR in reached)}
    for level, frontiers in enumerate(zip(*levels, strict=True)):
        assert sum(frontier["frontier"] for frontier in frontiers) == reached[level]


def test_rank_0_has_the_hubs(searched: Searched) -> None:
    degrees = Counter(searched.graph.edges.ravel().tolist())
    part = -(-searched.graph.vertices // len(searched.nodes))
    of_rank = Counter[int]()
    for vertex, degree in degrees.items():
        of_rank[vertex // part] += degree
    assert of_rank.most_common(1)[0][0] == 0


def test_nothing_is_lost(searched: Searched) -> None:
    assert searched.result.ledger["balanced"]
    assert searched.result.ledger["lossless"]
    for traced in searched.ranks:
        slot_by_slot(traced)


def test_the_rank_files_alone_say_the_same(searched: Searched) -> None:
    """As they are read where a GPU is, without the pipeline."""
    levels = raw.levels_of(searched.ranks)
    assert sorted(levels.posted) == sorted(searched.levels.posted)
    assert levels.barriers_at == searched.levels.barriers_at
    assert levels.rung == searched.levels.rung


def test_what_differs_is_wrong(searched: Searched) -> None:
    levels, exact = searched.levels, searched.alone
    assert not bfs_levels.judge(levels, exact=exact)
    first, *rest = levels.posted
    (way, *_) = levels.rung
    for changed in (
        replace(levels, posted=rest),
        replace(levels, posted=[first._replace(size_bytes=first.size_bytes + 1), *rest]),
        replace(levels, posted=[first._replace(level=first.level + 1), *rest]),
        replace(levels, barriers_at=[*levels.barriers_at[1:], (0, 0)]),
        replace(levels, rung={**levels.rung, way: levels.counted()[way]["rings"] + 1}),
    ):
        assert bfs_levels.judge(changed, exact=exact)


def test_the_barrier_is_found_by_its_address(searched: Searched) -> None:
    found, right = searched.levels.words()
    assert found == right


def test_traffic_of_each_level_is_what_the_kernels_counted(searched: Searched) -> None:
    found, counted = searched.levels.traffic()
    assert found == counted
    ranks = range(len(searched.nodes))
    ways = {(level, a, b) for level in range(searched.count) for a in ranks for b in ranks}
    assert {way for way, use in found if use == COUNTED} == {w for w in ways if w[1] != w[2]}


def test_doorbells_of_each_level_are_what_the_kernels_rang(searched: Searched) -> None:
    """Threads that share a queue pair may ring twice before a store is seen; one alone never."""
    found, rung = searched.levels.doorbells()
    assert found.keys() == rung.keys()
    assert all(found[way] <= rung[way] for way in rung)
    assert found == rung or not searched.alone
    rows = searched.result.tables["doorbells_by_qp"].column("doorbells").to_pylist()
    assert sum(found.values()) == sum(rows)


def test_barriers_are_between_what_the_kernels_saw(searched: Searched) -> None:
    """On the host's own clock: after the kernel rang, and before its target saw all come."""
    assert {node.program["clock"] for node in searched.nodes} == {"tsc"}
    barriers = searched.levels.barriers()
    assert len(barriers) == 2 * len(searched.levels.counted())
    for rang, t_tsc, passed in barriers:
        assert rang <= t_tsc <= passed


def test_where_atomics_go_in_the_documentation(searched: Searched) -> None:
    rows = searched.documented("printf")
    hits = {(dst, int(str(address), 16), src): n for dst, address, src, n in rows}
    ranks = range(len(searched.nodes))
    for dst in ranks:
        for word in (EXCHANGED, COUNTED):
            at = searched.nodes[dst].program[word]
            assert {hits[dst, at, src] for src in ranks if src != dst} == {searched.count}


def test_traffic_in_the_documentation(searched: Searched) -> None:
    rows = searched.documented("put_bytes")
    found = {(level, a, b): (puts, size or 0, n) for level, a, b, puts, size, n in rows}
    assert found == {
        way: (peer["ids"]["count"], peer["ids"]["bytes"], peer[TAIL]["count"] + 2)
        for way, peer in searched.levels.counted().items()
    }


def test_arrivals_in_the_documentation(searched: Searched) -> None:
    """Each rank comes to each level's barrier, within the time that the kernels say it took."""
    rows = searched.documented("later_ns")
    assert [level for level, _ in rows] == list(range(searched.count))
    ns_per_tick = 1e9 / searched.ranks[0].rank.tsc_hz
    for level, later in rows:
        said = [node.program["levels"][level] for node in searched.nodes]
        rang = min(peer["posted"][1] for of in said for peer in of["to"])
        passed = max(of["passed"][1] for of in said)
        assert len(later) == len(said) and min(later) == 0
        assert max(later) <= (passed - rang) * ns_per_tick + CLOCK_ERROR_NS
