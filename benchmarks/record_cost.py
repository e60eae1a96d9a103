"""What recording one event costs, beside LTTng-UST with the same payload.

usage: python benchmarks/record_cost.py [--rounds N] [--repeats N] [--out FOLDER]

Every number is the median of batches (four segments each, so that writing them out is part of
it) over several processes, which take turns. Prints one table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sigmatrace.capture.libs import library_dir

HERE = Path(__file__).parent
NATIVE = HERE.parent / "sigmatrace" / "capture" / "native"
EVENTS = 4 * 8186

# Row, mode, way of record_cost.c; mode "" is off.
ROWS = [
    ("rdtsc alone", "simple", "tsc"),
    ("simple: record", "simple", "op"),
    ("simple: channel, ordinal, record", "simple", "op_channel"),
    ("simple: the same, shared channel", "simple", "op_shared"),
    ("full: channel, ordinal, op, completion (3 rdtsc)", "full", "op_full"),
    ("aggregate: counters (no rdtsc)", "aggregate", "add"),
    ("aggregate: channel, counters (no rdtsc)", "aggregate", "add_channel"),
    ("off: record (with rdtsc)", "", "op"),
    ("off: channel, record (with rdtsc)", "", "op_channel"),
    ("pending map: put and take", "simple", "pending"),
]
LTTNG_ROWS = [
    ("LTTng-UST: rdtsc, tracepoint", "lttng", "lttng"),
    ("LTTng-UST: tracepoint", "lttng", "lttng_bare"),
]
# Measured before the daemon runs: it finds every process of its user.
INACTIVE_ROWS = [("LTTng-UST without a session: tracepoint", "inactive", "lttng")]


def compile_bench(target: Path, *options: str) -> Path:
    """Compiles record_cost.c against the core."""
    lib = library_dir().resolve()
    command = ["cc", "-O2", "-msse4.2", f"-I{NATIVE}", f"-I{HERE}", HERE / "record_cost.c"]
    link = [f"-L{lib}", "-lsigmatrace_core", f"-Wl,-rpath,{lib}"]
    subprocess.run([*command, "-o", target, *link, *options], check=True, capture_output=True)
    return target


def measure(bench: Path, mode: str, ways: list[str], rounds: int, out: Path) -> dict[str, list]:
    """Runs one process; ns per event of every batch, by way."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("SIGMATRACE_")}
    if mode in ("simple", "full", "aggregate"):
        env |= {"SIGMATRACE_OUT": str(out / "run"), "SIGMATRACE_MODE": mode}
    done = subprocess.run(
        [bench, str(rounds), str(EVENTS), *ways],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    shutil.rmtree(out / "run", ignore_errors=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: [float(value) for value in values] for name, *values in lines}


@contextmanager
def lttng_session(out: Path) -> Iterator[None]:
    """A session daemon of our own, with one session that writes to `out`; ended by its id."""
    env = os.environ | {"LTTNG_HOME": str(out)}
    pid_file = out / "sessiond.pid"

    def lttng(*arguments: str) -> None:
        subprocess.run(
            ["lttng", "--no-sessiond", *arguments],
            env=env,
            check=True,
            capture_output=True,
            timeout=60,
        )

    arguments = ["--background", "--no-kernel", f"--pidfile={pid_file}"]
    quiet = subprocess.DEVNULL  # a pipe would stay open in the daemon
    subprocess.run(
        ["lttng-sessiond", *arguments], env=env, check=True, stdout=quiet, stderr=quiet, timeout=60
    )
    try:
        lttng("create", "bench", f"--output={out / 'lttng'}")
        lttng("enable-channel", "--userspace", "--subbuf-size=1M", "--num-subbuf=8", "c")
        lttng("enable-event", "--userspace", "--channel=c", "sigmatrace_bench:op")
        lttng("start")
        yield
        lttng("destroy", "bench")
    finally:
        os.kill(int(pid_file.read_text()), 15)


def collect(rows: list, benches: dict[str, Path], options: argparse.Namespace, out: Path) -> dict:
    """All batches of all rows, processes taking turns."""
    found: dict[str, list[float]] = {row: [] for row, _mode, _way in rows}
    for _ in range(options.repeats):
        for mode in dict.fromkeys(mode for _row, mode, _way in rows):
            mine = [(row, way) for row, m, way in rows if m == mode]
            bench = benches["lttng" if mode in ("lttng", "inactive") else "core"]
            times = measure(bench, mode, [way for _row, way in mine], options.rounds, out)
            for row, way in mine:
                found[row] += times[way]
    return found


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="batches per process")
    parser.add_argument("--repeats", type=int, default=5, help="processes per mode")
    parser.add_argument("--out", type=Path, help="folder to trace into; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.out, prefix="record-cost-") as name:
        out = Path(name)
        benches = {"core": compile_bench(out / "core")}
        found, note = {}, ""
        try:
            benches["lttng"] = compile_bench(
                out / "with_lttng", "-DWITH_LTTNG", "-llttng-ust", "-ldl"
            )
            inactive = collect(INACTIVE_ROWS, benches, options, out)
            with lttng_session(out):
                found = collect(ROWS + LTTNG_ROWS, benches, options, out) | inactive
        except (OSError, subprocess.SubprocessError) as error:
            note = f"LTTng-UST could not run here: {error}"
            found = collect(ROWS, benches, options, out)
    base = statistics.median(found["rdtsc alone"])
    print(f"{'ns per event':50} {'p10':>7} {'median':>7} {'p90':>7} {'median - rdtsc':>14}")
    for row, times in found.items():
        tenths = statistics.quantiles(times, n=10)
        median = statistics.median(times)
        print(f"{row:50} {tenths[0]:7.2f} {median:7.2f} {tenths[-1]:7.2f} {median - base:14.2f}")
    if note:
        print(note)


if __name__ == "__main__":
    main()
