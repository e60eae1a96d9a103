"""Synthetic runs, and this project's command over them, whose counts must be theirs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.measure import Cost

RECORD_BYTES = 32
PERFETTO_BYTES = 50
"""At most, per operation."""
PIPELINE = (sys.executable, "-m", "sigmatrace")


@dataclass(frozen=True)
class Synthetic:
    """A synthetic run.

    Attributes:
        folder: Of its rank files.
        counts: ``events``, ``matched`` messages, and ``bytes`` sent.
        size_bytes: Of its files.
    """

    folder: Path
    counts: Mapping[str, int]
    size_bytes: int

    @property
    def events(self) -> int:
        """Operations."""
        return self.counts["events"]


def synthetic(folder: Path, ranks: int, events: int, **shape: Any) -> Synthetic:
    """Generate a run, in a process of its own; ``shape``: further attributes of ``Shape``."""
    counts = measure.apart(_generate, folder, {"ranks": ranks, "events": events, **shape})
    size = sum(path.stat().st_size for path in folder.iterdir())
    return Synthetic(folder, counts, size)


def _generate(folder: Path, shape: Mapping[str, Any]) -> dict[str, int]:
    from sigmatrace.testing.synthetic import generate

    truth = generate(folder, **shape)
    return {
        "events": truth.operations,
        "matched": int(truth.pairs["matched"].sum()),
        "bytes": int(truth.pairs["sent_bytes"].sum()),
    }


@dataclass(frozen=True)
class Pipeline:
    """A command line of this project over a run; its output is judged, then removed.

    Attributes:
        run: Is read.
        out: Is written; its parent is there.
        options: Of ``sigmatrace-pipeline``.
        sizes: Bytes of each file of the output, by its path, once it has run.
    """

    run: Synthetic
    out: Path
    options: tuple[str, ...]
    sizes: dict[str, int]

    def output_bytes(self, name: str) -> int:
        """Return how many bytes the files with ``name`` in their path have."""
        return sum(size for path, size in self.sizes.items() if name in path)

    def __call__(self, env: Mapping[str, str] | None = None) -> Cost:
        """Run it once.

        Raises:
            SystemExit: It failed, or its ledger does not have the counts of the run.
        """
        command = [*PIPELINE, f"run={self.run.folder}", f"out={self.out}", *self.options]
        try:
            cost = measure.run(command, env)
            ledger = json.loads((self.out / "ledger.json").read_text())
            measure.agree("sigmatrace", counts(ledger), self.run.counts)
            if not (ledger["balanced"] and ledger["lossless"]):
                raise measure.CountsDifferError("sigmatrace: the ledger tells of a loss")
            left = ledger["exports"].get("perfetto", {}).get("op_left_out", 0)
            if left and not any("window=" in option for option in self.options):
                raise measure.CountsDifferError(
                    f"sigmatrace: {left} operations are not in the trace"
                )
            files = [path for path in self.out.rglob("*") if path.is_file()]
            self.sizes.update({str(f.relative_to(self.out)): f.stat().st_size for f in files})
        finally:
            shutil.rmtree(self.out, ignore_errors=True)
        return cost


def pipeline(run: Synthetic, out: Path, *options: str) -> Pipeline:
    """Return a command over a run."""
    return Pipeline(run, out, options, {})


def counts(ledger: Mapping[str, Mapping]) -> dict[str, int]:
    """Return what a ledger says of operations, messages and bytes.

    Traffic counts the bytes of both ends, and in a synthetic run without loss they are equal.
    """
    match, traffic = ledger["stages"]["match"], ledger["stages"]["traffic"]
    return {
        "events": ledger["records"]["op"]["read"],
        "matched": match["sends_matched"],
        "bytes": traffic["size_bytes"] // 2,
    }
