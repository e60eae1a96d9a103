"""A breadth-first search of several processes: its levels and barriers, from the trace alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from plain_reader import read_all

from sigmatrace import api
from sigmatrace.trace_format import DoorbellFlag, Op
from tests.rigs.mlx5.bfs import FAR, Graph, found_by, rmat
from tests.rigs.mlx5.emulated import Emulated, Node
from tests.rigs.mlx5.test_traced import Traced, judge, shim

__all__ = ["shim"]

PAGE = Path(__file__).parents[3] / "docs/gpu.md"
TO_TAIL, TO_EXCHANGED, TO_COUNTED = "reserve", "exchanged", "counted"
LINE_BYTES = 64
CLOCK_ERROR_NS = 10_000

Way = tuple[int, int, int]
"""Level, from which rank, to which."""


@dataclass(frozen=True)
class Searched:
    """A search that was traced.

    Attributes:
        threads: Of each block.
        found: Distances.
        ranks: Process by process: what the program and its NIC say, and the raw trace.
        result: Of the pipeline.
        sql: The output, with the views that the documentation shows.
    """

    graph: Graph
    threads: int
    found: list[int]
    ranks: list[Traced]
    result: api.Result
    sql: duckdb.DuckDBPyConnection

    @property
    def nodes(self) -> list[Node]:
        return [traced.node for traced in self.ranks]

    def counted(self) -> dict[Way, dict[str, Any]]:
        """What the kernels say of each level."""
        return {
            (level, node.program["rank"], peer["rank"]): peer
            for node in self.nodes
            for level, said in enumerate(node.program["levels"])
            for peer in said["to"]
        }

    def use(self, dst: int, op: int, raddr: int) -> str:
        """What an operation is for, by the address that the program says it has at its target."""
        at = self.nodes[dst].program
        words = {
            at["exchanged"] - LINE_BYTES: TO_TAIL,
            at["exchanged"]: TO_EXCHANGED,
            at["counted"]: TO_COUNTED,
        }
        return "ids" if op == Op.PUT else words[raddr]


def documented_sql() -> list[str]:
    """The statements of the page's section on levels, in order."""
    section = PAGE.read_text().partition("\n## 5. ")[2]
    code = "\n".join(re.findall(r"^ {4}(?!--)(.*)$", section, re.MULTILINE))
    return [statement for statement in code.split(";") if statement.strip()]


def opened(out: Path) -> duckdb.DuckDBPyConnection:
    """The output as the documentation reads it, with its views."""
    sql = duckdb.connect(config={"file_search_path": str(out)})
    for statement in documented_sql():
        if "create view" in statement:
            sql.execute(statement)
    return sql


@pytest.fixture(
    scope="module",
    params=[
        (2, "threads=1"),
        (4, "threads=1", "batch=4", "dialect=rdma"),
        (3, "threads=2", "blocks=2", "batch=8", "memory=host"),
    ],
    ids=lambda param: " ".join(map(str, param)),
)
def searched(
    request: pytest.FixtureRequest,
    emulated: Emulated,
    shim: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Searched:
    folder = tmp_path_factory.mktemp("bfs")
    graph = rmat(scale=9, degree=8, seed=4)
    ranks, *options = request.param
    graph.write(folder / "graph")
    nodes = emulated.bfs(
        folder / "run",
        f"graph={folder / 'graph'}",
        f"root={graph.hub}",
        *options,
        ranks=ranks,
        LD_PRELOAD=str(shim),
        # The NIC does nothing before its doorbell: else what the record announces may be done when
        # the one before is repeated, and is over when its own is seen.
        MLX5EMU_REREAD="0",
        SIGMATRACE_OUT=str(folder / "trace"),
        SIGMATRACE_LAYERS="mlx5dv,cuda",
        SIGMATRACE_MODE="full",
    )
    for node in nodes:
        assert node.returncode == 0, node.stderr
        assert node.posted == node.executed == node.journal
    files = {rank.header["pid"]: rank for rank in read_all(folder / "trace")}
    result = api.run(folder / "trace", ["parquet"])
    return Searched(
        graph=graph,
        threads=1 if "threads=1" in options else 2,
        found=found_by(nodes, folder / "run"),
        ranks=[Traced(node, files[node.pid]) for node in nodes],
        result=result,
        sql=opened(result.out),
    )


def test_distances_are_those_of_a_plain_search(searched: Searched) -> None:
    graph = searched.graph
    distances = graph.distances(graph.hub)
    assert searched.found == distances
    reached = Counter(distances)
    levels = [node.program["levels"] for node in searched.nodes]
    assert {len(of) for of in levels} == {len(reached) - (FAR in reached)}
    for level, frontiers in enumerate(zip(*levels, strict=True)):
        assert sum(frontier["frontier"] for frontier in frontiers) == reached[level]
    degrees = Counter(graph.edges.ravel().tolist())
    part = graph.vertices // len(levels)
    assert sum(degrees[v] for v in range(part)) > sum(degrees[v] for v in range(part, 2 * part))


def test_nothing_is_lost(searched: Searched) -> None:
    assert searched.result.ledger["balanced"]
    assert searched.result.ledger["lossless"]
    for traced in searched.ranks:
        judge(traced)


def test_the_barrier_is_found_by_its_address(searched: Searched) -> None:
    rows = searched.sql.execute("select distinct dst_proc, word from levels").fetchall()
    assert dict(rows) == {rank: n.program["counted"] for rank, n in enumerate(searched.nodes)}
    assert len(rows) == len(searched.nodes)


def test_traffic_of_each_level_is_what_the_kernels_counted(searched: Searched) -> None:
    rows = searched.sql.execute(
        "select level, src_proc, dst_proc, op, raddr, size_bytes from levels"
    ).fetchall()
    found: Counter[tuple[int, int, int, str]] = Counter()
    moved: Counter[tuple[int, int, int, str]] = Counter()
    for level, src, dst, op, raddr, size_bytes in rows:
        key = (level, src, dst, searched.use(dst, op, raddr))
        found[key] += 1
        moved[key] += size_bytes
    wanted = {
        (*way, use): (peer[use]["count"], peer[use]["bytes"])
        for way, peer in searched.counted().items()
        for use in (TO_TAIL, "ids", TO_EXCHANGED, TO_COUNTED)
        if peer[use]["count"]
    }
    assert {key: (count, moved[key]) for key, count in found.items()} == wanted
    assert {(*way, TO_COUNTED) for way in searched.counted()} <= wanted.keys()


def test_doorbells_of_each_level(searched: Searched) -> None:
    """Threads that share a queue pair may ring twice before a store is seen; one alone never."""
    doorbells = (
        "(select proc, qp, index from 'parquet/doorbells/*.parquet'"
        f" where flags & {int(DoorbellFlag.AGAIN)} = 0)"
    )
    rows = searched.sql.execute(
        f"select level, src_proc, dst_proc, count(*) from levels l join {doorbells} d"
        " on d.proc = l.src_proc and d.qp = l.qp and d.index = l.index + 1 group by all"
    ).fetchall()
    found = {(level, src, dst): count for level, src, dst, count in rows}
    assert [(sum(found.values()),)] == searched.sql.execute(
        f"select count(*) from {doorbells}"
    ).fetchall()
    rings = {way: peer["rings"] for way, peer in searched.counted().items()}
    assert found.keys() == rings.keys()
    assert all(found[way] <= rings[way] for way in rings)
    assert found == rings or searched.threads > 1


def test_barriers_are_between_what_the_kernels_saw(searched: Searched) -> None:
    """On the host's own clock: after the kernel rang, and before its target saw all arrive."""
    assert {node.program["clock"] for node in searched.nodes} == {"tsc"}
    rows = searched.sql.execute(
        "select level, src_proc, dst_proc, raddr, t_tsc from levels"
        f" where op = {int(Op.ATOMIC_FETCH)}"
    ).fetchall()
    counted, seen = searched.counted(), 0
    for level, src, dst, raddr, t_tsc in rows:
        use = searched.use(dst, Op.ATOMIC_FETCH, raddr)
        if use == TO_TAIL:
            continue
        which = (TO_EXCHANGED, TO_COUNTED).index(use)
        posted = counted[level, src, dst]["posted"][which]
        passed = searched.nodes[dst].program["levels"][level]["passed"][which]
        assert posted <= t_tsc <= passed
        seen += 1
    assert seen == 2 * len(counted)


def test_arrivals_in_the_documentation(searched: Searched) -> None:
    """Each rank comes to each level's barrier, within the time that the kernels say it took."""
    (statement,) = [one for one in documented_sql() if "later_ns" in one]
    rows = searched.sql.execute(statement).fetchall()
    assert [level for level, _ in rows] == list(range(len(searched.nodes[0].program["levels"])))
    tsc_hz = searched.ranks[0].rank.header["tsc_hz"]
    for level, later in rows:
        said = [node.program["levels"][level] for node in searched.nodes]
        rang = [min(peer["posted"][1] for peer in of["to"]) for of in said]
        passed = max(of["passed"][1] for of in said)
        assert len(later) == len(rang) and min(later) == 0
        most_ns = (passed - min(rang)) * 1e9 / tsc_hz
        assert max(later) <= most_ns + CLOCK_ERROR_NS


def test_where_atomics_go_in_the_documentation(searched: Searched) -> None:
    (statement,) = [one for one in documented_sql() if "printf" in one]
    hits = {
        (dst, int(at, 16), src): n for dst, at, src, n in searched.sql.execute(statement).fetchall()
    }
    levels = len(searched.nodes[0].program["levels"])
    ranks = range(len(searched.nodes))
    for dst in ranks:
        for word in ("exchanged", "counted"):
            at = searched.nodes[dst].program[word]
            assert {hits[dst, at, src] for src in ranks if src != dst} == {levels}


def test_traffic_in_the_documentation(searched: Searched) -> None:
    (statement,) = [one for one in documented_sql() if "put_bytes" in one]
    found = {
        (level, src, dst): (puts, size_bytes or 0, atomics)
        for level, src, dst, puts, size_bytes, atomics in searched.sql.execute(statement).fetchall()
    }
    assert found == {
        way: (peer["ids"]["count"], peer["ids"]["bytes"], peer[TO_TAIL]["count"] + 2)
        for way, peer in searched.counted().items()
    }
