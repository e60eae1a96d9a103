"""The table of handles: what is published is found, and exactly that is removed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from native_run import compile_with_core, environment

TABLE = 1 << 17


@pytest.fixture(scope="module")
def handles(native_lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_with_core("handle_driver", native_lib, tmp_path_factory.mktemp("handles"))


def told(program: Path, command: str) -> dict[str, int]:
    done = subprocess.run(
        [program, command], env=environment(None), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_addresses_that_wander_between_threads(handles: Path) -> None:
    assert told(handles, "threads") == {"wrong": 0}


def test_a_full_table_says_so_and_has_room_again(handles: Path) -> None:
    full = told(handles, "full")
    assert TABLE // 2 < full["taken"] <= TABLE
    assert full["found"] == full["removed"] == full["taken"]
    assert full["again"] == 1
