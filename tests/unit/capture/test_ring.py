"""What a killed process leaves in its ring file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from capture_cases import NAME, check_balance, load_folder, small_channels
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.capture import ring
from sigmatrace.capture.index import index_file
from sigmatrace.capture.merge import merge
from sigmatrace.capture.read import plan, read
from sigmatrace.testing.write import RankFile, records, ring_file
from sigmatrace.trace_format import Schema

RING_NAME = NAME.replace(".msgpack", ".ring")


def ops(first: int, count: int) -> np.ndarray:
    return records(Schema.OP, count, t_tsc=np.arange(first, first + count), channel=1)


def killed(folder: Path, ring_bytes: bytes) -> None:
    """Write a file with operations 100 to 109 of thread 7 (chunks 0, 1) and a ring beside it."""
    with RankFile(folder) as file:
        file.chunk(Schema.OP, 7, ops(100, 5))
        file.chunk(Schema.OP, 7, ops(105, 5))
    (folder / RING_NAME).write_bytes(ring_bytes)


def test_the_tail_is_read(tmp_path: Path) -> None:
    killed(
        tmp_path,
        ring_file(
            [
                (Schema.CHANNEL, 7, 0, small_channels()),
                (Schema.OP, 7, 2, ops(110, 3)),
                (Schema.OP, 8, 0, ops(200, 2)),
                (Schema.COMPLETION, 8, 0, records(Schema.COMPLETION, 0)),
            ]
        ),
    )
    loaded = load_folder(tmp_path)
    times = loaded.column("ops", "t_tsc")
    assert sorted(times.tolist()) == [*range(100, 113), 200, 201]
    assert loaded.bases[0].channel_count == 3
    assert loaded.account.unknown_channel == 0
    assert loaded.account.schemas["op"].read_open == 15
    assert loaded.account.schemas["op"].recovered_open == 5
    assert loaded.account.schemas["channel"].read_open == 3
    chunks = loaded.indexes[0].chunks
    assert chunks[chunks["source"] == 1]["first_tsc"].tolist() == [0, 110, 200]
    check_balance(loaded)


def test_threads_stay_together_and_in_order(tmp_path: Path) -> None:
    with RankFile(tmp_path) as file:
        for first in (100, 110):
            file.chunk(Schema.OP, 9, ops(first + 1000, 5))
            file.chunk(Schema.OP, 7, ops(first, 5))
    (tmp_path / RING_NAME).write_bytes(
        ring_file([(Schema.OP, 9, 2, ops(1120, 1)), (Schema.OP, 7, 2, ops(120, 1))])
    )
    loaded = load_folder(tmp_path)
    assert np.array_equal(loaded.column("ops", "thread"), np.repeat([0, 1], 11))
    assert np.all(np.diff(loaded.column("ops", "t_tsc").astype(np.int64)) > 0)


def test_a_segment_that_was_just_written_out_is_not_read_twice(tmp_path: Path) -> None:
    killed(tmp_path, ring_file([(Schema.OP, 7, 1, ops(105, 5)), (Schema.OP, 7, 1, ops(105, 5))]))
    assert load_folder(tmp_path).column("ops", "t_tsc").tolist() == list(range(100, 110))


def test_a_segment_whose_chunk_was_cut_is_read(tmp_path: Path) -> None:
    """Killed while the chunk was being written: the file holds half of it, the ring all."""
    killed(tmp_path, ring_file([(Schema.OP, 7, 1, ops(105, 5))]))
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-20])
    loaded = load_folder(tmp_path)
    assert loaded.column("ops", "t_tsc").tolist() == list(range(100, 110))
    assert loaded.account.files[0].cut > 0
    check_balance(loaded)


def test_what_could_not_be_written_is_recovered_and_not_surplus(tmp_path: Path) -> None:
    """The disk was full: the end item counts what is in the file, the ring has the rest."""
    with RankFile(tmp_path) as file:
        file.chunk(Schema.CHANNEL, 7, small_channels())
        file.chunk(Schema.OP, 7, ops(100, 5))
        file.end(reason="disk full", lost={"operation": 4})
    (tmp_path / RING_NAME).write_bytes(ring_file([(Schema.OP, 7, 1, ops(105, 3))]))
    loaded = load_folder(tmp_path)
    total = loaded.account.schemas["op"]
    assert (total.written, total.recovered, total.read) == (5, 3, 8)
    assert (total.surplus, total.missing, total.recovered_open) == (0, 0, 0)
    assert loaded.account.lost_at_capture == {"operation": 4}
    check_balance(loaded)


def test_aggregate_rows_are_taken_from_the_ring(tmp_path: Path) -> None:
    with RankFile(tmp_path, mode="aggregate") as file:
        file.chunk(Schema.CHANNEL, 7, small_channels())
    rows = records(Schema.AGGREGATE, 8, channel=2)
    rows["count"][[1, 5]] = 3, 4
    (tmp_path / RING_NAME).write_bytes(ring_file([(Schema.AGGREGATE, 7, 0, rows)], capacity=8))
    loaded = load_folder(tmp_path)
    assert loaded.column("aggregates", "count").tolist() == [3, 4]
    assert loaded.account.schemas["aggregate"].unused_open == 6
    assert loaded.account.schemas["aggregate"].read_open == 2


def test_a_segment_that_moved_on_between_index_and_read_is_lost_by_name(tmp_path: Path) -> None:
    killed(tmp_path, ring_file([(Schema.OP, 7, 2, ops(110, 3))]))
    index = index_file(tmp_path / NAME)
    _, bases = merge([index])
    [spec] = plan([index], bases, 1 << 20)
    (tmp_path / RING_NAME).write_bytes(ring_file([(Schema.OP, 7, 3, ops(113, 3))]))
    part, loss = read(spec)
    assert part.column("ops", "t_tsc").tolist() == list(range(100, 110))
    assert [(x.reason, x.records) for x in loss.chunks] == [("ring changed", 3)]
    (tmp_path / RING_NAME).unlink()
    _, loss = read(spec)
    assert [x.reason for x in loss.chunks] == ["unreadable: No such file or directory"]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 7),  # state
        (8, 2**63), (8, 1), (8, 0),  # bytes of the area
        (32, 2**64 - 1),  # count
        (48, 31), (48, 0),  # bytes of a record
        (56, 2**64 - 1), (56, 1),  # capacity
        (64, 2**64 - 1), (64, 0),  # offset of the first record
    ],
)  # fmt: skip
def test_no_number_of_an_area_is_trusted_beyond_the_file(at: int, value: int) -> None:
    areas = [(Schema.OP, 7, 2, ops(110, 3)), (Schema.OP, 8, 0, ops(200, 2))]
    data = bytearray(ring_file(areas))
    struct.pack_into("<Q", data, 4096 + at, value)
    check_segments(bytes(data))


@settings(deadline=None)
@given(st.data())
def test_any_ring_of_any_length(data: st.DataObject) -> None:
    whole = bytearray(ring_file([(Schema.OP, 7, 2, ops(110, 3))], capacity=4, control_bytes=128))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, 40) | st.integers(4096, 4096 + 80))
        whole[at] = data.draw(st.integers(0, 255))
    check_segments(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


def with_gap(pages: int, after: int = 1) -> bytes:
    """Return a ring with a few pages of zeros before the area number ``after``."""
    areas = [(Schema.OP, 7, 2, ops(110, 3)), (Schema.OP, 8, 0, ops(200, 2))]
    whole = ring_file(areas)
    at = 4096 + after * (len(whole) - 4096) // 2
    return whole[:at] + bytes(4096 * pages) + whole[at:]


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("pages", [1, 2, 65])
def test_an_area_that_was_being_made_is_stepped_over(
    tmp_path: Path, pages: int, after: int
) -> None:
    killed(tmp_path, with_gap(pages, after))
    loaded = load_folder(tmp_path)
    times = sorted(loaded.column("ops", "t_tsc").tolist())
    assert times == [*range(100, 113), 200, 201]
    check_balance(loaded)


def test_an_area_half_allocated_at_the_end(tmp_path: Path) -> None:
    killed(tmp_path, with_gap(1, 2)[:-4000])
    assert len(load_folder(tmp_path).column("ops", "t_tsc")) == 15


def check_segments(data: bytes) -> None:
    for segment in ring.segments(data):
        size = segment.records * records(Schema(segment.schema), 0).dtype.itemsize
        assert 0 < segment.first <= segment.first + size <= len(data)
        ring.times(data, segment)
        assert ring.is_unchanged(data, segment)


def test_what_is_no_ring_is_left_alone(tmp_path: Path) -> None:
    killed(tmp_path, b"STRCRING but not really")
    assert load_folder(tmp_path).account.schemas["op"].read_open == 10
    newer = bytearray(ring_file([(Schema.OP, 7, 2, ops(110, 3))]))
    newer[8] = 2
    (tmp_path / RING_NAME).write_bytes(bytes(newer))
    assert load_folder(tmp_path).account.schemas["op"].read_open == 10
