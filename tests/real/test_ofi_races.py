"""The libfabric layer when calls of several threads meet, in a provider made for the purpose."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ofi_run import HOOK, Rank, compiled, environment, lib_dir, read_all

pytestmark = pytest.mark.real


def run(case: str, tmp: Path) -> tuple[int, Rank]:
    """Sends that the provider saw, and what was recorded."""
    command = [str(compiled("ofi_race")), str(lib_dir() / "prov" / HOOK), case]
    env = environment("hook", tmp, "simple")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)
    (rank,) = read_all(tmp)
    return int(done.stdout), rank


def recorded(rank: Rank) -> int:
    (channel,) = rank.records(2)
    ops = rank.records(1)
    assert {op["channel"] for op in ops} == {channel["id"]} and {op["op"] for op in ops} == {1}
    assert sorted(op["ordinal"] for op in ops) == list(range(len(ops)))
    return len(ops)


@pytest.mark.parametrize(
    ("case", "sends"), [("setup", 6), ("copied", 1), ("protected", 1), ("again", 1)]
)
def test_every_send_is_recorded(case: str, sends: int, tmp_path: Path) -> None:
    seen, rank = run(case, tmp_path)
    assert seen == recorded(rank) == sends
    assert rank.end is not None and rank.end["lost"] == {}


def test_a_send_beside_a_refused_close_is_counted(tmp_path: Path) -> None:
    seen, rank = run("close", tmp_path)
    assert (seen, recorded(rank)) == (2, 1)
    lost = {"call while its object was being closed": 1}
    assert rank.end is not None and rank.end["lost"] == lost


def test_an_alias_outlives_its_endpoint(tmp_path: Path) -> None:
    seen, rank = run("alias", tmp_path)
    assert seen == 1 and rank.records(1) == []
    lost = {"endpoint alias: its operations are not seen": 1}
    assert rank.end is not None and rank.end["lost"] == lost
