"""Reading a file in pieces: as bytes, and when the file shrinks meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from capture_cases import NAME, small_channels
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.capture import items
from sigmatrace.capture.account import account
from sigmatrace.capture.captured import read as read_captured
from sigmatrace.capture.index import index_file
from sigmatrace.capture.merge import merge
from sigmatrace.capture.read import plan, read
from sigmatrace.capture.view import opened
from sigmatrace.testing.write import RankFile, records
from sigmatrace.trace_format import Schema

SIZE = 3 << 20


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    data = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8).tobytes()
    path = tmp_path_factory.mktemp("view") / "big"
    path.write_bytes(data)
    return path, data


places = st.integers(0, SIZE + 10) | st.integers(0, 20_000)


@settings(deadline=None, max_examples=50)
@given(spans=st.lists(st.tuples(places, st.integers(0, 20_000)), max_size=10))
def test_slices_are_those_of_bytes(big: tuple[Path, bytes], spans: list[tuple[int, int]]) -> None:
    path, data = big
    with opened(path) as view:
        assert len(view) == SIZE
        for start, size in spans:
            assert view[start : start + size] == data[start : start + size]


@pytest.mark.parametrize("at", [0, 5, (1 << 20) - 3, (1 << 20) - 1, 1 << 20, SIZE - 6])
def test_find_sees_what_lies_across_pieces(tmp_path: Path, at: int) -> None:
    data = bytearray(SIZE)
    data[at : at + 6] = b"needle"
    (tmp_path / "file").write_bytes(data)
    with opened(tmp_path / "file") as view:
        for start in (0, max(0, at - 1), at):
            assert view.find(b"needle", start) == at
        assert view.find(b"needle", at + 1) == -1


def test_what_went_away_reads_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 50_000)
    with opened(path) as view:
        os.truncate(path, 100)
        assert view[90:20_110] == b"x" * 10 + bytes(20_010)
        assert view[30_000:30_010] == bytes(10)
        assert view.find(b"x", 101) == -1
        assert not view.read_into(0, np.empty(101, np.uint8))
        room = np.empty(100, np.uint8)
        assert view.read_into(0, room) and room.tobytes() == b"x" * 100


def a_run(folder: Path) -> list[int]:
    """Write a file of four chunks of operations; return its size after each."""
    sizes = []
    with RankFile(folder) as file:
        file.chunk(Schema.CHANNEL, 7, small_channels())
        for at in range(4):
            rows = records(Schema.OP, 1000, t_tsc=np.arange(1000) + 1000 * at + 1)
            file.chunk(Schema.OP, 7, rows)
            sizes.append(file._file.tell())
        file.end()
    return sizes


@pytest.mark.parametrize("cut", [0, 1])
def test_a_file_that_shrinks_between_index_and_read(tmp_path: Path, cut: int) -> None:
    sizes = a_run(tmp_path)
    index = index_file(tmp_path / NAME)
    _, bases = merge([index])
    [spec] = plan([index], bases, 1 << 20)
    os.truncate(tmp_path / NAME, sizes[1] + 100 * cut)
    part, loss = read(spec)
    assert part.column("ops", "t_tsc").tolist() == list(range(1, 2001))
    assert [(x.reason, x.records) for x in loss.chunks] == [("file shrunk", 1000)] * 2
    told = account([index], bases, loss)
    assert told.schemas["op"].damaged == 2000
    assert sum(file.size_bytes - file.whole for file in told.files) == 2 * (sizes[3] - sizes[2])


def test_a_file_that_shrinks_while_it_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = a_run(tmp_path)
    real, seen = items._chunk, 0

    def shrinking(head: bytes) -> items.Chunk | None:
        nonlocal seen
        seen += 1
        if seen == 4:
            os.truncate(tmp_path / NAME, sizes[1])
        return real(head)

    monkeypatch.setattr(items, "_chunk", shrinking)
    index = index_file(tmp_path / NAME)
    _, bases = merge([index])
    loss = read(plan([index], bases, 1 << 20)[0])[1]
    told = account([index], bases, loss)
    assert told.schemas["op"].read_open == 2000
    [file] = told.files
    assert file.size_bytes == file.whole + file.damaged + file.cut
    assert file.size_bytes > sizes[3]


def test_the_closing_report_of_a_file_that_shrinks(tmp_path: Path) -> None:
    a_run(tmp_path)
    [one] = read_captured(tmp_path, "run", 0)
    assert one.operations == 4000
    os.truncate(tmp_path / NAME, 0)
    assert read_captured(tmp_path, "run", 0)[0].operations == 0
