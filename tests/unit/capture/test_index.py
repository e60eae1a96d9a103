"""Files of a folder, their indexes, and the run that they make."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from capture_cases import NAME, check_balance, load_folder, small_channels

from sigmatrace.capture.index import index_file
from sigmatrace.capture.merge import merge
from sigmatrace.capture.rank_files import find_rank_files
from sigmatrace.errors import ChunkFormatError, MixedRunsError, RunNotFoundError
from sigmatrace.schema import INDEX_TABLES
from sigmatrace.testing.write import RankFile, header_item, records
from sigmatrace.trace_format import Schema


def write(folder: Path, host: str = "a", pid: int = 1, **fields: object) -> Path:
    """Write a file with one operation on channel 2 of three."""
    with RankFile(folder, host, pid, **fields) as file:
        file.chunk(Schema.CHANNEL, pid, small_channels())
        file.chunk(Schema.OP, pid, records(Schema.OP, 1, t_tsc=pid, channel=2, call=2))
        file.clock(1, 10**18)
        file.end()
    return file.path


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="nowhere does not exist"):
        find_rank_files(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(RunNotFoundError, match="is not a folder"):
        find_rank_files(tmp_path / "file")


def test_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(RunNotFoundError, match="no trace files"):
        find_rank_files(tmp_path)


def test_foreign_files_alone(tmp_path: Path) -> None:
    (tmp_path / "data.msgpack").write_bytes(msgpack.packb({"a": 1}))
    with pytest.raises(RunNotFoundError, match=r"data\.msgpack is not of SigmaTrace's format"):
        find_rank_files(tmp_path)
    (tmp_path / "text.msgpack").write_text("hello")
    with pytest.raises(RunNotFoundError, match=r"data\.msgpack and 1 other are not of"):
        find_rank_files(tmp_path)


def test_foreign_files_among_good_ones_are_named_and_skipped(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "data.msgpack").write_bytes(msgpack.packb({"a": 1}))
    (tmp_path / "empty.msgpack").touch()
    (tmp_path / NAME).write_text("hello, I am a text file")
    (tmp_path / "folder.msgpack").mkdir()
    loaded = load_folder(tmp_path)
    rows = loaded.run.tables["damage"].to_pylist()
    assert {(Path(x["path"]).name, x["what"], x["proc"], x["size_bytes"]) for x in rows} == {
        ("data.msgpack", "foreign", -1, 4),
        ("empty.msgpack", "empty", -1, 0),
        ("folder.msgpack", "unreadable: not a regular file", -1, 0),
        (NAME, "foreign", -1, 23),
    }
    assert loaded.account.schemas["op"].read == 1
    assert not loaded.account.is_lossless()
    check_balance(loaded)


def test_an_empty_file_with_a_telling_name_is_a_process_that_wrote_nothing(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    loaded = load_folder(tmp_path)
    [process] = loaded.run.tables["processes"].to_pylist()
    assert (process["host"], process["pid"], process["start_ns"]) == ("host", 1, 10**18)
    assert loaded.parts == []
    assert loaded.account.empty_files == [str(tmp_path / NAME)]
    assert loaded.account.open_files == [] and not loaded.account.is_lossless()


def test_unreadable_file(tmp_path: Path) -> None:
    write(tmp_path)
    gone = index_file(tmp_path / "x-1-2.msgpack")
    assert gone.problem == "unreadable"
    run, _ = merge([gone, index_file(next(tmp_path.iterdir()))])
    assert run.column("damage", "what").tolist() == ["unreadable: No such file or directory"]


def no_link(place: Path) -> None:
    place.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (no_link, "No such file or directory"),
        (Path.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),
    ],
)
@pytest.mark.parametrize("name", ["rank0.msgpack", "host-2-1.msgpack"])
def test_what_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, make: Callable[[Path], None], why: str, name: str
) -> None:
    write(tmp_path)
    make(tmp_path / name)
    loaded = load_folder(tmp_path)
    assert loaded.account.unreadable_files == {str(tmp_path / name): why}
    assert loaded.account.empty_files == [] and not loaded.account.is_lossless()
    assert loaded.account.schemas["op"].read == 1
    check_balance(loaded)


def test_a_ring_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load_folder(tmp_path).account.unreadable_files == {}
    ring = path.with_suffix(".ring")
    no_link(ring)
    loaded = load_folder(tmp_path)
    assert loaded.account.unreadable_files == {str(ring): "No such file or directory"}
    (row,) = loaded.run.tables["damage"].to_pylist()
    assert row["what"] == "ring file unreadable: No such file or directory" and row["proc"] == 0
    assert loaded.account.schemas["op"].read == 1


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    write(tmp_path)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(RunNotFoundError, match="cannot be read: Permission denied"):
        find_rank_files(tmp_path)


@pytest.mark.parametrize("version", [[2, 0], [0, 9], [1], "1.0", None, [[], {}], [2**63, "x" * 99]])
def test_versions_that_are_refused(tmp_path: Path, version: object) -> None:
    path = tmp_path / NAME
    path.write_bytes(header_item(version=version))
    with pytest.raises(ChunkFormatError, match=NAME) as caught:
        index_file(path)
    assert len(str(caught.value)) < len(str(path)) + 200
    if version == [2, 0]:
        assert "version 2.0" in str(caught.value)


def test_a_newer_minor_version_is_read(tmp_path: Path) -> None:
    write(tmp_path, version=[1, 7], news="something")
    assert load_folder(tmp_path).account.is_lossless()


def test_mixed_runs(tmp_path: Path) -> None:
    write(tmp_path, pid=1, run_id="first")
    write(tmp_path, pid=2, run_id="second")
    with pytest.raises(MixedRunsError, match=r"'first', 'second'.*run_id=first"):
        load_folder(tmp_path)
    loaded = load_folder(tmp_path, run_id="second")
    assert loaded.run.column("processes", "pid").tolist() == [2]
    assert [Path(file.path).name[:4] for file in loaded.account.files] == ["a-2-"]
    assert loaded.column("ops", "t_tsc").tolist() == [2]
    with pytest.raises(RunNotFoundError, match="run_id=third"):
        load_folder(tmp_path, run_id="third")


def test_a_damaged_header_belongs_to_any_run(tmp_path: Path) -> None:
    write(tmp_path, pid=1, run_id="first")
    path = write(tmp_path, pid=2, run_id="second")
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(bytes(data))
    assert load_folder(tmp_path).run.facts["run_id"] == "first"


def test_order_and_labels_of_processes(tmp_path: Path) -> None:
    for host, pid, rank in (("b", 5, 1), ("a", 9, 0), ("b", 4, -1), ("a", 4, -1), ("b", 6, 1)):
        write(tmp_path, host, pid, rank=rank)
    write(tmp_path, "c", 12)
    processes = load_folder(tmp_path).run.tables["processes"]
    assert processes["proc"].to_pylist() == list(range(6))
    assert processes["label"].to_pylist() == [
        "rank 0", "rank 1 pid 5", "rank 1 pid 6", "pid 4 @a", "pid 4 @b", "pid 12",
    ]  # fmt: skip


def test_machines_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Containers of several machines often have one name; a header that is lost tells no boot."""
    for pid, boot in enumerate(("x", "y", "x", ""), 1):
        write(tmp_path, "box", pid, boot_id=boot, rank=pid)
    write(tmp_path, "alone", 9, boot_id="x", rank=9)
    hosts = load_folder(tmp_path).run.tables["processes"].column("host").to_pylist()
    assert hosts == ["box#1", "box#2", "box#1", "box", "alone"]


def test_every_table_has_its_columns(tmp_path: Path) -> None:
    write(tmp_path)
    tables = load_folder(tmp_path).run.tables
    assert set(tables) == set(INDEX_TABLES)
    for name, columns in INDEX_TABLES.items():
        assert tables[name].column_names == list(columns)
        for column, dtype in columns.items():
            found = tables[name].schema.field(column).type
            assert found == (
                pa.string() if dtype == "str" else pa.from_numpy_dtype(np.dtype(dtype))
            )


def test_channels_threads_and_calls_are_numbered_over_the_run(tmp_path: Path) -> None:
    write(tmp_path, pid=1, rank=0, calls={"1": "fi_send", "2": "fi_recv"})
    write(tmp_path, pid=2, rank=1, calls={"2": "fi_send", "7": "fi_read"})
    loaded = load_folder(tmp_path)
    run = loaded.run
    assert run.column("channels", "channel").tolist() == list(range(6))
    assert run.column("channels", "proc").tolist() == [0, 0, 0, 1, 1, 1]
    assert run.column("channels", "peer").tolist() == [4, 5, 6] * 2
    assert run.column("threads", "tid").tolist() == [1, 2]
    assert loaded.column("ops", "channel").tolist() == [2, 5]
    assert loaded.column("ops", "thread").tolist() == [0, 1]
    texts = dict(zip(*run.tables["calls"].to_pydict().values(), strict=True))
    assert texts == {0: "", 1: "fi_send", 2: "fi_recv", 3: "fi_read"}
    assert [texts[x] for x in loaded.column("ops", "call").tolist()] == ["fi_recv", "fi_send"]


def test_more_call_names_than_numbers(tmp_path: Path) -> None:
    for pid in (1, 2):
        write(tmp_path, pid=pid, calls={str(x): f"call {pid} {x}" for x in range(1, 200)})
    loaded = load_folder(tmp_path)
    calls = loaded.run.tables["calls"]
    assert calls.num_rows == 256
    assert len(set(calls["text"].to_pylist())) == 256
    assert loaded.column("ops", "call").tolist() == [2, 201]


def test_indexes_are_small_and_picklable(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with RankFile(tmp_path) as file:
        for at in range(24):
            file.chunk(Schema.OP, 7, records(Schema.OP, 1000, t_tsc=at))
    index = index_file(path)
    packed = pickle.dumps(index)
    assert len(packed) < 14_500 < path.stat().st_size // 50
    again = pickle.loads(packed)
    assert np.array_equal(again.chunks, index.chunks)
    assert again.chunks["count"].tolist() == [1000] * 24
    assert again.chunks["first_tsc"].tolist() == list(range(24))


def test_end_and_clocks(tmp_path: Path) -> None:
    write(tmp_path)
    loaded = load_folder(tmp_path)
    assert loaded.run.column("processes", "end").tolist() == ["exit"]
    [clock] = loaded.run.tables["clocks"].to_pylist()
    assert clock == {
        "proc": 0, "tsc": 1, "wall_ns": 10**18, "width_tsc": 40, "source": "realtime",
    }  # fmt: skip


def test_what_is_absent_from_a_file_and_what_was_lost(tmp_path: Path) -> None:
    def one(pid: int, written: int, dropped: int, end: bool = True) -> None:
        with RankFile(tmp_path, "a", pid) as file:
            file.chunk(Schema.CHANNEL, pid, small_channels())
            file.drop(Schema.OP, pid, dropped)
            file.chunk(Schema.OP, pid, records(Schema.OP, 3, channel=2))
            file.written[int(Schema.OP)] = written
            if end:
                file.end(lost={"this": 5, "that": 2**64 - 1} if pid == 2 else {})

    for pid, numbers in enumerate(((3, 0), (7, 2), (3, 4, False)), start=1):
        one(pid, *numbers)
    run = load_folder(tmp_path).run
    assert run.column("processes", "absent").tolist() == [0, 4 + 2, 4]
    assert run.column("processes", "lost").tolist() == [0, 2**64 - 1, 0]
