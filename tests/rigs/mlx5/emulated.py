"""Runs programs on the emulated NIC, and reads what the program and the NIC say that was done."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rigs.mlx5.build import Built

ALL = "mix=write,read,inline,long,add,cas,swap8,xor8,add4,swap4,dump"
ROOMY = "slots=4096"  # no slot is used twice, so none can be lost
DIALECTS = {
    **dict.fromkeys(("nvshmem", "doca", "rdma", "proxy"), "own"),
    **dict.fromkeys(("rocshmem", "blueflame"), "bf"),
}
"""Ways to ring of gpu_pair, and the kind of register that each is for."""


@dataclass(frozen=True)
class Wqe:
    """A WQE that the NIC executed: a line of its journal."""

    index: int
    qpn: int
    opcode: int
    size_bytes: int
    raddr: int
    rkey: int
    slots: int
    syndrome: int


Counts = dict[int, dict[int, tuple[int, int]]]
"""For each queue pair number and opcode: operations and bytes."""


def _counts(lives: Sequence[Mapping[str, Any]]) -> Counts:
    """Sums over all lives of a number."""
    counts: Counts = {}
    for life in lives:
        for name, found in life["operations"].items():
            of_qp, opcode = counts.setdefault(life["qpn"], {}), int(name)
            count, size_bytes = of_qp.get(opcode, (0, 0))
            of_qp[opcode] = (count + found["count"], size_bytes + found["bytes"])
    return counts


@dataclass(frozen=True)
class Node:
    """One process, and its NIC.

    Attributes:
        pid: Of the process.
        returncode: Of the program; 1 when memory is not as it should be.
        stderr: Of the program.
        rounds: What gpu_pair printed of each round; gpu_bfs has one.
        nic: The NIC's counts: ``lid``, ``bad_doorbells``, ``lives``.
        wqes: In the order in which they were completed.
        out: Folder of what it wrote.
    """

    pid: int
    returncode: int
    stderr: str
    rounds: list[dict[str, Any]]
    nic: dict[str, Any]
    wqes: list[Wqe]
    out: Path

    @property
    def program(self) -> dict[str, Any]:
        """What was printed of the last round."""
        return self.rounds[-1]

    @property
    def posted(self) -> Counts:
        return _counts([qp for found in self.rounds for qp in found["qps"]])

    @property
    def executed(self) -> Counts:
        return _counts(self.nic["lives"])

    @property
    def journal(self) -> Counts:
        """The same as `executed`, counted from the lines."""
        done: Counter[tuple[int, int]] = Counter()
        moved: Counter[tuple[int, int]] = Counter()
        for wqe in self.wqes:
            if not wqe.syndrome:
                done[wqe.qpn, wqe.opcode] += 1
                moved[wqe.qpn, wqe.opcode] += wqe.size_bytes
        counts: Counts = {}
        for (qpn, opcode), count in done.items():
            counts.setdefault(qpn, {})[opcode] = (count, moved[qpn, opcode])
        return counts

    def total(self, name: str) -> int:
        """Sum over all queue pairs of one of the NIC's counts: doorbells, stale, ..."""
        return sum(life[name] for life in self.nic["lives"])


def _node(process: subprocess.Popen[str], out: Path, timeout_s: float) -> Node:
    try:
        printed, errors = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    nic = out / f"nic-{process.pid}.json"
    lines = out / f"wqes-{process.pid}.txt"
    return Node(
        pid=process.pid,
        returncode=process.returncode,
        stderr=errors,
        rounds=[json.loads(line) for line in printed.splitlines()],
        nic=json.loads(nic.read_text()) if nic.exists() else {},
        wqes=[Wqe(*map(int, line.split())) for line in lines.read_text().splitlines()]
        if lines.exists()
        else [],
        out=out,
    )


@dataclass(frozen=True)
class Cpus:
    """Processors of one process, as lists like "0-3,8".

    Attributes:
        program: Of all its threads but these.
        nic: Of the engine.
        repeater: Of a tracer's threads that repeat doorbells.
    """

    program: str
    nic: str
    repeater: str

    @property
    def environment(self) -> dict[str, str]:
        """For the process."""
        return {"MLX5EMU_SPIN": "1", "MLX5EMU_CPU": self.nic, "SIGMATRACE_POLL_CPUS": self.repeater}


@dataclass(frozen=True)
class Emulated:
    """The NIC and the stand-in for the GPU, or a GPU.

    Attributes:
        built: What was compiled.
        gpu: Whether a real one is used.
        timeout_s: Of a program; then it is killed.
        cpus: Of each rank; where there are fewer than ranks, all run anywhere.
    """

    built: Built
    gpu: bool = False
    timeout_s: float = 120
    cpus: tuple[Cpus, ...] = ()

    def environment(self, out: Path, **more: str) -> dict[str, str]:
        """For programs; `out` is the folder of the NIC's journal."""
        tracer = os.environ.get("LD_PRELOAD", "")
        paths = [self.built.nic] if self.gpu else [self.built.nic, self.built.driver]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(map(str, paths)),
            "MLX5EMU_OUT": str(out),
            "MLX5EMU_LOG": "1",
            **({"LD_PRELOAD": f"{tracer} {self.built.strip}".strip()} if self.gpu else {}),
            **more,
        }

    def pair(
        self,
        out: Path,
        *options: str,
        ranks: int = 1,
        before: Sequence[str] = (),
        **environment: str,
    ) -> list[Node]:
        """Runs gpu_pair.

        Args:
            out: A new folder, made here.
            *options: NAME=VALUE, see ``native/pair_main.c``.
            ranks: Processes, 1 to 4.
            before: Words before the program's: a launcher that replaces itself by the program.
            **environment: Added to it.
        """
        kernels = self.built.cubin if self.gpu else self.built.kernels
        command = [*before, str(self.built.pair), f"kernel={kernels}", *options]
        return self._run(out, command, ranks, environment)

    def bfs(self, out: Path, *options: str, ranks: int = 2, **environment: str) -> list[Node]:
        """Runs gpu_bfs, like `pair`; options: see ``native/bfs_main.c``."""
        command = [str(self.built.bfs), f"kernel={self.built.bfs_kernels}", *options]
        return self._run(out, command, ranks, environment)

    def _run(
        self, out: Path, command: list[str], ranks: int, environment: dict[str, str]
    ) -> list[Node]:
        meet = out / "meet"
        meet.mkdir(parents=True)
        if ranks > 1:
            environment["MLX5EMU_FABRIC"] = str(out / "fabric")
            command = [*command, f"size={ranks}", f"folder={meet}"]
        processes = [
            self._start(
                self.cpus[rank] if ranks <= len(self.cpus) else None,
                [*command, f"rank={rank}"],
                self.environment(out, PMI_RANK=str(rank), PMI_SIZE=str(ranks), **environment),
            )
            for rank in range(ranks)
        ]
        try:
            return [_node(process, out, self.timeout_s) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def _start(
        self, cpus: Cpus | None, command: list[str], environment: dict[str, str]
    ) -> subprocess.Popen[str]:
        if cpus:
            command = ["taskset", "-c", cpus.program, *command]
            environment = environment | cpus.environment
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
