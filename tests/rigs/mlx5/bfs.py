"""Graphs for gpu_bfs, and what a search over them must find.

By hand, traced when ``--preload`` and SIGMATRACE_* say so:
``python -m tests.rigs.mlx5.bfs FOLDER --nvcc NVCC --ranks 4 --scale 16 blocks=8 threads=4``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.rigs.mlx5.build import build
from tests.rigs.mlx5.emulated import Emulated, Node

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


def found_by(nodes: list[Node], out: Path) -> list[int]:
    """Returns the distances that gpu_bfs found, of all vertices."""
    parts = (out / "meet" / f"distances-{node.program['rank']}" for node in nodes)
    return [distance for part in parts for distance in np.fromfile(part, "<u4").tolist()]


def main() -> None:
    """Runs one search, and says what was found and posted."""
    parser = argparse.ArgumentParser(description="Breadth-first search on the emulated NIC.")
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("options", nargs="*", help="of gpu_bfs")
    parser.add_argument("--nvcc", help="use a real GPU")
    parser.add_argument("--preload", help="library of a tracer")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_intermixed_args()
    emulated = Emulated(build(args.folder / "built", args.nvcc), gpu=bool(args.nvcc))
    graph, out = rmat(args.scale, args.degree, args.seed), args.folder / "run"
    graph.write(args.folder / "graph")
    strip = [str(emulated.built.strip)] if args.nvcc else []
    preload = {"LD_PRELOAD": " ".join([args.preload, *strip])} if args.preload else {}
    options = (f"graph={args.folder / 'graph'}", f"root={graph.hub}", *args.options)
    nodes = emulated.bfs(out, *options, ranks=args.ranks, **preload)
    for node in nodes:
        print(json.dumps(node.program) if node.rounds else node.stderr)
    right = all(not node.returncode for node in nodes)
    right = right and found_by(nodes, out) == graph.distances(graph.hub)
    print("distances are right" if right else "distances are wrong")
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
