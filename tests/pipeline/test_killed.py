"""Processes that were killed: their clocks were read long before their last events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sigmatrace import api
from sigmatrace.testing.write import RankFile, records, ring_file
from sigmatrace.trace_format import Dir, Kind, Layer, Op, Schema

START_NS, TSC = 10**18, 10**12
MS = 10**6
"""In ns, and in ticks: the TSC has 1 GHz."""


def ops(first_ms: int, last_ms: int) -> np.ndarray:
    t_tsc = TSC + np.linspace(first_ms, last_ms, 40).astype(np.int64) * MS
    return records(Schema.OP, 40, t_tsc=t_tsc, op=Op.SEND, size_bytes=8, channel=0)


def killed(folder: Path, pid: int, ring: bool) -> Path:
    """Write what a process leaves whose clock was read once, as it began, and return its file."""
    facts = {"tsc_hz": 10**9, "rank": pid - 1, "world": 2, "boot_id": "b"}
    with RankFile(folder, pid=pid, start_ns=START_NS, **facts) as file:
        channel = records(Schema.CHANNEL, 1, layer=Layer.UCP, kind=Kind.MSG, dir=Dir.OUT)
        file.chunk(Schema.CHANNEL, pid, channel)
        file.clock(TSC, START_NS)
        file.chunk(Schema.OP, pid, ops(1, 300))
        file.chunk(Schema.OP, pid, ops(301, 400))
    if ring:
        tail = ring_file([(Schema.OP, pid, 2, ops(410, 700))])
        file.path.with_suffix(".ring").write_bytes(tail)
    return file.path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    killed(folder, 1, ring=True)
    killed(folder, 2, ring=False)
    return folder


def made_of(run: Path, *words: str) -> api.Result:
    return api.execute(api.compose([f"run={run}", "preset=analysis", *words]))


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("cluster=processes",),
        ("stage.clock.method=messages",),
        ("stage.clock.method=calibration",),
    ],
)
def test_the_run_reaches_to_its_last_event(run: Path, words: tuple[str, ...]) -> None:
    made = made_of(run, *words)
    assert made.run.extent_ns == (START_NS, START_NS + 700 * MS)
    assert "time       0s..0.7s" in made.text()
    assert made.ledger["stages"]["links"]["outside_of_the_time"] == 0


def test_a_window_behind_the_last_reading_of_the_clock_has_its_own_time(run: Path) -> None:
    made = made_of(run, "window=0.3s..0.5s")
    assert made.run.extent_ns == (START_NS + 300 * MS, START_NS + 500 * MS - 1)
    assert made.ledger["stages"]["links"]["outside_of_the_time"] == 0


def test_a_wrong_byte_in_the_last_time_of_a_file_does_not_stretch_the_run(run: Path) -> None:
    """That chunk is damaged: what it says of its times counts as little as its records."""
    path = killed(run, 2, ring=False)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"\xa8last_tsc\xcf") + 10] ^= 0x10
    path.write_bytes(data)
    made = made_of(run)
    assert made.run.extent_ns == (START_NS, START_NS + 700 * MS)
    assert made.ledger["balanced"]
    assert made.ledger["records"]["op"]["damaged_open"] == 40
    assert "40 op records damaged" in made.text()
