"""A layer that is not chosen: are the program's calls the library's own, as without tracing?

usage: python -m benchmarks unchosen_layer [--rounds N]

Compares where each function leads, and times a call of libfabric, in processes that take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import machine

HERE = Path(__file__).parent
LAUNCH = "from sigmatrace.capture.launch import main; main()"
CALLS = 20_000
# Chosen layers, the layer that is not, and how its functions' names begin.
CASES = [("ucx", "ofi", "fi_"), ("ofi", "ucp", "ucp_"), ("uct", "ucp", "ucp_")]


def run(command: list[str]) -> tuple[dict[str, str], list[float]]:
    """Return where each function leads, and ns per call of the batches."""
    clean = {key: value for key, value in os.environ.items() if key != "SIGMATRACE_OUT"}
    done = subprocess.run(
        command, env=clean, check=True, capture_output=True, text=True, timeout=120
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    leads = {line[0]: line[1] for line in lines if line[0] != "ns"}
    return leads, [float(value) for line in lines if line[0] == "ns" for value in line[1:]]


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="batches per process")
    options = parser.parse_args()
    print(f"unchosen layers; {machine.describe()}")
    with tempfile.TemporaryDirectory(prefix="unchosen-") as name:
        program = Path(name) / "unchosen_layer"
        build = ["cc", "-O2", HERE / "unchosen_layer.c", "-o", program]
        link = ["-Wl,--no-as-needed", "-lfabric", "-lucp", "-ldl"]
        subprocess.run([*build, *link], check=True, capture_output=True)
        words = [str(program), str(options.rounds), str(CALLS)]
        for at, (chosen, layer, prefix) in enumerate(CASES):
            out = Path(name) / f"run{at}"
            launch = [sys.executable, "-c", LAUNCH, "-o", str(out), "--layers", chosen, "--"]
            plain, plain_ns = run(words)
            traced, traced_ns = run([*launch, *words])
            names = [key for key in plain if key.startswith(prefix)]
            moved = [f"{key}: {traced[key]}" for key in names if traced[key] != plain[key]]
            verdict = "FAIL" if moved else "PASS"
            print(
                f"{verdict}  --layers {chosen}: {len(names) - len(moved)} of {len(names)} functions"
                f" of {layer} are the library's own"
            )
            for line in moved:
                print(f"      {line}")
            if layer == "ofi":
                pair = statistics.median(plain_ns), statistics.median(traced_ns)
                print("      fi_cq_read: {:.2f} ns without tracing, {:.2f} ns with".format(*pair))


if __name__ == "__main__":
    main()
