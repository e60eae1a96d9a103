"""What the verbs shim adds to a request, a completion and an empty poll, beside LTTng-UST.

usage: python -m benchmarks verbs_cost [--rounds N] [--repeats N] [--out FOLDER]

The program posts to and polls a libibverbs that does nothing, with and without the shim, in
processes that take turns; the difference is the shim's. "wall" is what the program waits, "thread"
the processor time of its thread. The machine may be shared: the goals are judged by the lower
quartile of "wall", the median stands beside it.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks import batches, machine
from benchmarks.batches import AVERAGES, quartile
from sigmatrace.capture.libs import library_dir

HERE = Path(__file__).parent
EVENTS = 16 * 1024  # in a batch
CLOCKS = ("wall", "thread")
WAYS = {
    "tsc": "reading the TSC",
    "post": "request, posted alone",
    "post_list": "request, one of a list of 16",
    "post_and_poll": "request or completion (polled 16 at a time)",
    "poll_empty": "empty poll",
}
MODES = ("without", "aggregate", "simple", "full")
# Mode, way, ns above one reading of the TSC (an empty poll: in all).
GOALS = [
    ("simple", "post", 8.0),
    ("full", "post", 12.0),
    ("full", "post_and_poll", 12.0),
    ("simple", "poll_empty", 2.0),
    ("full", "poll_empty", 2.0),
]

Times = dict[tuple[str, str, str], list[float]]  # mode, way, clock: ns per event of every batch


def build(folder: Path) -> list[Path]:
    """Compiles the library that does nothing and the program, the latter also with LTTng-UST."""
    library = folder / "libibverbs.so.1"
    script = f"-Wl,--version-script={HERE / 'verbs_noop.map'}"
    shared = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", script]
    link = [f"-L{folder}", "-l:libibverbs.so.1", f"-Wl,-rpath,{folder}"]
    compiler = ["cc", "-O2", f"-I{HERE}"]
    commands = [
        [*compiler, HERE / "verbs_noop.c", "-o", library, *shared],
        [*compiler, HERE / "verbs_cost.c", "-o", folder / "plain", *link],
    ]
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    lttng = [*compiler, "-DWITH_LTTNG", HERE / "verbs_cost.c", "-o", folder / "with_lttng", *link]
    done = subprocess.run([*lttng, "-llttng-ust", "-ldl"], check=False, capture_output=True)
    return [
        folder / name for name in ("plain", "with_lttng") if name == "plain" or not done.returncode
    ]


def measure(program: Path, mode: str, ways: list[str], rounds: int, out: Path) -> Times:
    """Runs one process; ns per event of every batch."""
    env: dict[str, str] = {}
    if mode in MODES[1:]:
        shim = library_dir().resolve() / "libsigmatrace_verbs.so"
        env |= {"SIGMATRACE_OUT": str(out / "run"), "SIGMATRACE_MODE": mode}
        env |= {"SIGMATRACE_LAYERS": "verbs", "LD_PRELOAD": str(shim)}
    times = batches.timed(program, rounds, EVENTS, ways, env, out)
    return {(mode, *key): values for key, values in times.items()}


def print_table(found: Times) -> None:
    """Print what each mode adds to each way."""
    print(f"{'added, in ns':56} {'wall: quartile':>14} {'median':>8} {'thread':>8}")
    for mode in MODES[1:]:
        for way, text in WAYS.items():
            if way == "tsc":
                continue
            values = [
                average(found[mode, way, clock]) - average(found["without", way, clock])
                for average, clock in (
                    (quartile, "wall"),
                    (statistics.median, "wall"),
                    (statistics.median, "thread"),
                )
            ]
            print(f"{mode + ': ' + text:56} {values[0]:14.2f} {values[1]:8.2f} {values[2]:8.2f}")
    if ("lttng", "lttng", "wall") in found:
        traced, plain = found["lttng", "lttng", "wall"], found["without", "post", "wall"]
        low, middle = (average(traced) - average(plain) for average in AVERAGES)
        text = "LTTng-UST: tracepoint before each request, with TSC"
        print(f"{text:56} {low:14.2f} {middle:8.2f}")


def print_goals(found: Times) -> None:
    """Print PASS or FAIL for each goal, by quartile and, in brackets, by median."""
    for mode, way, limit in GOALS:
        values = []
        for average in AVERAGES:
            value = average(found[mode, way, "wall"]) - average(found["without", way, "wall"])
            if way != "poll_empty":
                value -= average(found["without", "tsc", "wall"])
            values.append(value)
        verdict, numbers = batches.judged(limit, values)
        above = "" if way == "poll_empty" else " above the TSC"
        print(f"{verdict}  {mode}, {WAYS[way]}: at most {limit:.0f} ns{above}: {numbers}")


def main() -> None:
    """Measures and prints the table and the goals."""
    options = batches.options(__doc__.splitlines()[0])
    print(f"verbs shim; {machine.describe()}")
    found: Times = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=options.out, prefix="verbs-cost-") as name:
        out = Path(name)
        plain, *lttng = build(out)
        for _ in range(options.repeats):
            for mode in MODES:
                for key, times in measure(plain, mode, list(WAYS), options.rounds, out).items():
                    found[key] += times
        try:
            with batches.lttng_session(out):
                for program in lttng:
                    found |= measure(program, "lttng", ["lttng"], options.rounds, out)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"LTTng-UST could not run here: {error}")
    print_table(found)
    print_goals(found)


if __name__ == "__main__":
    main()
