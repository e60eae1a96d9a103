"""Rank files of layer verbs through the whole pipeline."""

from __future__ import annotations

import msgpack
import pyarrow.compute as pc
import pytest

from sigmatrace import api
from sigmatrace.layout import TRACE
from sigmatrace.testing.write import RankFile, records
from sigmatrace.trace_format import Dir, Kind, Layer, Op, Queue, Schema
from tests.perfetto_queries import SLICES, depths


def rank_file(folder, rank, qpn, peer_qpn, posts, arrivals, *, kind="rc", sizes=64):
    """Write a rank of two on one host, with one queue pair; times in TSC ticks (2 per ns)."""
    gid = bytes([10] * 16)
    with RankFile(folder, pid=100 + rank, rank=rank, mode="full", layers=["verbs"]) as file:
        device = file.object("ib_device", name="mlx5_0", node_guid=5)
        port = file.object("ib_port", device=device, port=1)
        file.object("ib_gid", port=port, index=0, gid=gid)
        known = {"qpn": qpn, "dest_qpn": peer_qpn, "sgid": gid, "dgid": gid, "qp_type": kind}
        qp = file.object("ib_qp", device=device, port=1, **known)
        for tsc in (0, 2 * 10**9):
            file.clock(10**12 + tsc, 10**18 + tsc // 2)
        way = {"object": qp, "peer": qp, "kind": Kind.MSG, "layer": Layer.VERBS}
        out = records(Schema.CHANNEL, 1, id=0, dir=Dir.OUT, **way)
        into = records(Schema.CHANNEL, 1, id=1, dir=Dir.IN, **way)
        for channel in (out, into):
            channel["t_tsc"] = 10**12
            file.chunk(Schema.CHANNEL, 100 + rank, channel)
        at = [10**12 + 2 * t for t in posts]
        row = {"t_tsc": at, "size_bytes": sizes if posts else []}
        n, k = len(posts), range(len(posts))
        sent = records(Schema.OP, n, op=Op.SEND, ordinal=k, aux=k, **row)
        file.chunk(Schema.OP, 100 + rank, sent)
        queue = {"object": qp, "queue": Queue.SEND, "position": k}
        file.chunk(Schema.REQUEST, 100 + rank, records(Schema.REQUEST, n, opcode=2, **queue, **row))
        ends = records(Schema.CQE, n, t_tsc=[t + 80 for t in at], posted_tsc=at, first=k, **queue)
        file.chunk(Schema.CQE, 100 + rank, ends)
        at = [10**12 + 2 * t for t in arrivals]
        row = {"t_tsc": at, "size_bytes": sizes if arrivals else []}
        n, k = len(arrivals), range(len(arrivals))
        got = records(Schema.OP, n, op=Op.RECV, ordinal=k, aux=k, channel=1, **row)
        file.chunk(Schema.OP, 100 + rank, got)
        queue = {"object": qp, "queue": Queue.RECV, "position": k}
        came = records(Schema.CQE, n, opcode=128, first=k, **queue, **row)
        file.chunk(Schema.CQE, 100 + rank, came)
        posted = records(Schema.REQUEST, n, opcode=255, t_tsc=10**12, **queue)
        file.chunk(Schema.REQUEST, 100 + rank, posted)
        file.end()


def test_rank_files_of_verbs_make_a_balanced_ledger_and_a_whole_trace(tmp_path, trace_processor):
    (tmp_path / "run").mkdir()
    posts = [1000 + 100 * k for k in range(50)]
    rank_file(tmp_path / "run", 0, 0x11, 0x12, posts, [])
    rank_file(tmp_path / "run", 1, 0x12, 0x11, [], [t + 30 for t in posts])
    result = api.run(tmp_path / "run", export=["perfetto"], out=tmp_path / "out")
    assert result.ledger["balanced"], [e for e in result.ledger["balance"] if not e["ok"]]
    assert "100 operations, 100 posted requests, 100 polled completions of" in result.text()
    line = "completed  50 of 50 send requests, 0 outstanding; 50 of 50 posted receives; 0 errors"
    assert line in result.text()
    assert result.ledger["stages"]["one_sided"]["owners"]["not_one_sided"] == 100
    counts = result.ledger["exports"]["perfetto"]
    assert (counts["cqe_records"], counts["request_records"]) == (100, 50)
    assert (counts["cqe_left_out"], counts["request_left_out"]) == (0, 50)
    assert counts["flows"] == 50
    tp = trace_processor(result.out / TRACE)
    assert tp.problems() == []
    rows = [row for row in tp.query(SLICES) if row["path"] == "QPs/QP 0x11 → rank 1"]
    assert [(row["dur"], row["name"]) for row in rows] == [(40, "send")] * 50
    ((owner, values),) = depths(tp).items()
    assert owner[1] == "QP 0x11 → rank 1"
    assert [depth for _, depth in values] == [1, 0] * 50
    posts = "select count(*), max(s.dur) as dur from slice s join thread_track t on t.id = track_id"
    assert tp.query(f"{posts} where t.name is null") == [{"count(*)": 100, "dur": 0}]
    nics = "select name from track where parent_id = (select id from track where name = 'NICs')"
    assert [row["name"] for row in tp.query(nics)] == ["mlx5_0 port 1 (host)"]


def test_completions_are_counted_without_the_owners_of_memory(tmp_path):
    (tmp_path / "run").mkdir()
    rank_file(tmp_path / "run", 0, 0x11, 0x12, [1000, 1100], [])
    result = api.run(
        tmp_path / "run", export="parquet", out=tmp_path / "out", stage=["clock", "completion"]
    )
    assert result.ledger["balanced"]
    [queue] = result.tables["queues"].filter(pc.field("cqes") > 0).to_pylist()
    assert (queue["requests"], queue["cqes"], queue["retired"]) == (2, 2, 2)


@pytest.mark.parametrize(
    ("schema", "done"),
    [
        (Schema.REQUEST, "completed  5 of 5 send requests, 0 outstanding; 5 of 5 posted receives"),
        (Schema.CQE, "completed  0 of 5 send requests, 5 outstanding; 5 of 5 posted receives"),
    ],
)
def test_a_damaged_chunk_keeps_the_ledger_balanced_and_the_summary_true(tmp_path, schema, done):
    (tmp_path / "run").mkdir()
    posts = [1000 + 100 * k for k in range(5)]
    rank_file(tmp_path / "run", 0, 0x11, 0x12, posts, [])
    rank_file(tmp_path / "run", 1, 0x12, 0x11, [], posts)
    path = next((tmp_path / "run").glob("*-100-*"))
    flip_in_chunk(path, schema)
    result = api.run(tmp_path / "run", export=["perfetto", "csv"], out=tmp_path / "out")
    assert result.ledger["balanced"] and not result.ledger["lossless"]
    assert f"5 {schema.name.lower()} records damaged" in result.text()
    assert done in result.text()
    assert "requests below are counted as far as the records that are left tell" in result.text()
    if schema == Schema.CQE:  # receives alone, of which no post was timed
        rows = (result.out / "csv/latencies.csv").read_text().splitlines()
        assert ',5,320,0,0,,,"' in rows[1] and len(rows) == 2


def flip_in_chunk(path, schema):
    """Flip a bit in the first chunk of a schema: at the end of its records."""
    data, at = bytearray(path.read_bytes()), 0
    while True:
        end = at + 17 + int.from_bytes(data[at + 13 : at + 17], "big")
        if data[at + 11] == 1 and msgpack.unpackb(data[at + 17 : end])["schema"] == schema:
            data[end - 10] ^= 1
            path.write_bytes(data)
            return
        at = end


@pytest.mark.parametrize("kind", ["uc", "rc"])
def test_messages_behind_a_loss_are_not_paired_without_a_word(tmp_path, trace_processor, kind):
    """Ten messages of 100 to 109 bytes, of which an unreliable transport lost two."""
    (tmp_path / "run").mkdir()
    posts, came = list(range(10)), [k for k in range(10) if kind == "rc" or k not in (4, 5)]
    for rank, mine, theirs in ((0, posts, []), (1, [], came)):
        times = [[1000 + 100 * k + 30 * rank for k in ks] for ks in (mine, theirs)]
        sizes = [100 + k for k in mine or theirs]
        rank_file(tmp_path / "run", rank, 0x11 + rank, 0x12 - rank, *times, kind=kind, sizes=sizes)
    stages = ["clock", "topology", "match", "traffic", "one_sided", "messages"]
    out = {"export": "perfetto", "out": tmp_path / "out", "stage": stages}
    result = api.run(tmp_path / "run", **out)
    assert result.ledger["balanced"]
    uncertain = 0 if kind == "rc" else 8
    pairs = result.tables["message_pairs"].to_pylist()
    wrong = [pair for pair in pairs if pair["size_bytes"] != pair["received_bytes"]]
    assert (len(pairs), len(wrong)) == (len(came), uncertain // 2)
    assert sum(pair["uncertain"] for pair in pairs) == uncertain
    assert ("behind a loss they are wrong" in result.text()) == (kind == "uc")
    assert ("pairs      4 of 8 messages" in result.text()) == (kind == "uc")
    tp = trace_processor(result.out / TRACE)
    marked = """select count(*) as n from slice s join args a using (arg_set_id)
        join flow f on s.id in (f.slice_in, f.slice_out) where a.key = 'debug.uncertain'"""
    assert tp.query(marked) == [{"n": 2 * uncertain}]
