"""This project beside what a user would pick instead, on the same events.

Whole processes with their imports, interleaved, in the page cache; medians of the rounds, but slow
tools run once. A tool that gives other counts than the events have ends the benchmark.

    python -m benchmarks peers_speed --events 5000000 --rounds 3
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import machine, measure, runs
from benchmarks.measure import Cost
from benchmarks.peers import PEERS, Peer, inputs

BYTES_PER_EVENT = 500
"""On the scratch folder: all inputs and outputs; most is the per-event JSON."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="folder to work in; default: /dev/shm")
    options = parser.parse_args(arguments)
    with measure.scratch(options.scratch, options.events * BYTES_PER_EVENT) as folder:
        compare(folder, options)


def compare(folder: Path, options: argparse.Namespace) -> None:
    run = runs.synthetic(folder / "run", options.ranks, options.events)
    there = [peer for peer in PEERS if peer.missing() is None]
    measure.apart(inputs.write, run.folder, folder, {peer.input for peer in there})
    commands: dict[str, Callable[[], Cost]] = {
        OURS: runs.pipeline(run, folder / "out", "export=perfetto"),
        "sigmatrace, traffic and matrix": runs.pipeline(run, folder / "out", "export=json"),
    }
    commands.update({peer.name: Judged(peer, folder, run) for peer in there})
    slow = {peer.name for peer in there if peer.is_slow}
    costs = measure.interleaved(commands, options.rounds, slow)
    print(f"{run.events} operations of {options.ranks} ranks; {machine.describe()}")
    print(report(costs, run.events))


OURS = "sigmatrace, everything"
DOES = {
    OURS: "clocks, matching, matrix, Perfetto",
    "sigmatrace, traffic and matrix": "clocks, matching, matrix, JSON of sums",
    **{peer.name: peer.does for peer in PEERS},
}


class Judged:
    """Runs a peer and compares its counts with those of the events."""

    def __init__(self, peer: Peer, folder: Path, run: runs.Synthetic) -> None:
        self.peer = peer
        self.input = folder / peer.input
        self.run = run

    def __call__(self) -> Cost:
        inputs_there = set(self.input.iterdir())
        cost = measure.run([*self.peer.command, str(self.input)])
        measure.agree(self.peer.name, self.peer.counts(cost.output), self.run.counts)
        for path in set(self.input.iterdir()) - inputs_there:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return cost


def report(costs: dict[str, list[Cost]], events: int) -> str:
    """Return the table: all tools, also those that could not run."""
    rows = []
    for name, does in DOES.items():
        if name not in costs:
            why = next(peer.missing() for peer in PEERS if peer.name == name)
            rows.append((name, does, "0", f"not measured: {why}", "", "", "", ""))
            continue
        cost, ours = measure.median(costs[name]), measure.median(costs[OURS])
        rows.append(
            (
                name,
                does,
                str(len(costs[name])),
                f"{cost.wall_s:.2f}",
                f"{events / cost.wall_s / 1e6:.2f}",
                f"{cost.wall_s / ours.wall_s:.2f}",
                f"{cost.cpu_s / events * 1e9:.0f}",
                f"{cost.peak_mb:.0f}" + (f" ({cost.processes})" if cost.processes > 1 else ""),
            )
        )
    head = ("tool", "what it does", "runs", "wall s", "M events/s", "times ours")
    return measure.table((*head, "CPU ns/event", "peak MB (processes)"), rows, texts=2)


if __name__ == "__main__":
    main()
