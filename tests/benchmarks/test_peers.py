"""Peers get the events of a run, and give its counts; read here by plain Python."""

from __future__ import annotations

import gzip
import json
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgpack
import polars as pl
import pytest

from benchmarks import peers, peers_speed, runs
from benchmarks.measure import Cost, CountsDifferError
from benchmarks.peers import inputs

IN_DEVELOPMENT = [peer for peer in peers.PEERS if peer.input in ("csv", "msgpack")]
"""Whose packages are there wherever tests run."""
CTF_HEAD, CTF_EVENT = struct.Struct("<IIQQQQ"), struct.Struct("<BQIIQ")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Synthetic:
    return runs.synthetic(tmp_path_factory.mktemp("peers") / "run", ranks=4, events=2000)


@pytest.fixture(scope="module")
def given(run: runs.Synthetic) -> Path:
    inputs.write(run.folder, run.folder.parent, set(inputs.WRITERS))
    return run.folder.parent


@pytest.mark.parametrize("peer", IN_DEVELOPMENT, ids=lambda peer: peer.name)
def test_counts_are_those_of_the_run(peer: peers.Peer, run: runs.Synthetic, given: Path) -> None:
    before = set((given / peer.input).iterdir())
    judged = peers_speed.Judged(peer, given, run)
    cost = judged()
    assert peer.counts(cost.output) == run.counts
    assert set((given / peer.input).iterdir()) == before
    other = replace(run, counts={**run.counts, "matched": 1})
    with pytest.raises(CountsDifferError, match="matched 1000 instead of 1"):
        peers_speed.Judged(peer, given, other)()


@pytest.fixture(scope="module")
def truth(given: Path) -> Counter[tuple[int, int, int, int]]:
    """(operation, source, destination, bytes) of all operations, from the CSV file."""
    columns = ["op", "src_proc", "dst_proc", "size_bytes"]
    return Counter(pl.read_csv(given / "csv" / "events.csv", columns=columns).iter_rows())


def test_the_csv_has_the_counts(truth: Counter[tuple], run: runs.Synthetic) -> None:
    assert truth.total() == run.counts["events"]
    assert sum(row[3] * count for row, count in truth.items()) == 2 * run.counts["bytes"]


def test_ctf_is_laid_out_as_its_metadata_says(given: Path, truth: Counter[tuple]) -> None:
    found: Counter[tuple] = Counter()
    streams = sorted((given / "ctf").glob("rank*"))
    for path in streams:
        raw = path.read_bytes()
        magic, stream, first, last, content, packet = CTF_HEAD.unpack_from(raw)
        assert (magic, stream, content, packet) == (0xC1FC1FC1, 0, len(raw) * 8, len(raw) * 8)
        events = list(CTF_EVENT.iter_unpack(raw[CTF_HEAD.size :]))
        times = [time for _, time, *_ in events]
        assert times == sorted(times)
        assert (times[0], times[-1]) == (first, last)
        found.update((op, *rest) for op, _, *rest in events)
    assert len(streams) == 4
    assert found == truth


def test_ctf_is_cut_into_packets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PACKET_EVENTS", 100)
    ops = pl.DataFrame(
        {"proc": [0] * 250, "op": [1] * 250, "t_ns": range(250), "src_proc": [0] * 250,
         "dst_proc": [1] * 250, "size_bytes": [8] * 250}
    )  # fmt: skip
    inputs.write_ctf(ops, ops, tmp_path)
    raw = (tmp_path / "rank0").read_bytes()
    at, times = 0, []
    while at < len(raw):
        _, _, first, last, bits, _ = CTF_HEAD.unpack_from(raw, at)
        times.append((first, last))
        at += bits // 8
    assert times == [(0, 99), (100, 199), (200, 249)]


def test_pfw_has_a_json_object_a_line(given: Path, truth: Counter[tuple]) -> None:
    found: Counter[tuple] = Counter()
    for path in (given / "pfw").iterdir():
        for line in gzip.decompress(path.read_bytes()).splitlines():
            event = json.loads(line)
            op = {"send": 1, "recv": 2}[event["name"]]
            args = event["args"]
            found[op, args["src"], args["dst"], args["size"]] += 1
            assert path.name == f"rank{event['pid']}.pfw.gz"
    assert found == truth


def test_msgpack_has_a_map_per_event(given: Path, truth: Counter[tuple]) -> None:
    found: Counter[tuple] = Counter()
    for path in (given / "msgpack").glob("*.msgpack"):
        unpacker = msgpack.Unpacker()
        unpacker.feed(path.read_bytes())
        found.update((one["op"], one["src"], one["dst"], one["size"]) for one in unpacker)
    assert found == truth


def test_babeltrace_prints_its_count_last() -> None:
    babeltrace = next(peer for peer in peers.PEERS if peer.name == "babeltrace2")
    printed = "      7 Event messages\n   2000 Event messages\n   2016 messages (TOTAL)\n"
    assert babeltrace.counts(printed) == {"events": 2000}
    assert babeltrace.counts("nothing") == {}


def test_a_peer_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = replace(peers.PEERS[0], missing=lambda: "it is not there")
    monkeypatch.setattr(peers_speed, "PEERS", (gone, *peers.PEERS[1:]))
    cost = Cost(2.0, 3.0, 40.0, 1, "")
    names = [name for name in peers_speed.DOES if name != gone.name]
    table = peers_speed.report({name: [cost] for name in names}, 1000)
    (line,) = [line for line in table.splitlines() if gone.name in line]
    assert "not measured: it is not there" in line
    assert len(table.splitlines()) == 2 + len(peers_speed.DOES)


def test_the_whole_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers_speed.main(["--ranks=3", "--events=600", "--rounds=1", f"--scratch={tmp_path}"])
    printed = capsys.readouterr().out
    assert "600 operations of 3 ranks" in printed
    assert all(name in printed for name in peers_speed.DOES)
    assert not list(tmp_path.iterdir())
