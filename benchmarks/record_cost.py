"""What recording one event costs, beside LTTng-UST with the same payload.

usage: python -m benchmarks record_cost [--rounds N] [--repeats N] [--out FOLDER]

Batches of all ways take turns, in several processes that take turns too. "wall" is what the
program waits, "thread" the processor time of the thread that records, "process" that of the whole
process until all is in the rank file (of LTTng without its daemon). The machine may be shared:
the goals are judged by the lower quartile of "wall", the median stands beside it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks import batches, machine
from benchmarks.batches import AVERAGES, quartile
from sigmatrace.capture.libs import library_dir

HERE = Path(__file__).parent
NATIVE = HERE.parent / "sigmatrace" / "capture" / "native"
SEGMENT = 8186  # operations in a segment of the default size
SHORT, LONG = 4 * SEGMENT, 128 * SEGMENT  # events in a batch

CLOCKS = ("wall", "thread", "process")
MODES = {
    "simple": {"SIGMATRACE_MODE": "simple"},
    "inline": {"SIGMATRACE_MODE": "simple", "SIGMATRACE_WRITER": "inline"},
    "full": {"SIGMATRACE_MODE": "full"},
    "aggregate": {"SIGMATRACE_MODE": "aggregate"},
    "off": {},
    "lttng": {},
    "inactive": {},
}
# Row, mode, way of record_cost.c, events in a batch.
RDTSC, RECORD, CHANNEL = "rdtsc alone", "simple: record", "simple: channel, ordinal, record"
ADD, ADD_CHANNEL = "aggregate: counters (no rdtsc)", "aggregate: channel, counters (no rdtsc)"
LTTNG = "LTTng-UST: rdtsc, tracepoint"
ROWS = [
    (RDTSC, "simple", "tsc", SHORT),
    (RECORD, "simple", "op", SHORT),
    (CHANNEL, "simple", "op_channel", SHORT),
    ("simple: the same, shared channel", "simple", "op_shared", SHORT),
    ("simple: channel ..., 1 M events at a stretch", "simple", "op_channel", LONG),
    ("simple: channel ..., no writer thread", "inline", "op_channel", SHORT),
    ("simple: the same, 1 M events at a stretch", "inline", "op_channel", LONG),
    ("full: channel, ordinal, op, completion (3 rdtsc)", "full", "op_full", SHORT),
    (ADD, "aggregate", "add", SHORT),
    (ADD_CHANNEL, "aggregate", "add_channel", SHORT),
    ("off: record (with rdtsc)", "off", "op", SHORT),
    ("pending map: put and take", "simple", "pending", SHORT),
]
LTTNG_ROWS = [
    (LTTNG, "lttng", "lttng", SHORT),
    ("LTTng-UST: tracepoint", "lttng", "lttng_bare", SHORT),
    ("LTTng-UST: rdtsc, ..., 1 M events at a stretch", "lttng", "lttng", LONG),
]
# Measured before the daemon runs: it finds every process of its user.
INACTIVE_ROWS = [("LTTng-UST without a session: tracepoint", "inactive", "lttng", SHORT)]

Times = dict[str, dict[str, list[float]]]  # row, clock: ns per event of every batch


def compile_bench(target: Path, *options: str) -> Path:
    """Compiles record_cost.c against the core."""
    lib = library_dir().resolve()
    command = ["cc", "-O2", "-msse4.2", f"-I{NATIVE}", f"-I{HERE}", HERE / "record_cost.c"]
    link = [f"-L{lib}", "-lsigmatrace_core", f"-Wl,-rpath,{lib}"]
    subprocess.run([*command, "-o", target, *link, *options], check=True, capture_output=True)
    return target


def collect(rows: list, benches: dict[str, Path], options: argparse.Namespace, out: Path) -> Times:
    """All batches of all rows, processes taking turns."""
    found: Times = defaultdict(lambda: defaultdict(list))
    for _ in range(options.repeats):
        for mode, events in dict.fromkeys((mode, events) for _row, mode, _way, events in rows):
            mine = [(row, way) for row, m, way, e in rows if (m, e) == (mode, events)]
            bench = benches["lttng" if mode in ("lttng", "inactive") else "core"]
            rounds = options.rounds if events == SHORT else max(2, options.rounds // 8)
            ways = [way for _row, way in mine]
            env = MODES[mode] | ({"SIGMATRACE_OUT": str(out / "run")} if MODES[mode] else {})
            times = batches.timed(bench, rounds, events, ways, env, out)
            for row, way in mine:
                for clock in CLOCKS:
                    found[row][clock] += times[way, clock]
    return found


def print_table(found: Times) -> None:
    """One line for each row."""
    base = quartile(found[RDTSC]["wall"])
    print(
        f"{'':48} {'wall: quartile':>14} {'- rdtsc':>8} {'median':>8} {'thread':>8} {'process':>8}"
    )
    for row, times in found.items():
        low = quartile(times["wall"])
        medians = " ".join(f"{statistics.median(times[clock]):8.2f}" for clock in CLOCKS)
        print(f"{row:48} {low:14.2f} {low - base:8.2f} {medians}")


def print_goals(found: Times) -> None:
    """PASS or FAIL for each goal, by quartile and, in brackets, by median."""
    goals = [
        ("simple, record: at most 5 ns above rdtsc", RECORD, 5.0, "above"),
        ("simple, channel, ordinal, record: the same", CHANNEL, 5.0, "above"),
        ("simple, record: at most 1/5 of LTTng-UST", RECORD, 0.2, "ratio"),
        ("simple, channel, ordinal, record: the same", CHANNEL, 0.2, "ratio"),
        ("aggregate, counters: at most 8 ns", ADD, 8.0, ""),
        ("aggregate, channel, counters: the same", ADD_CHANNEL, 8.0, ""),
    ]
    for text, row, limit, kind in goals:
        if kind == "ratio" and LTTNG not in found:
            print(f"not measured  {text}")
            continue
        values = []
        for middle in AVERAGES:
            value = middle(found[row]["wall"])
            if kind == "above":
                value -= middle(found[RDTSC]["wall"])
            elif kind == "ratio":
                value /= middle(found[LTTNG]["wall"])
            values.append(value)
        verdict, numbers = batches.judged(limit, values)
        print(f"{verdict}  {text}: {numbers}")


def main() -> None:
    """Measures and prints the table."""
    options = batches.options(__doc__.splitlines()[0])
    with tempfile.TemporaryDirectory(dir=options.out, prefix="record-cost-") as name:
        out = Path(name)
        benches = {"core": compile_bench(out / "core")}
        note = ""
        try:
            benches["lttng"] = compile_bench(
                out / "with_lttng", "-DWITH_LTTNG", "-llttng-ust", "-ldl"
            )
            inactive = collect(INACTIVE_ROWS, benches, options, out)
            with batches.lttng_session(out):
                found = collect(ROWS + LTTNG_ROWS, benches, options, out) | inactive
        except (OSError, subprocess.SubprocessError) as error:
            note = f"LTTng-UST could not run here: {error}"
            found = collect(ROWS, benches, options, out)
    print(f"ns per event; {machine.describe()}")
    print_table(found)
    print_goals(found)
    if note:
        print(note)


if __name__ == "__main__":
    main()
