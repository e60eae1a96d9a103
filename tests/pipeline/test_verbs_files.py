"""Rank files of layer verbs through the whole pipeline."""

from __future__ import annotations

import pyarrow.compute as pc

from sigmatrace import api
from sigmatrace.export.perfetto import OUTPUT
from sigmatrace.testing.write import RankFile, records
from sigmatrace.trace_format import Dir, Kind, Layer, Op, Queue, Schema
from tests.perfetto_queries import SLICES, depths


def rank_file(folder, rank, qpn, peer_qpn, posts, arrivals):
    """Write a rank of two on one host, with one queue pair; times in TSC ticks (2 per ns)."""
    gid = bytes([10] * 16)
    with RankFile(folder, pid=100 + rank, rank=rank, mode="full", layers=["verbs"]) as file:
        device = file.object("ib_device", name="mlx5_0", node_guid=5)
        port = file.object("ib_port", device=device, port=1)
        file.object("ib_gid", port=port, index=0, gid=gid)
        known = {"qpn": qpn, "dest_qpn": peer_qpn, "sgid": gid, "dgid": gid, "qp_type": "rc"}
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
        row = {"t_tsc": at, "size_bytes": 64}
        n, k = len(posts), range(len(posts))
        sent = records(Schema.OP, n, op=Op.SEND, ordinal=k, aux=k, **row)
        file.chunk(Schema.OP, 100 + rank, sent)
        queue = {"object": qp, "queue": Queue.SEND, "position": k}
        file.chunk(Schema.REQUEST, 100 + rank, records(Schema.REQUEST, n, opcode=2, **queue, **row))
        ends = records(Schema.CQE, n, t_tsc=[t + 80 for t in at], posted_tsc=at, first=k, **queue)
        file.chunk(Schema.CQE, 100 + rank, ends)
        row = {"t_tsc": [10**12 + 2 * t for t in arrivals], "size_bytes": 64}
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
    assert "100 operations, 100 verbs requests, 100 verbs completions of" in result.text()
    line = "completed  50 of 50 send requests, 0 outstanding; 50 of 50 posted receives; 0 errors"
    assert line in result.text()
    assert result.ledger["stages"]["one_sided"]["owners"]["not_one_sided"] == 100
    counts = result.ledger["exports"]["perfetto"]
    assert (counts["cqe_records"], counts["request_records"]) == (100, 50)
    assert (counts["cqe_left_out"], counts["request_left_out"]) == (0, 50)
    assert counts["flows"] == 50
    tp = trace_processor(result.out / OUTPUT)
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
