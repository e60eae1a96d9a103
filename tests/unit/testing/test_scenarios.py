"""Scenarios against their own truth: files are read by plain Python, from docs/format.md alone."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from sigmatrace.testing.scenarios import SCENARIOS, generate, main
from sigmatrace.testing.scenarios_bfs import BfsTruth
from sigmatrace.testing.scenarios_collectives import AlltoallTruth, RingTruth
from sigmatrace.testing.scenarios_messages import Sent, ordinals
from sigmatrace.testing.scenarios_moe import MoeTruth
from sigmatrace.trace_format import RECORDS, Op, Schema

Row = dict[str, Any]


class PlainFile:
    """A rank file: objects, and records with Unix times."""

    def __init__(self, path: Path) -> None:
        unpacker = msgpack.Unpacker()
        unpacker.feed(path.read_bytes())
        self.objects: dict[int, Row] = defaultdict(dict)
        self.records: dict[int, list[Row]] = defaultdict(list)
        clocks = []
        for item in unpacker:
            kind, body = item[2], item[4]
            if kind == 0:
                self.rank, self.mode, self.host = body["rank"], body["mode"], body["host"]
            elif kind == 1:
                rows = np.frombuffer(body["data"], RECORDS[Schema(body["schema"])])
                names = rows.dtype.names or ()
                self.records[body["schema"]] += [
                    dict(zip(names, row.tolist(), strict=True)) for row in rows
                ]
            elif kind == 2:
                self.objects[body["id"]].update(body)
            elif kind == 3:
                clocks.append((body["tsc"], body["wall_ns"]))
        (tsc, wall), (later, later_wall) = clocks[0], clocks[-1]
        rate = Fraction(later_wall - wall, later - tsc)
        for row in (row for rows in self.records.values() for row in rows if "t_tsc" in row):
            row["t_ns"] = wall + round((row["t_tsc"] - tsc) * rate)

    def peer(self, channel: Row) -> int:
        """Return the other rank of a channel."""
        thing = self.objects[channel["object"]]
        if thing["type"] == "ofi_endpoint":
            return int(channel["peer"])
        return struct.unpack(">QQ", thing["dgid"])[1] - 1


def files(folder: Path) -> list[PlainFile]:
    return sorted((PlainFile(x) for x in folder.glob("*.msgpack")), key=lambda file: file.rank)


def plain_messages(folder: Path) -> Iterator[tuple[int, ...]]:
    """Yield source, destination, size and times of each message, the k-th being the k-th."""
    ends: dict[tuple[int, int, int], dict[bool, Row]] = defaultdict(dict)
    for file in files(folder):
        channels = {row["id"]: row for row in file.records[Schema.CHANNEL]}
        for row in file.records[Schema.OP]:
            other, is_send = file.peer(channels[row["channel"]]), row["op"] == Op.SEND
            pair = (file.rank, other) if is_send else (other, file.rank)
            assert is_send not in ends[*pair, row["ordinal"]]
            ends[*pair, row["ordinal"]][is_send] = row
    for (src, dst, _), both in ends.items():
        send, receive = both[True], both[False]
        assert send["size_bytes"] == receive["size_bytes"]
        yield src, dst, send["size_bytes"], send["t_ns"], receive["t_ns"]


def rows_of(sent: Sent) -> list[tuple[int, ...]]:
    columns = (sent.src, sent.dst, sent.size_bytes, sent.sent_ns, sent.received_ns)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def ring(folder: Path, **options: Any) -> RingTruth:
    truth = generate("ring", folder, **options)
    assert isinstance(truth, RingTruth)
    return truth


def alltoall(folder: Path, **options: Any) -> AlltoallTruth:
    truth = generate("alltoall", folder, **options)
    assert isinstance(truth, AlltoallTruth)
    return truth


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ring", {}),
        ("ring", {"ranks": 3, "hosts": 2, "size_bytes": 1001, "iterations": 2}),
        ("ring", {"ranks": 2, "hosts": 1, "size_bytes": 1, "slow_rank": 0}),
        ("alltoall", {}),
        ("alltoall", {"ranks": 5, "hosts": 3, "slow_rank": 0, "mode": "simple"}),
        ("moe", {"steps": 3}),
    ],
)
def test_files_hold_the_messages_of_the_truth(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    truth = generate(name, tmp_path, **options)
    assert not isinstance(truth, BfsTruth)
    assert sorted(plain_messages(tmp_path)) == rows_of(truth.sent)
    assert (truth.sent.received_ns > truth.sent.sent_ns).all()
    assert truth.operations == 2 * truth.sent.src.size


def test_wrong_clocks_are_those_that_were_asked_for(tmp_path: Path) -> None:
    truth = ring(tmp_path, clock_offset_ns=10**9, clock_drift_ppm=50.0)
    error: dict[str, set[int]] = defaultdict(set)
    hosts = [file.host for file in files(tmp_path)]
    found = sorted(plain_messages(tmp_path), key=lambda row: (row[0], row[1], row[3]))
    order = np.lexsort((truth.sent.sent_ns, truth.sent.dst, truth.sent.src))
    for row, at in zip(found, order.tolist(), strict=True):
        error[hosts[row[0]]].add(row[3] - int(truth.sent.sent_ns[at]))
    spans = [max(one) - min(one) for one in error.values()]
    assert max(abs(x) for one in error.values() for x in one) <= 1.001 * 10**9
    assert max(spans) < 50e-6 * 10**9 and len({min(one) for one in error.values()}) == 4


def test_ring_reduces_on_every_rank(tmp_path: Path) -> None:
    """Replayed with sets of contributions: who sends must hold what the algorithm sends."""
    size, ranks = 8 * 5 + 3, 5
    truth = ring(tmp_path, ranks=ranks, size_bytes=size, iterations=1, hosts=1)
    edges = [k * size // ranks for k in range(ranks + 1)]
    holds = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    rows = list(zip(truth.sent.src.tolist(), truth.sent.size_bytes.tolist(), strict=True))
    for step in range(2 * (ranks - 1)):
        moved = []
        for rank, sent in rows[step * ranks : (step + 1) * ranks]:
            part = (rank - step) % ranks
            assert sent == edges[part + 1] - edges[part]
            moved.append((rank, part, set(holds[rank][part])))
        for rank, part, content in moved:
            own = holds[(rank + 1) % ranks][part]
            holds[(rank + 1) % ranks][part] = content | own if step < ranks - 1 else content
    assert all(part == set(range(ranks)) for rank in holds for part in rank)


def test_ring_sends_what_it_has_received_over_a_slow_link(tmp_path: Path) -> None:
    truth = ring(tmp_path, ranks=6, slow_rank=4, factor=7, iterations=2)
    assert isinstance(truth, RingTruth)
    sent, arrived, link_free = truth.sent, dict.fromkeys(range(6), 0), dict.fromkeys(range(6), 0)
    steps = 2 * 5
    for step in range(2 * steps):
        rows = range(6 * step, 6 * step + 6)
        before = dict(arrived)
        for row in rows:
            src, dst = int(sent.src[row]), int(sent.dst[row])
            wire = -(-int(sent.size_bytes[row]) // 12) * (7 if src == 4 else 1)
            assert sent.sent_ns[row] > before[src] or step == 0
            assert sent.sent_ns[row] >= link_free[src]
            link_free[src] = int(sent.sent_ns[row]) + wire
            assert sent.received_ns[row] == link_free[src] + 2000
            arrived[dst] = int(sent.received_ns[row])
        if (step + 1) % steps == 0:
            assert truth.finished_ns[step // steps].tolist() == [arrived[x] for x in range(6)]
    assert truth.busy_ns[4] > 6 * np.delete(truth.busy_ns, 4).max()
    assert (truth.count.sum(axis=1) == 20).all() and np.trace(truth.count, 1) == 100


def test_alltoall_arrives_at_its_barriers_as_the_truth_says(tmp_path: Path) -> None:
    truth = alltoall(tmp_path, ranks=6, hosts=2, slow_rank=1, delay_ns=700_000, rounds=3)
    for file in files(tmp_path):
        names = {key: row["name"] for key, row in file.objects.items() if row["type"] == "name"}
        marks = [x for x in file.records[Schema.MARK] if names[x["name"]] == "barrier"]
        assert [x["kind"] for x in marks] == [1, 2] * 3
        assert [x["t_ns"] for x in marks[::2]] == truth.arrival_ns[:, file.rank].tolist()
        assert [x["t_ns"] for x in marks[1::2]] == truth.release_ns.tolist()
    late = truth.start_ns - truth.start_ns[:, :1]
    assert late.tolist() == [[0, 700_050, 100, 150, 200, 250]] * 3
    assert truth.order.tolist() == [[0, 2, 3, 4, 5, 1]] * 3
    assert truth.spread_ns.tolist() == [700_050] * 3
    of_round = np.repeat(np.arange(3), 30)
    assert (truth.sent.received_ns < truth.release_ns[of_round]).all()
    assert (truth.count == 3 * (1 - np.eye(6))).all()


def test_bfs_rings_as_the_truth_says(tmp_path: Path) -> None:
    """Which level a doorbell belongs to follows from the barriers before it."""
    truth = generate("bfs", tmp_path, doorbells_per_s=20, completed=0.5)
    assert isinstance(truth, BfsTruth)
    levels, gpus = truth.arrival_ns.shape
    operations, size_bytes = np.zeros((2, 3, levels, gpus, gpus), np.int64)
    kinds = {Op.PUT: 0, Op.GET: 1, Op.ATOMIC_FETCH: 2}
    failed: list[tuple[int, int, int]] = []
    for file in files(tmp_path):
        channels = {row["id"]: row for row in file.records[Schema.CHANNEL]}
        rung: dict[int, set[int]] = defaultdict(set)  # doorbells by what they announce
        arrivals: list[int] = []
        atomics = 0
        for row in file.records[Schema.OP]:
            kind, peer = kinds[Op(row["op"])], file.peer(channels[row["channel"]])
            level, atomics = atomics // (8 * 3), atomics + (kind == 2)
            if kind == 2 and atomics % (8 * 3) == 1:
                arrivals.append(row["t_ns"])
            operations[kind, level, file.rank, peer] += 1
            size_bytes[kind, level, file.rank, peer] += row["size_bytes"]
            rung[level * 2 + (kind == 2)].add(row["t_tsc"])
        assert arrivals == truth.arrival_ns[:, file.rank].tolist()
        data = [len(rung[2 * level]) for level in range(levels)]
        assert data == truth.data_doorbells[:, file.rank].tolist()
        doorbells = truth.data_doorbells + truth.control_doorbells
        assert len(file.records[Schema.DOORBELL]) == doorbells[:, file.rank].sum()
        ends = [(file.rank, x["object"], x["status"]) for x in file.records[Schema.CQE]]
        failed += [row for row in ends if row[2]]
        (kernel,) = file.records[Schema.KERNEL]
        assert kernel["t_ns"] + kernel["duration_tsc"] == truth.release_ns[-1]
    assert np.array_equal(operations, np.stack([truth.writes, truth.reads, truth.atomics]))
    assert np.array_equal(size_bytes[:2], np.stack([truth.write_bytes, truth.read_bytes]))
    whole = operations[0] + operations[1].transpose(0, 2, 1) + operations[2]
    assert np.array_equal(whole.sum(axis=0), truth.count)
    assert operations.sum() == truth.operations
    assert sorted(failed) == sorted(map(tuple, truth.errors.tolist())) and len(failed) == 12


def test_bfs_is_that_of_the_paper(tmp_path: Path) -> None:
    truth = generate("bfs", tmp_path, doorbells_per_s=1)
    assert isinstance(truth, BfsTruth)
    assert truth.order[:, -1].tolist() == [0, 0, 1, 1, 1]
    assert truth.spread_ns[0] == truth.spread_ns.max() == 30 * 10**9
    assert truth.spread_ns[truth.order[:, -1] == 1].max() == 15 * 10**9


def test_moe_is_that_of_the_paper(tmp_path: Path) -> None:
    truth = generate("moe", tmp_path)
    assert isinstance(truth, MoeTruth)
    matrix = truth.node_bytes
    egress, ingress = matrix.sum(axis=1).tolist(), matrix.sum(axis=0).tolist()
    assert Fraction(max(egress), min(egress)) == Fraction(213, 100)
    assert egress.index(max(egress)) == ingress.index(max(ingress)) == 2
    assert Fraction(int(matrix[2, 1]) * 12, int(matrix.sum())) == Fraction(215, 100)
    assert matrix.max() == matrix[2, 1]
    assert (round(matrix[2, 1] / 1e9, 1), round(matrix[1, 2] / 1e9, 1)) == (15.9, 12.3)
    assert int(np.trace(matrix)) == 0
    loading = truth.sent.sent_ns < truth.serve_ns
    assert np.array_equal(loading, ~truth.is_serving)
    assert truth.sent.received_ns[loading].max() < truth.serve_ns
    assert truth.all_node_bytes[0].sum() > 3 * matrix[0].sum()


def test_moe_answers_every_token(tmp_path: Path) -> None:
    truth = generate("moe", tmp_path, steps=4)
    assert isinstance(truth, MoeTruth)
    asked, answered = np.zeros((2, 16, 16), np.int64)
    sent = truth.sent
    rows = np.flatnonzero(truth.is_serving)
    key = sent.src[rows] * 16 + sent.dst[rows]
    for row, k in zip(rows.tolist(), ordinals(key).tolist(), strict=True):
        into = answered if k % 2 else asked
        into[sent.src[row], sent.dst[row]] += sent.size_bytes[row]
    assert np.array_equal(answered, 2 * asked.T)
    assert (asked % 7168 == 0).all()


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in SCENARIOS:
        assert main([name, str(tmp_path / name)]) == 0
    printed = capsys.readouterr().out
    assert f"ring: 896 operations in {tmp_path / 'ring'}\n" in printed
    assert "window=10s.. leaves out" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["ring", "new", "--ranks", "1"], 2, "at least 2 ranks"),
        (["ring", "new", "--slow-rank", "8"], 2, "none of the ranks"),
        (["moe", "new", "--steps", "0"], 2, "1 to 1000 steps"),
        (["bfs", "new", "--blocks", "0"], 2, "at least 1 block"),
        (["bfs", "new", "--completed", "2"], 2, "a share from 0 to 1"),
        (["alltoall", "full"], 6, "already there"),
    ],
)
def test_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    (tmp_path / "full" / "file").mkdir(parents=True)
    name, out, *rest = arguments
    assert main([name, str(tmp_path / out), *rest]) == code
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


def test_there_is_no_other_scenario(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no scenario tree: there are ring, alltoall, bfs, moe"):
        generate("tree", tmp_path)
