"""Synthetic runs whose truth is known: who sent what to whom, when, and what got lost.

Every rank sends to its next ``peers`` ranks; messages of a channel arrive in order, each after
it was sent in true time. Every host has its own TSC and its own wrong wall clock.

    python -m sigmatrace.testing.synthetic OUT --ranks 128 --events 5000000
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sigmatrace.errors import ConfigError, OutputError
from sigmatrace.testing.synthetic_draw import Clocks, Messages, Shape
from sigmatrace.testing.synthetic_rank import write_rank
from sigmatrace.text import counted


@dataclass(frozen=True)
class Truth:
    """What a synthetic run holds. Arrays of shape (ranks,) are by rank.

    Attributes:
        shape: What was asked for.
        host: Name of each rank's host.
        tsc_hz, tsc_zero: TSC ticks a second, and TSC at the start of the run (true time 0).
        offset_ns, drift_ppm: Wall clock minus true time at the start, and its growth.
        first_ns, last_ns: Wall clock of each rank's first and last written operation (0: none).
        pairs: One row per (src, dst): ``src``, ``dst``, ``sent``, ``received``, ``matched``
            (messages whose two records were both written), ``sent_bytes``, ``received_bytes``.
        operations: Operation records written.
        lost: Operations that took place but are not in the files, by reason.
        unmatched: Written operations without a written partner, by reason.
    """

    shape: Shape
    host: list[str]
    tsc_hz: np.ndarray
    tsc_zero: np.ndarray
    offset_ns: np.ndarray
    drift_ppm: np.ndarray
    first_ns: np.ndarray
    last_ns: np.ndarray
    pairs: Mapping[str, np.ndarray]
    operations: int
    lost: Mapping[str, int]
    unmatched: Mapping[str, int]


def generate(folder: str | Path, shape: Shape | None = None, **options: Any) -> Truth:
    """Write a synthetic run and return its truth.

    Args:
        folder: Made if it is missing; files of the same names are replaced.
        shape: What to generate.
        **options: Attributes of ``Shape``, instead of ``shape``.

    Raises:
        ValueError: No run is of this shape.
    """
    shape = shape or Shape(**options)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(shape.seed)
    clocks = Clocks.draw(shape, rng)
    messages = Messages.draw(shape, rng)
    spans = [write_rank(folder, shape, clocks, messages, rank, rng) for rank in range(shape.ranks)]
    return _truth(shape, clocks, messages, spans)


def _truth(shape: Shape, clocks: Clocks, messages: Messages, spans: list[tuple[int, int]]) -> Truth:
    sent, received = messages.send_written, messages.recv_written
    matched = sent & received
    did_receive = int(messages.is_received.sum())
    written = int(sent.sum()) + int(received.sum())
    # What is repeated is whole: nothing of it is lost, and nothing without a partner.
    no_receive = int((sent & ~messages.is_received).sum())
    walls = [
        [clocks.wall_ns(rank, at) if at >= 0 else 0 for at in span]
        for rank, span in enumerate(spans)
    ]
    first, last = np.array(walls, np.int64).T
    return Truth(
        shape=shape,
        host=[f"node{host}" for host in clocks.host],
        tsc_hz=clocks.hz,
        tsc_zero=clocks.zero,
        offset_ns=clocks.offset_ns,
        drift_ppm=clocks.drift_ppm,
        first_ns=first,
        last_ns=last,
        pairs=_pairs(shape, messages, matched),
        operations=written * shape.repeats,
        lost={"dropped": len(sent) + did_receive - written},
        unmatched={
            "never received": no_receive,
            "partner dropped": written - 2 * int(matched.sum()) - no_receive,
        },
    )


def _pairs(shape: Shape, messages: Messages, matched: np.ndarray) -> dict[str, np.ndarray]:
    """Sum the written records by (src, dst)."""
    key = messages.src.astype(np.int64) * shape.fan_out + messages.lane % shape.fan_out
    rows = shape.ranks * shape.fan_out

    def total(which: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        chosen = None if weights is None else weights[which].astype(np.float64)
        return np.bincount(key[which], chosen, minlength=rows).astype(np.int64) * shape.repeats

    src = np.repeat(np.arange(shape.ranks), shape.fan_out)
    lane = np.tile(np.arange(shape.fan_out), shape.ranks)
    return {
        "src": src,
        "dst": (src + 1 + lane) % shape.ranks,
        "sent": total(messages.send_written),
        "received": total(messages.recv_written),
        "matched": total(matched),
        "sent_bytes": total(messages.send_written, messages.size),
        "received_bytes": total(messages.recv_written, messages.size),
    }


def main(arguments: list[str] | None = None) -> int:
    """Generate a run from the command line, into a folder that has nothing in it."""
    options = vars(_parser().parse_args(arguments))
    out = options.pop("out")
    begin = time.monotonic()
    try:
        refuse_filled(out)
        truth = generate(out, Shape(**options))
    except (OSError, ValueError, OutputError) as error:
        print(f"{_NAME}: error: {error}", file=sys.stderr)
        return (ConfigError if isinstance(error, ValueError) else OutputError).exit_code
    seconds = time.monotonic() - begin
    amount = counted(truth.operations, "operation")
    print(f"{amount} of {counted(truth.shape.ranks, 'rank')} in {out}, {seconds:.1f} s")
    return 0


def refuse_filled(out: Path) -> None:
    """Refuse a folder in which files of another run could stay beside those of this one."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise OutputError(f"{out} is already there", "choose another folder, or remove it")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_NAME,
        usage=f"{_NAME} OUT [OPTION ...]",
        description="Writes the trace files of a run that never took place, and whose truth is "
        "known: every rank sends to its next ranks, in order, by hosts' clocks that are wrong.",
        epilog="exit codes: 0 done, 2 option, 6 OUT cannot be written, or is already there",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="new folder for the trace files")
    for name, (kind, unit, text) in _OPTIONS.items():
        flag, default = f"--{name.replace('_', '-')}", getattr(Shape, name)
        parser.add_argument(flag, metavar=unit, type=kind, default=default, help=text)
    parser.add_argument(
        "--mode",
        choices=("simple", "full"),
        default=Shape.mode,
        help="full adds completions, durations and a region of each rank",
    )
    parser.add_argument(
        "--tagged", action="store_true", help="UCP tag matching instead of libfabric messages"
    )
    return parser


_NAME = "python -m sigmatrace.testing.synthetic"
_OPTIONS: dict[str, tuple[type, str, str]] = {
    "ranks": (int, "N", "processes"),
    "events": (int, "N", "operations in all, sends and receives"),
    "hosts": (int, "N", "hosts, which ranks are spread over in blocks"),
    "peers": (int, "N", "ranks that each rank sends to"),
    "seed": (int, "N", "seed of the random numbers"),
    "clock_offset_ns": (int, "NS", "largest error of a host's wall clock at the start, in ns"),
    "clock_drift_ppm": (float, "PPM", "largest drift of a host's wall clock, in us a second"),
    "gap_ns": (float, "NS", "mean time between two sends of a rank, in ns"),
    "loss": (float, "SHARE", "share, 0 to 1, of chunks that are dropped at capture"),
    "unmatched": (float, "SHARE", "share, 0 to 1, of messages that nobody receives"),
    "reorder": (float, "SHARE", "share, 0 to 1, of neighbours that complete in exchanged order"),
    "chunk_records": (int, "N", "records of a full chunk"),
    "repeats": (int, "N", "how often the same traffic takes place; events are shared out"),
}

if __name__ == "__main__":
    raise SystemExit(main())
