"""Partitions and their events against what was written."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from capture_cases import Loaded, check_balance, load_folder, small_channels
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.capture import items
from sigmatrace.capture.account import damage_rows
from sigmatrace.capture.index import index_file
from sigmatrace.capture.merge import merge
from sigmatrace.capture.read import plan, read
from sigmatrace.schema import EVENT_NAMES, EVENT_TABLES
from sigmatrace.testing.write import RankFile, records
from sigmatrace.trace_format import RECORDS, Kind, Schema


def random_records(schema: Schema, count: int, seed: int) -> np.ndarray:
    """Return records of random bytes, on channels 0 to 2."""
    rng = np.random.default_rng(seed)
    dtype = RECORDS[schema]
    rows = rng.integers(0, 256, (count, dtype.itemsize), dtype=np.uint8).view(dtype).reshape(count)
    names = dtype.names or ()
    if "channel" in names:
        rows["channel"] = rng.integers(0, 3, count)
    if schema == Schema.AGGREGATE:
        rows["count"] |= 1
    if schema == Schema.MARK:
        rows["value"] = rng.normal(size=count)
    return rows


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(EVENT_NAMES)), st.integers(1, 3), st.integers(0, 40)),
        max_size=12,
    ),
    st.sampled_from([1, 1000, 1 << 20]),
)
def test_every_field_of_every_record(
    tmp_path_factory: pytest.TempPathFactory,
    chunks: list[tuple[Schema, int, int]],
    target_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("run")
    calls = {str(x): f"call {255 - x}" for x in range(1, 256)}
    wanted: dict[tuple[Schema, int], list[np.ndarray]] = {}
    with RankFile(folder, calls=calls) as file:
        file.chunk(Schema.CHANNEL, 1, small_channels())
        for seed, (schema, tid, count) in enumerate(chunks):
            rows = random_records(schema, count, seed)
            file.chunk(schema, tid, rows)
            wanted.setdefault((schema, tid), []).append(rows)
        file.end()
    loaded = load_folder(folder, target_bytes)
    check_balance(loaded)
    assert loaded.account.is_lossless()
    tids = loaded.run.column("threads", "tid")
    for (schema, tid), parts in wanted.items():
        check_thread(loaded, schema, int(np.flatnonzero(tids == tid)[0]), np.concatenate(parts))


def check_thread(loaded: Loaded, schema: Schema, thread: int, wanted: np.ndarray) -> None:
    table = EVENT_NAMES[schema]
    mine = loaded.column(table, "thread") == thread
    assert int(mine.sum()) == len(wanted)
    for name in EVENT_TABLES[table]:
        found = loaded.column(table, name)[mine]
        if name == "proc":
            assert not found.any()
        elif name != "thread":
            assert found.dtype == np.dtype(EVENT_TABLES[table][name])
            assert np.array_equal(found, wanted[name]), name


def test_every_partition_has_every_table(small: bytes, tmp_path: Path) -> None:
    (tmp_path / "h-1-1.msgpack").write_bytes(small)
    for part in load_folder(tmp_path, target_bytes=1).parts:
        for name, columns in EVENT_TABLES.items():
            assert part.tables[name].column_names == list(columns)


@pytest.mark.parametrize("schema", [Schema.OP, Schema.COMPLETION])
def test_long_chunks_without_the_columns_that_nobody_reads(tmp_path: Path, schema: Schema) -> None:
    table = EVENT_NAMES[schema]
    chunks = [random_records(schema, count, count) for count in (1, 127, 128, 129, 1000)]
    with RankFile(tmp_path, calls={str(x): f"call {255 - x}" for x in range(1, 256)}) as file:
        file.chunk(Schema.CHANNEL, 1, small_channels())
        for rows in chunks:
            file.chunk(schema, 1, rows)
        file.end()
    wanted = np.concatenate(chunks)
    indexes = [index_file(file.path)]
    (spec,) = plan(indexes, merge(indexes)[1], target_bytes=1 << 20)
    for left_out in (*([name] for name in EVENT_TABLES[table]), [], list(EVENT_TABLES[table])):
        part, loss = read(spec, frozenset((table, name) for name in left_out))
        names = part.tables[table].column_names
        assert names == [x for x in EVENT_TABLES[table] if x == "proc" or x not in left_out]
        assert part.tables[table].num_rows == loss.read[0, int(schema)] == len(wanted)
        for name in set(names) - {"proc", "thread"}:
            assert np.array_equal(part.column(table, name), wanted[name]), name


def test_plan_splits_big_files_and_groups_small_ones(tmp_path: Path) -> None:
    def write(pid: int, chunks: int) -> None:
        with RankFile(tmp_path, pid=pid) as file:
            for at in range(chunks):
                file.chunk(Schema.OP, 1, records(Schema.OP, 100, t_tsc=at))

    write(1, 40)
    for pid in range(2, 12):
        write(pid, 1)
    indexes = [index_file(path) for path in sorted(tmp_path.iterdir())]
    _, bases = merge(indexes)
    specs = plan(indexes, bases, target_bytes=4 * 3200)
    assert [spec.number for spec in specs] == list(range(len(specs)))
    chunks = [[len(piece.chunks) for piece in spec.pieces] for spec in specs]
    assert chunks[:10] == [[4]] * 10
    assert chunks[10:] == [[1] * 4, [1] * 4, [1] * 2]
    assert sum(spec.data_bytes for spec in specs) == 50 * 3200
    assert all(len(pickle.dumps(spec)) < 10_000 for spec in specs)
    times = np.concatenate([read(spec)[0].column("ops", "t_tsc") for spec in specs[:10]])
    assert np.all(np.diff(times.astype(np.int64)) >= 0)


def test_lost_channels_keep_their_events(tmp_path: Path) -> None:
    """Half of the channel records are in a damaged chunk: events stay, without a peer."""
    channels = small_channels()
    with RankFile(tmp_path) as file:
        file.chunk(Schema.CHANNEL, 1, channels[[1]])
        file.chunk(Schema.CHANNEL, 1, channels[[0, 2]])
        for schema in (Schema.OP, Schema.COMPLETION, Schema.TARGET, Schema.AGGREGATE):
            rows = records(schema, 4, channel=[0, 1, 2, 2**32 - 1])
            if schema == Schema.AGGREGATE:
                rows["count"] = 1
            file.chunk(schema, 1, rows)
        file.end()
    path = file.path
    data = bytearray(path.read_bytes())
    bad = [x for x in items.walk(bytes(data)) if x.chunk and x.chunk.schema == Schema.CHANNEL][1]
    data[bad.offset + 150] ^= 1
    path.write_bytes(bytes(data))
    loaded = load_folder(tmp_path)
    known, placeholder = loaded.run.tables["channels"].to_pylist()
    assert (known["id"], known["peer"]) == (1, 5)
    assert (placeholder["kind"], placeholder["dir"], placeholder["id"]) == (0, 0, 2**32 - 1)
    for table in ("ops", "completions", "targets", "aggregates"):
        assert loaded.column(table, "channel").tolist() == [1, 0, 1, 1]
    assert loaded.account.unknown_channel == 12
    assert loaded.account.schemas["channel"].damaged == 2
    assert [(x.offset, x.records) for x in loaded.account.lost_chunks] == [(bad.offset, 2)]
    check_balance(loaded)


def test_channels_that_never_were(tmp_path: Path) -> None:
    """All channels are there: an event of another one is a mistake of the writer."""
    with RankFile(tmp_path) as file:
        file.chunk(Schema.CHANNEL, 1, small_channels())
        file.chunk(Schema.OP, 1, records(Schema.OP, 4, channel=[0, 3, 2, 2**32 - 1], t_tsc=9))
        file.end()
    loaded = load_folder(tmp_path)
    assert loaded.column("ops", "channel").tolist() == [0, 2]
    assert loaded.account.schemas["op"].bad_channel == 2
    assert loaded.account.schemas["op"].missing == 0
    assert not loaded.account.is_lossless()
    check_balance(loaded)


def test_channels_are_checked_even_if_nobody_reads_them(tmp_path: Path) -> None:
    with RankFile(tmp_path) as file:
        file.chunk(Schema.CHANNEL, 1, small_channels())
        file.chunk(Schema.OP, 1, records(Schema.OP, 3, channel=[0, 3, 2], t_tsc=[7, 8, 9]))
        file.end()
    indexes = [index_file(file.path)]
    (spec,) = plan(indexes, merge(indexes)[1], target_bytes=1 << 20)
    part, loss = read(spec, frozenset({("ops", "channel")}))
    assert part.column("ops", "t_tsc").tolist() == [7, 9]
    assert (loss.read[0, 1], loss.bad_channel[0, 1]) == (2, 1)


def test_no_channel_at_all(tmp_path: Path) -> None:
    with RankFile(tmp_path) as file:
        file.chunk(Schema.OP, 1, records(Schema.OP, 4, channel=[0, 3, 2, 1]))
    loaded = load_folder(tmp_path)
    assert loaded.column("ops", "channel").tolist() == [0] * 4
    assert loaded.run.column("channels", "kind").tolist() == [0]
    assert Kind.MSG != 0


def test_records_that_are_missing_are_counted(tmp_path: Path) -> None:
    with RankFile(tmp_path) as file:
        file.chunk(Schema.CHANNEL, 1, small_channels())
        file.chunk(Schema.OP, 1, records(Schema.OP, 10))
        cut_from = file._file.tell()
        file.chunk(Schema.OP, 1, records(Schema.OP, 20))
        cut_to = file._file.tell()
        file.chunk(Schema.OP, 1, records(Schema.OP, 30))
        file.drop(Schema.OP, 1, 7)
        file.end()
    data = file.path.read_bytes()
    file.path.write_bytes(data[:cut_from] + data[cut_to:])
    loaded = load_folder(tmp_path)
    total = loaded.account.schemas["op"]
    assert (total.written, total.read, total.missing, total.dropped) == (60, 40, 20, 7)
    assert total.gap_chunks == 1
    check_balance(loaded)


def test_drops_of_an_open_file(tmp_path: Path) -> None:
    with RankFile(tmp_path) as file:
        for tid in (1, 2):
            file.chunk(Schema.OP, tid, records(Schema.OP, 1))
            file.drop(Schema.OP, tid, 3)
            file.chunk(Schema.OP, tid, records(Schema.OP, 1))
            file.drop(Schema.OP, tid, 2)
            file.chunk(Schema.OP, tid, records(Schema.OP, 1))
    loaded = load_folder(tmp_path)
    assert loaded.account.schemas["op"].dropped == 10
    assert len(loaded.account.open_files) == 1


def test_damage_found_while_reading_becomes_rows(tmp_path: Path) -> None:
    with RankFile(tmp_path) as file:
        offset = file._file.tell()
        file.chunk(Schema.OP, 1, records(Schema.OP, 10))
        size = file._file.tell() - offset
        file.end()
    data = bytearray(file.path.read_bytes())
    data[offset + 200] ^= 1
    file.path.write_bytes(bytes(data))
    loaded = load_folder(tmp_path)
    [row] = damage_rows(loaded.indexes, loaded.bases, loaded.loss).to_pylist()
    assert (row["offset"], row["size_bytes"], row["what"]) == (offset, size, "damaged")
    assert loaded.account.schemas["op"].damaged == 10
    check_balance(loaded)


def test_a_file_that_shrank_or_went_away(tmp_path: Path) -> None:
    with RankFile(tmp_path) as file:
        for _ in range(2):
            file.chunk(Schema.OP, 1, records(Schema.OP, 10))
    index = index_file(file.path)
    _, bases = merge([index])
    [spec] = plan([index], bases, 1 << 20)
    file.path.write_bytes(file.path.read_bytes()[:-1])
    part, loss = read(spec)
    assert part.tables["ops"].num_rows == 10
    assert [x.reason for x in loss.chunks] == ["file shrunk"]
    file.path.unlink()
    part, loss = read(spec)
    assert part.tables["ops"].num_rows == 0
    assert len(loss.chunks) == 2
