"""Runs of well-known patterns of communication, whose truth is known to the byte and the ns.

    python -m sigmatrace.testing.scenarios NAME OUT [OPTION ...]

| scenario | what takes place |
|---|---|
| ring | ring allreduce, one link slower than the others |
| alltoall | rounds of alltoall with barriers, one rank late to each |
| bfs | BFS in persistent kernels on GPUs, with barriers that they ring for |
| moe | MoE dispatch and combine on 4 nodes and 16 GPUs, after weights were loaded |
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sigmatrace.errors import ConfigError, OutputError
from sigmatrace.testing.scenarios_bfs import Bfs, BfsTruth, bfs
from sigmatrace.testing.scenarios_collectives import (
    Alltoall,
    AlltoallTruth,
    Ring,
    RingTruth,
    alltoall,
    ring,
)
from sigmatrace.testing.scenarios_moe import Moe, MoeTruth, moe
from sigmatrace.testing.synthetic import refuse_filled

Truth = RingTruth | AlltoallTruth | BfsTruth | MoeTruth
SCENARIOS: dict[str, tuple[Callable[[Path, Any], Truth], type[Any], str]] = {
    "ring": (ring, Ring, "ring allreduce, one link slower than the others"),
    "alltoall": (alltoall, Alltoall, "rounds of alltoall with barriers, one rank late to each"),
    "bfs": (bfs, Bfs, "BFS in persistent kernels on 4 GPUs, with barriers that they ring for"),
    "moe": (moe, Moe, "MoE dispatch and combine on 4 nodes and 16 GPUs, after loading weights"),
}
"""By name: the function that writes the files, its options, and what takes place."""


def generate(name: str, folder: str | Path, **options: Any) -> Truth:
    """Write a scenario and return its truth.

    Args:
        name: Of ``SCENARIOS``.
        folder: Made if it is missing; files of the same names are replaced.
        **options: Attributes of the scenario's options (``Ring``, ``Alltoall``, ``Bfs``, ``Moe``).

    Raises:
        ValueError: There is no such scenario, or none of these options.
    """
    if name not in SCENARIOS:
        raise ValueError(f"no scenario {name}: there are {', '.join(SCENARIOS)}")
    write, shape, _ = SCENARIOS[name]
    return write(Path(folder), shape(**options))


def main(arguments: list[str] | None = None) -> int:
    """Write a scenario from the command line, into a folder that has nothing in it."""
    options = vars(_parser().parse_args(arguments))
    name, out = options.pop("name"), options.pop("out")
    try:
        refuse_filled(out)
        truth = generate(name, out, **options)
    except (OSError, ValueError, OutputError) as error:
        print(f"{_NAME}: error: {error}", file=sys.stderr)
        return (ConfigError if isinstance(error, ValueError) else OutputError).exit_code
    print(f"{name}: {truth.operations} operations in {out}")
    if isinstance(truth, MoeTruth):
        print(f"window={truth.window} leaves out how weights are loaded")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_NAME,
        usage=f"{_NAME} NAME OUT [OPTION ...]",
        description="Writes the trace files of a run that never took place, of a well-known "
        "pattern of communication, whose truth is known. Options of a scenario: NAME --help",
        epilog="exit codes: 0 done, 2 option, 6 OUT cannot be written, or is already there",
        allow_abbrev=False,
    )
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True, title="scenarios")
    for name, (_, shape, text) in SCENARIOS.items():
        one = names.add_parser(
            name,
            help=text,
            prog=f"{_NAME} {name}",
            usage=f"{_NAME} {name} OUT [OPTION ...]",
            description=f"Writes a run: {text}.",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            allow_abbrev=False,
        )
        one.add_argument("out", metavar="OUT", type=Path, help="new folder for the trace files")
        for field in dataclasses.fields(shape):
            if field.name in _OPTIONS:
                unit, what = _OPTIONS[field.name]
                flag = f"--{field.name.replace('_', '-')}"
                start: Any = field.default
                one.add_argument(flag, metavar=unit, type=type(start), default=start, help=what)
    return parser


_NAME = "python -m sigmatrace.testing.scenarios"
_OPTIONS = {
    "ranks": ("N", "processes"),
    "hosts": ("N", "hosts, which ranks are spread over in blocks"),
    "size_bytes": ("BYTES", "what a rank reduces, or sends to each other one in a round"),
    "iterations": ("N", "how often"),
    "rounds": ("N", "how often"),
    "slow_rank": ("RANK", "the one that comes late, or whose link to the next one is slow"),
    "factor": ("N", "how many times longer the slow link takes"),
    "delay_ns": ("NS", "how much later the slow rank begins each round, in ns"),
    "doorbells_per_s": ("N", "doorbells with data of each GPU, in a second of work"),
    "blocks": ("N", "blocks of the kernel, each with a doorbell of its own at a barrier"),
    "completed": ("SHARE", "share, 0 to 1, of requests that complete, the last one with an error"),
    "steps": ("N", "steps of inference"),
    "clock_offset_ns": ("NS", "largest error of a host's wall clock at the start, in ns"),
    "clock_drift_ppm": ("PPM", "largest drift of a host's wall clock, in us a second"),
    "seed": ("N", "seed of the random numbers"),
}
"""Options on the command line, by their name: metavariable, and what they mean."""

if __name__ == "__main__":
    raise SystemExit(main())
