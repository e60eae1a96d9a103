"""Runs gpu_pair, traced or not, and turns what is found into verdicts."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.rigs.mlx5.emulated import Emulated, Node
from tests.rigs.mlx5.gpu.judge import Traced, WrongError, need
from tests.rigs.mlx5.gpu.trace import read_all

PASS, FAIL, NOT_RUN, UNDECIDED = "PASS", "FAIL", "not run", "undecided"


@dataclass(frozen=True)
class Verdict:
    """One line of the results.

    Attributes:
        point: What was to be shown.
        outcome: `PASS`, `FAIL`, `NOT_RUN` or `UNDECIDED`.
        text: Numbers, or what was wrong.
    """

    point: str
    outcome: str
    text: str


@dataclass
class Runner:
    """Programs on the emulated NIC.

    Attributes:
        emulated: The NIC, and the GPU or its stand-in.
        shim: The tracer's library.
        scratch: Folder of all that is written; each run's part is removed.
        cupti: Where CUPTI, or the stand-in's, is; None: nowhere.
        verdicts: So far.
    """

    emulated: Emulated
    shim: Path
    scratch: Path
    cupti: str | None = None
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def gpu(self) -> bool:
        """Whether it is a real one."""
        return self.emulated.gpu

    def _basics(self) -> dict[str, str]:
        """As on a GPU: there, and on the stand-in."""
        strip = str(self.emulated.built.strip)
        if self.gpu:
            return {"LD_PRELOAD": strip}
        return {"LD_PRELOAD": strip, "FAKE_CUDA_MMIO": "0", "MLX5EMU_COPIES": "1"}

    @contextmanager
    def plain(self, *options: str, ranks: int = 1, **env: str) -> Iterator[list[Node]]:
        """Runs gpu_pair without a tracer."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            more = self._basics() | env
            yield self.emulated.pair(folder / "run", *options, ranks=ranks, **more)
        finally:
            shutil.rmtree(folder)

    @contextmanager
    def traced(
        self,
        *options: str,
        ranks: int = 1,
        program: Literal["pair", "bfs"] = "pair",
        **env: str,
    ) -> Iterator[list[Traced]]:
        """Runs gpu_pair or gpu_bfs, traced.

        Raises:
            WrongError: A process left no trace.
        """
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        basics = self._basics()
        more = {
            **basics,
            "SIGMATRACE_OUT": str(folder / "trace"),
            "SIGMATRACE_LAYERS": "mlx5dv,cuda",
            "SIGMATRACE_MODE": "full",
            "SIGMATRACE_CUPTI": self.cupti or "off",
            "LD_PRELOAD": f"{self.shim} {basics['LD_PRELOAD']}",
            **env,
        }
        try:
            start = self.emulated.pair if program == "pair" else self.emulated.bfs
            nodes = start(folder / "run", *options, ranks=ranks, **more)
            found = read_all(Path(more["SIGMATRACE_OUT"]))
            for node in nodes:
                need(node.pid in found, f"no trace of a process that said: {node.stderr[-600:]}")
            yield [Traced(node, found[node.pid]) for node in nodes]
        finally:
            shutil.rmtree(folder)

    def say(self, point: str, outcome: str, text: str) -> None:
        """Adds a verdict, and prints it."""
        self.verdicts.append(Verdict(point, outcome, text))
        print(f"{outcome:9} {point}: {text}", flush=True)

    def judge(self, point: str, step: Callable[[], str]) -> None:
        """Runs a step that tells its numbers, or raises."""
        begin = time.monotonic()
        try:
            outcome, text = PASS, step()
        except (WrongError, subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
            outcome, text = FAIL, " ".join(f"{type(error).__name__}: {error}".split())
        self.say(point, outcome, f"{text} ({time.monotonic() - begin:.1f} s)")
