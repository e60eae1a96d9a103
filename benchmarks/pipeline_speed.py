"""Pipeline speed: rank files to Perfetto, beside Polars from CSV doing the same work.

Both are timed as whole processes, imports included, interleaved; medians and the ratio are
printed, and both must find the same number of messages and bytes.

    python benchmarks/pipeline_speed.py [--ranks 128] [--events 5000000] [--mode simple] [--repeat 3]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

POLARS = Path(__file__).with_name("polars_from_csv.py")


def write_csv(run: Path, folder: Path) -> None:
    """Write what a Polars user would start from: events.csv and clocks.csv."""
    import polars as pl

    from sigmatrace import api

    result = api.run(run, export=["parquet"], out=folder / "parquet-out")
    parquet = folder / "parquet-out" / "parquet"
    ops = pl.scan_parquet(parquet / "ops" / "*.parquet")
    ops.select("proc", "t_tsc", "op", "src_proc", "dst_proc", "size_bytes").sink_csv(
        folder / "events.csv"
    )
    clocks = result.tables["clocks"]
    pl.from_arrow(clocks).select("proc", "tsc", "wall_ns").write_csv(folder / "clocks.csv")


def timed(command: list[str]) -> tuple[float, float, float]:
    """Return (wall seconds, CPU seconds, peak MB) of a process."""
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"{command}: exit code {process.returncode}\n{output.read().decode()}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--mode", choices=("simple", "full"), default="simple")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    scratch = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=scratch, prefix="sigmatrace-bench-") as name:
        measure(Path(name), options)


def measure(folder: Path, options: argparse.Namespace) -> None:
    from sigmatrace.testing.synthetic import generate

    run = folder / "run"
    truth = generate(run, ranks=options.ranks, events=options.events, mode=options.mode)
    write_csv(run, folder)
    pipeline = [sys.executable, "-m", "sigmatrace", f"run={run}", "overwrite=true"]
    commands = {
        "sigmatrace, everything to Perfetto": [*pipeline, "export=perfetto", f"out={folder / 'p'}"],
        "sigmatrace, traffic to JSON": [*pipeline, "export=json", f"out={folder / 'j'}"],
        "polars from CSV, everything to NDJSON": [sys.executable, str(POLARS), str(folder)],
    }
    samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
    for command in commands.values():  # warm: page cache, compiled kernels
        timed(command)
    for _ in range(options.repeat):
        for name, command in commands.items():
            samples[name].append(timed(command))
    check(folder, truth)
    report(samples, truth.operations, folder)


def check(folder: Path, truth: object) -> None:
    """Refuse to print numbers of tools that did not do the same work."""
    polars = json.loads((folder / "polars.json").read_text())
    ledger = json.loads((folder / "p" / "ledger.json").read_text())
    matched = int(np.sum(truth.pairs["matched"]))
    sent = int(np.sum(truth.pairs["sent_bytes"]))
    assert polars == {"matched": matched, "sent_bytes": sent}, (polars, matched, sent)
    assert all(line["ok"] for line in ledger["balance"])


def report(samples: dict[str, list], events: int, folder: Path) -> None:
    print(f"{events} operations; {platform.machine()}, {os.cpu_count()} cores; medians")
    print(f"{'':40} {'wall s':>7} {'M events/s':>10} {'CPU ns/event':>12} {'peak MB':>8}")
    for name, runs in samples.items():
        wall, cpu, peak = (statistics.median(column) for column in zip(*runs, strict=True))
        rate = events / wall / 1e6
        print(f"{name:40} {wall:7.2f} {rate:10.2f} {cpu / events * 1e9:12.0f} {peak:8.0f}")
    trace = next((folder / "p").rglob("*.pftrace"))
    print(f"Perfetto bytes per event: {trace.stat().st_size / events:.1f}")
    size = sum(path.stat().st_size for path in (folder / "run").glob("*.msgpack"))
    print(f"rank file bytes per event: {size / events:.2f}")


if __name__ == "__main__":
    main()
