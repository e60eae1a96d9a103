"""What the benchmarks of events share: programs that time batches, an LTTng session, averages."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def options(description: str) -> argparse.Namespace:
    """The command line: how much is measured, and where to."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=40, help="batches per process")
    parser.add_argument("--repeats", type=int, default=5, help="processes per mode")
    parser.add_argument("--out", type=Path, help="folder to trace into; default: a temporary one")
    return parser.parse_args()


def timed(
    program: Path, rounds: int, events: int, ways: list[str], env: Mapping[str, str], out: Path
) -> dict[tuple[str, str], list[float]]:
    """Runs one process; ns per event of every batch, by way and clock.

    `env` is beside the environment without what steers the capture; `out`/run is removed.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SIGMATRACE_")}
    done = subprocess.run(
        [program, str(rounds), str(events), *ways],
        env=clean | dict(env),
        check=True,
        capture_output=True,
        text=True,
    )
    shutil.rmtree(out / "run", ignore_errors=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {(way, clock): [float(v) for v in values] for way, clock, *values in lines}


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
        daemon = os.pidfd_open(int(pid_file.read_text()))
        signal.pidfd_send_signal(daemon, signal.SIGTERM)
        select.select([daemon], [], [], 60)  # until it has ended: a second one would be refused
        os.close(daemon)


def quartile(times: list[float]) -> float:
    """The lower quartile."""
    return statistics.quantiles(times, n=4)[0]


AVERAGES = (quartile, statistics.median)
"""By which goals are judged, and what stands beside it."""


def judged(limit: float, values: list[float]) -> tuple[str, str]:
    """PASS or FAIL, and the numbers; `values`: one for each of AVERAGES."""
    verdict = ["PASS" if value <= limit else "FAIL" for value in values]
    return verdict[0], f"{values[0]:.2f} (median {values[1]:.2f} {verdict[1]})"
