"""The ring file where its file system does not do what is expected."""

from __future__ import annotations

from pathlib import Path

import pytest
from native_run import compile_c

HERE = Path(__file__).parent


@pytest.fixture
def refusing(tmp_path: Path) -> Path:
    """A library that makes the first attempts to fault pages in fail."""
    return compile_c(HERE / "refusing_madvise.c", tmp_path / "librefusing.so", "-shared", "-fPIC")


def test_a_file_whose_size_was_set_back_is_extended_again(drive, refusing: Path) -> None:
    result = drive("count", 5000, LD_PRELOAD=str(refusing), FAULTS="3", SIGMATRACE_SEGMENT_KIB="16")
    rank = result.rank()
    assert [op["size_bytes"] for op in rank.records(1)] == list(range(1, 5001))
    assert rank.end["reason"] == "exit" and rank.end["lost"] == {} and result.stderr == ""


def test_a_file_that_cannot_grow_ends_the_recording_alone(drive, refusing: Path) -> None:
    result = drive("count", 5000, LD_PRELOAD=str(refusing), FAULTS="1000000")
    assert "cannot create the ring file (Bad address)" in result.stderr
    assert not result.rank().records(1)
