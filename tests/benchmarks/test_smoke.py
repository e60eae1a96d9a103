"""Benchmarks that look into the pipeline by the names of its functions: they still find them."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.steps import Steps

HEAD = r"^.+; (\d{4})-\d\d-\d\d \d\d:\d\d UTC, .+ cores, Linux [\d.]+, load [\d.]+$"
"""What stands above each table: date, machine and load."""


def printed(*words: str) -> str:
    """Return what a benchmark prints."""
    command = [sys.executable, "-m", "benchmarks", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def values(text: str, pattern: str) -> list[float]:
    """Return the numbers that a pattern's group finds, each time it does."""
    found = [float(one) for one in re.findall(pattern, text, re.MULTILINE)]
    assert found, text
    return found


def test_help_lists_all_with_a_line_each() -> None:
    text = printed("--help")
    assert text.startswith("usage: ")
    assert re.findall(r"^  (\w+) +\w.+$", text, re.MULTILINE) == list(NAMES)


def test_help_of_one_is_its_own_alone() -> None:
    text = printed("width", "--help")
    assert text.startswith("usage: ") and "--files" in text
    assert not re.search(r"^\d+ s$", text, re.MULTILINE)


def test_stage_cost_knows_all_steps() -> None:
    options = ("--ranks", "3", "--events", "6000", "--mode", "full", "--export", "perfetto")
    text = printed("stage_cost", *options)
    assert values(text, HEAD)[0] >= 2026
    assert values(text, r"^(\d+) events; ns of CPU")[0] > 6000  # completions are events, too
    for step in (
        "index of files", "index, merged", "partitions", "account", "read: the rest",
        "read: copy from the page cache", "read: checksum", "read: into columns",
        "clock: apply", "match: summarize", "traffic: summarize", "perfetto: write",
        "perfetto: finish",
    ):  # fmt: skip
        assert values(text, rf"^ *([\d.]+)  {step}$")[0] > 0
    every, steps = values(text, r"^ *([\d.]+)  all;"), values(text, r"^ *([\d.]+)  (?!all;)\w")
    assert sum(steps) == pytest.approx(every[0], rel=0.02)


def test_width_has_the_peak_of_its_own_process() -> None:
    text = printed("width", "--files", "3", "--events", "100", "--all", "4")
    assert len(values(text, HEAD)) == 1  # not another one of the process that is measured
    assert values(text, r"^(\d+) files, 300 operations") == [3]
    assert values(text, r"^4 files, (\d+) operations") == [48]
    assert all(30 < peak < 600 for peak in values(text, r"peak (\d+) MB; \d+ tasks$"))


def test_a_browser_has_the_slices_of_the_ledger() -> None:
    text = printed("browser_load", "--ranks", "3", "--events", "600")
    assert values(text, r"^(\d+) slices and instants of 3 ranks") == [600]
    assert values(text, r"time line after ([\d.]+) s")[0] > 0
    assert values(text, r"browser (\d+) MB")[0] > 50


def test_scaling_counts_tasks_and_bytes() -> None:
    text = printed("scaling", "--ranks", "3", "--events", "400")
    assert values(text, r"^events +(\d+)$") == [1200]
    assert values(text, r"^partitions +(\d+)$") == [1]
    for what in (
        "graph: tasks a partition", "work file: bytes a channel", "outcome: bytes a channel",
        "  of traffic", "  of perfetto", "index: CPU us a channel", "trace: bytes an event",
    ):  # fmt: skip
        assert values(text, rf"^{what} +([\d.]+)$")[0] > 0


def test_pack_cost_reads_both_alike() -> None:
    text = printed("pack_cost", "--ranks", "2", "--events", "4000", "--repeat", "1")
    assert values(text, r"^(\d+) events of 2 ranks") == [4000]
    assert 1 < values(text, r"chunk's prefix: ([\d.]+)$")[0] < 32


def test_a_step_has_not_the_time_of_steps_inside_it() -> None:
    steps = Steps()

    def work() -> None:
        begin = time.thread_time_ns()
        while time.thread_time_ns() - begin < 4_000_000:
            pass

    begin = time.thread_time_ns()
    with steps.step("outer"):
        with steps.step("inner"):
            work()
        work()
        with steps.step("inner"):
            work()
    spent = time.thread_time_ns() - begin
    assert steps.ns["inner"] >= 8_000_000 and steps.ns["outer"] >= 4_000_000
    assert steps.ns["inner"] + steps.ns["outer"] <= spent
