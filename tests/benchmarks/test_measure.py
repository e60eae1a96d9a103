"""Costs of processes, judged by processes whose costs are known."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import measure
from benchmarks.measure import Cost, CountsDifferError, Goal

BLOCK = "block = bytes(60 * 10**6).replace(b'\\0', b'x')\n"
"""Touched, so resident."""


def test_peak_of_one_process_is_the_kernels() -> None:
    cost = measure.run([sys.executable, "-c", BLOCK + "print('done')"])
    assert cost.processes == 1
    assert 60 <= cost.peak_mb < 100
    assert cost.output == "done\n"


def test_memory_of_the_benchmark_is_not_the_tools() -> None:
    own = bytes(200 * 10**6).replace(b"\0", b"x")
    assert measure.run(["true"]).peak_mb < 20
    assert len(own) > 0


def test_what_a_tool_leaves_behind_is_ended() -> None:
    leaves = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid)"
    left = int(measure.run([sys.executable, "-c", leaves]).output)
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(left)
        ready, _, _ = select.select([process], [], [], 60)
        os.close(process)
        assert ready


def test_peak_of_several_processes_is_their_sum() -> None:
    spin = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    start = "import subprocess, sys\n"
    child = f"subprocess.run([sys.executable, '-c', {BLOCK + spin!r}], check=True)\n"
    cost = measure.run([sys.executable, "-c", start + BLOCK + child])
    assert cost.processes == 2
    assert cost.peak_mb >= 120
    assert cost.cpu_s >= 0.3  # the child's


def test_a_command_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="exit code 3\nwhy"):
        measure.run([sys.executable, "-c", "import sys; print('why'); sys.exit(3)"])


def test_first_open_is_told_by_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    opens = f"import os; os.listdir({str(tmp_path)!r}); open({str(tmp_path / 'file')!r})"
    assert 0 < measure.first_open_s([sys.executable, "-c", opens], tmp_path) < 60
    lists = f"import os; os.listdir({str(tmp_path)!r})"
    with pytest.raises(SystemExit, match="opened no file"):
        measure.first_open_s([sys.executable, "-c", lists], tmp_path)


def test_other_counts_end_the_benchmark() -> None:
    truth = {"events": 4, "matched": 2, "bytes": 100}
    measure.agree("tool", {"events": 4}, truth)
    with pytest.raises(CountsDifferError, match="tool did other work: matched 1 instead of 2"):
        measure.agree("tool", {"events": 4, "matched": 1}, truth)
    with pytest.raises(CountsDifferError, match="gives no counts"):
        measure.agree("tool", {}, truth)


def test_commands_take_turns_after_an_unmeasured_one() -> None:
    order: list[str] = []

    def noted(name: str) -> Cost:
        order.append(name)
        return Cost(len(order), 0.0, 0.0, 1, "")

    commands = {name: partial(noted, name) for name in "abc"}
    costs = measure.interleaved(commands, rounds=2, once={"b"})
    assert "".join(order) == "ac" + "abc" + "ac"
    assert [cost.wall_s for cost in costs["a"]] == [3, 6]
    assert [cost.wall_s for cost in costs["b"]] == [4]


def test_median_of_times_and_largest_peak() -> None:
    costs = [Cost(wall, wall * 2, peak, 1, "") for wall, peak in ((1, 9), (5, 3), (2, 4))]
    middle = measure.median(costs)
    assert (middle.wall_s, middle.cpu_s, middle.peak_mb) == (2, 4, 9)


@pytest.mark.parametrize(
    ("value", "more", "expected"),
    [(7, True, "aim"), (5, True, "must"), (3, True, "NO"), (3, False, "aim"), (5, False, "must"),
     (7, False, "NO")],
)  # fmt: skip
def test_goals(value: float, more: bool, expected: str) -> None:
    must, aim = (4, 6) if more else (6, 4)
    assert Goal("", value, must, aim, "", more).met() == expected
    assert Goal("", value, must, None, "", more).met() == expected.replace("aim", "must")


def test_tables_are_aligned_and_say_what_is_met() -> None:
    goal = Goal("speed", 123.4, 100, None, "M/s", more=True, note="fast")
    lines = measure.goals_table([goal]).splitlines()
    cells = [" speed (fast) ", "      123 ", "  100 ", "     ", "  M/s ", " must "]
    assert lines[2].split("|")[1:-1] == cells
    assert lines[1].startswith("|--------------|---------:|")
    assert len({len(line) for line in lines}) == 1


def test_scratch_folder_is_removed_and_space_is_checked(tmp_path: Path) -> None:
    with measure.scratch(tmp_path, 1) as folder:
        (folder / "file").touch()
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="fewer --events"), measure.scratch(tmp_path, 1 << 60):
        pass


def test_commands_keep_byte_code_as_an_installed_package_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "module.py").touch()
    (tmp_path / "read").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import module; open(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "read")]
    measure.run(command)
    assert len(list(tmp_path.glob("__pycache__/module.*.pyc"))) == 1
    shutil.rmtree(tmp_path / "__pycache__")
    measure.first_open_s(command, tmp_path)
    assert len(list(tmp_path.glob("__pycache__/module.*.pyc"))) == 1
