"""The sink: streams are the partitions' bytes in order, whoever puts them, in whatever order."""

from __future__ import annotations

import pickle
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace import sink as module
from sigmatrace.errors import ClusterError, OutputError
from sigmatrace.sink import Sink

PARTS = st.lists(st.lists(st.binary(max_size=40), max_size=3), min_size=1, max_size=8)


def joined(parts):
    return b"".join(b"".join(buffers) for buffers in parts)


def put(sink, number, parts):
    streams = {"a": parts[number], "b": [memoryview(b"".join(parts[number]))]}
    sink.put(number, streams, f"value {number}")


@settings(deadline=None)
@given(parts=PARTS, data=st.data(), most=st.sampled_from([0, 30, 1000]))
def test_any_order_from_here_and_elsewhere_and_after_a_kill(parts, data, most):
    order = data.draw(st.permutations(range(len(parts))))
    kill_after = data.draw(st.integers(0, len(parts)))
    first_is_here, second_is_here = data.draw(st.tuples(st.booleans(), st.booleans()))
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WAITING_BYTES_MAX", most)
        folder = Path(name)
        killed = Sink(folder, "events")
        some = killed if first_is_here else pickle.loads(pickle.dumps(killed))
        for number in order[:kill_after]:
            put(some, number, parts)
        for stream in ("a", "b"):  # the kill came in the middle of a write
            with (folder / stream).open("ab") as file:
                file.write(b"half")
        sink = Sink(folder, "events").__enter__()
        done = [number for number in range(len(parts)) if sink.record(number) is not None]
        assert len(done) == sink.resumed <= kill_after
        assert all(sink.record(number) == f"value {number}" for number in done)
        if not first_is_here:
            assert sink.resumed == kill_after
        rest = sink if second_is_here else pickle.loads(pickle.dumps(sink))
        for number in order:
            if number not in done:
                put(rest, number, parts)
        sink.finish(len(parts))
        sink.__exit__()
        assert (folder / "a").read_bytes() == (folder / "b").read_bytes() == joined(parts)
        assert not list(folder.glob("*.part")) and not list(folder.glob(".*.part"))


def test_threads_do_not_wait_for_each_other(tmp_path):
    """While one thread writes, all others leave their bytes and go."""
    sink, parts = Sink(tmp_path, "events"), [[bytes([number])] for number in range(50)]
    enter, leave = threading.Event(), threading.Event()
    append = sink._append

    def slow(number, *rest):
        if number == 0:
            enter.set()
            assert leave.wait(60)
        return append(number, *rest)

    sink._append = slow
    writer = threading.Thread(target=put, args=(sink, 0, parts))
    writer.start()
    assert enter.wait(60)
    for number in range(1, 50):
        put(sink, number, parts)
    assert (tmp_path / "a").exists() is False
    leave.set()
    writer.join(60)
    assert (tmp_path / "a").read_bytes() == joined(parts)


def test_what_waits_too_much_is_set_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 10)
    sink, parts = Sink(tmp_path, "events"), [[b"0"], [b"1" * 4], [b"2" * 4]]
    put(sink, 1, parts)
    put(sink, 2, parts)
    assert sorted(path.name for path in tmp_path.glob(".*.part")) == [
        ".events.2.a.part",
        ".events.2.b.part",
    ]
    put(sink, 0, parts)
    assert (tmp_path / "a").read_bytes() == b"011112222"
    assert not list(tmp_path.glob(".*.part"))


def test_many_buffers_and_short_writes(tmp_path, monkeypatch):
    real = module.os.writev
    monkeypatch.setattr(module.os, "writev", lambda file, parts: real(file, [parts[0][:7]]))
    buffers = [bytes([k % 256]) * (k % 20) for k in range(3000)]
    with Sink(tmp_path, "events") as sink:
        sink.put(0, {"a": buffers}, None)
        sink.finish(1)
    assert (tmp_path / "a").read_bytes() == b"".join(buffers)


def test_more_streams_than_a_process_may_have_files(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "OPEN_MAX", 3)
    names = [f"stream {number}" for number in range(10)]
    (tmp_path / names[7]).write_bytes(b"of a run that was killed before its first record")
    others = len(list(Path("/proc/self/fd").iterdir()))
    with Sink(tmp_path, "events") as sink:
        for number in range(4):
            sink.put(number, {name: [f"{name} {number},".encode()] for name in names}, None)
            assert len(list(Path("/proc/self/fd").iterdir())) <= others + 3
        sink.finish(4)
    for name in names:
        assert (tmp_path / name).read_text() == "".join(f"{name} {n}," for n in range(4))


def test_a_value_that_cannot_be_kept_is_done_again(tmp_path):
    Sink(tmp_path, "events").put(0, {"a": [b"x"]}, lambda: None)
    with Sink(tmp_path, "events") as sink:
        assert sink.resumed == 0 and sink.record(0) is None
        sink.put(0, {"a": [b"x"]}, 1)
        sink.finish(1)
    assert (tmp_path / "a").read_bytes() == b"x"


def test_bytes_that_are_gone_are_made_again(tmp_path):
    sink = Sink(tmp_path, "events")
    for number in range(3):
        sink.put(number, {"a": [b"xyz"]}, number)
    (tmp_path / "a").write_bytes(b"xyzxy")
    with Sink(tmp_path, "events") as sink:
        pass
    assert (sink.resumed, sink.record(0), sink.record(1)) == (1, 0, None)


def test_a_full_disk_is_said(tmp_path):
    sink = Sink(tmp_path / "gone", "events")
    with pytest.raises(OutputError, match="cannot write: No such file"):
        sink.put(0, {"a": [b"x"]}, None)


def test_a_failed_pass_keeps_nothing_open(tmp_path):
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(KeyError), Sink(tmp_path, "events") as sink:
        sink.put(0, {"a": [b"x"], "b": [b"y"]}, None)
        raise KeyError
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_a_damaged_record_is_none(tmp_path):
    with Sink(tmp_path, "events") as sink:
        for number in range(2):
            sink.put(number, {"a": [b"xyz"]}, number)
    (tmp_path / ".events.1").write_bytes((tmp_path / ".events.1").read_bytes()[:10])
    with Sink(tmp_path, "events") as sink:
        assert (sink.resumed, sink.record(0), sink.record(1)) == (1, 0, None)
        sink.put(1, {"a": [b"xyz"]}, 1)
    assert (tmp_path / "a").read_bytes() == b"xyzxyz"


@pytest.mark.parametrize("harm", ["no record", "half a record", "no bytes", "a byte less"])
def test_what_a_worker_wrote_and_nobody_sees_is_no_empty_partition(tmp_path, harm):
    with Sink(tmp_path, "events") as sink:
        pickle.loads(pickle.dumps(sink)).put(0, {"a": [b"xyz"]}, "value")
        record, part = tmp_path / ".events.0", tmp_path / ".events.0.a.part"
        if harm == "no record":
            record.unlink()
        elif harm == "half a record":
            record.write_bytes(record.read_bytes()[:10])
        elif harm == "no bytes":
            part.unlink()
        else:
            part.write_bytes(b"xy")
        with pytest.raises(ClusterError, match="of partition 0 is not there"):
            sink.finish(1)


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("streams", [{"a": [b"xyz"]}, {}])
@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_partition_whose_own_file_is_gone_is_done_again(tmp_path, is_here, streams, harm):
    names = ["0.kept", "1.kept", "2.kept"]
    for name in names:
        (tmp_path / name).write_text("kept")
    sink = Sink(tmp_path, "events")
    one = sink if is_here else pickle.loads(pickle.dumps(sink))
    for number, name in enumerate(names):
        one.put(number, streams, number, [name, "never there"])
    if harm == "gone":
        (tmp_path / names[1]).unlink()
    else:
        (tmp_path / names[1]).write_text("ke")
    with Sink(tmp_path, "events") as sink:
        assert (sink.record(0), sink.record(1)) == (0, None)
        again = [number for number in range(3) if sink.record(number) is None]
        # What lies behind it in a stream is cut off; what lies for itself need not be.
        assert again == ([1, 2] if is_here and streams else [1])
        for number in again:
            sink.put(number, streams, number)
        sink.finish(3)
    if streams:
        assert (tmp_path / "a").read_bytes() == b"xyz" * 3


def test_a_whole_file_is_written_or_refused(tmp_path):
    module.write_whole(tmp_path / "file", b"first")
    module.write_whole(tmp_path / "file", b"second")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"second"}
    with pytest.raises(OutputError, match="cannot write"):
        module.write_whole(tmp_path / "nowhere" / "file", b"")
