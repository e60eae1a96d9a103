"""Graphs for gpu_bfs, and what a search over them must find.

By hand, traced by ``sigmatrace-capture`` before it or by ``--shim``, and with ``--nvcc`` on a GPU,
where all blocks must be resident:
``python -m tests.rigs.mlx5.bfs FOLDER --nvcc NVCC --shim LIBRARY --scale 16 blocks=8 threads=1``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.rigs.mlx5.build import build, built_in
from tests.rigs.mlx5.emulated import Emulated

FAR = 2**32 - 1
_QUADRANTS = (0.57, 0.19, 0.19, 0.05)
"""The usual ones of R-MAT: vertices of small numbers are the hubs, and rank 0 has them."""


@dataclass(frozen=True)
class Graph:
    """An undirected graph.

    Attributes:
        vertices: Their number.
        edges: Both ends of each, ``u4[:, 2]``; loops and repetitions are among them.
    """

    vertices: int
    edges: npt.NDArray[np.uint32]

    @property
    def hub(self) -> int:
        """The vertex with the most edges."""
        return int(np.bincount(self.edges.ravel(), minlength=self.vertices).argmax())

    def write(self, path: Path) -> None:
        """Writes what gpu_bfs reads."""
        head = np.array([self.vertices, len(self.edges)], "<u4")
        path.write_bytes(head.tobytes() + self.edges.astype("<u4").tobytes())

    def distances(self, root: int) -> list[int]:
        """Of each vertex to the root, edge by edge; `FAR` where there is no path."""
        neighbours: list[list[int]] = [[] for _ in range(self.vertices)]
        for a, b in self.edges.tolist():
            neighbours[a].append(b)
            neighbours[b].append(a)
        found, frontier, level = [FAR] * self.vertices, [root], 0
        found[root] = 0
        while frontier:
            level += 1
            new = {v for u in frontier for v in neighbours[u] if found[v] == FAR}
            for vertex in new:
                found[vertex] = level
            frontier = list(new)
        return found


def rmat(scale: int, degree: int, seed: int) -> Graph:
    """Returns an R-MAT graph of ``2**scale`` vertices and ``degree`` times as many edges."""
    random = np.random.default_rng(seed)
    edges = np.zeros((degree << scale, 2), np.uint32)
    for _ in range(scale):
        quadrant = random.choice(4, len(edges), p=_QUADRANTS).astype(np.uint32)
        edges = edges << 1 | np.stack([quadrant >> 1, quadrant & 1], axis=1)
    return Graph(1 << scale, edges)


def found_by(programs: Sequence[dict[str, Any]], out: Path) -> list[int]:
    """Returns the distances that the ranks of gpu_bfs found, of all vertices."""
    parts = (out / "meet" / f"distances-{program['rank']}" for program in programs)
    return [distance for part in parts for distance in np.fromfile(part, "<u4").tolist()]


def _run(args: argparse.Namespace, graph: Graph) -> None:
    """Runs the search; leaves what its ranks printed."""
    rig = built_in(args.rig.resolve()) if args.rig else build(args.folder / "built", args.nvcc)
    emulated = Emulated(rig, gpu=bool(args.nvcc))
    graph.write(args.folder / "graph")
    env = {}
    if args.shim:
        strip = str(emulated.built.strip) if args.nvcc else ""
        env = {"LD_PRELOAD": f"{args.shim} {strip}", "SIGMATRACE_OUT": str(args.folder / "trace")}
        env |= {"SIGMATRACE_LAYERS": "mlx5dv,cuda", "SIGMATRACE_MODE": "full"}
    options = (f"graph={args.folder / 'graph'}", f"root={graph.hub}", *args.options)
    nodes = emulated.bfs(args.folder / "run", *options, ranks=args.ranks, **env)
    for node in nodes:
        print(node.stderr, end="")
    programs = [node.program for node in nodes if node.rounds]
    (args.folder / "programs.json").write_text(json.dumps(programs))


def _judge(args: argparse.Namespace, graph: Graph) -> list[str]:
    """Returns what is wrong of what lies in the folder."""
    programs = json.loads((args.folder / "programs.json").read_text())
    if len(programs) < args.ranks or any(program["wrong"] for program in programs):
        return ["a rank failed, or says that its distances are wrong"]
    wrong = []
    if found_by(programs, args.folder / "run") != graph.distances(graph.hub):
        wrong.append("distances")
    for program in programs:
        took, found = program["run_ns"] / 1e9, program["found"]
        rings = sum(qp["rings"] for qp in program["qps"])
        print(f"rank {program['rank']}: {found} vertices, {rings} doorbells in {took:.3f} s")
    if (args.folder / "trace").exists():
        from sigmatrace import api
        from tests.rigs.mlx5.bfs_levels import judge
        from tests.rigs.mlx5.bfs_sql import levels_of, opened

        result = api.run(args.folder / "trace", ["parquet"])
        print(result.text())
        wrong += [] if result.ledger["lossless"] else ["the trace is not lossless"]
        wrong += judge(levels_of(programs, opened(result.out)), exact=args.exact)
    return wrong


def main() -> None:
    """Runs one search, and says whether it and its trace are right."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.rigs.mlx5.bfs",
        description="Breadth-first search on the emulated NIC.",
    )
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("options", nargs="*", default=[], help="of gpu_bfs: NAME=VALUE")
    parser.add_argument("--rig", type=Path, help="folder where it was built; else: build it")
    parser.add_argument("--nvcc", help="use a real GPU")
    parser.add_argument("--shim", help="library of the tracer, to be preloaded")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exact", action="store_true", help="one thread, MLX5EMU_REREAD=0")
    parser.add_argument("--run-only", action="store_true", help="judge later, or elsewhere")
    parser.add_argument("--judge-only", action="store_true", help="judge what was run")
    args = parser.parse_intermixed_args()
    args.folder = args.folder.resolve()
    graph = rmat(args.scale, args.degree, args.seed)
    if not args.judge_only:
        if (args.folder / "run").exists():
            parser.error(f"{args.folder}: a search was run there already")
        args.folder.mkdir(parents=True, exist_ok=True)
        _run(args, graph)
    if args.run_only:
        return
    wrong = _judge(args, graph)
    print("\n".join(wrong) if wrong else "all is right")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
