"""The verbs layer on real RDMA traffic: the trace says what the programs and the wire say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sigmatrace.trace_format import Op
from sigmatrace.validate.compare import Verdict
from tests.rigs.programs import COUNT, perftest, pingpong
from tests.rigs.rig import Rig
from tests.rigs.traced import Traced, run_traced

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

BOTH = pytest.mark.parametrize("mode", ["simple", "full"])
SENDERS_OF_MESSAGES = (Op.SEND, Op.PUT_DATA)


def check(traced: Traced) -> None:
    """What holds for every program."""
    assert traced.ran.is_whole()
    assert {row["verdict"] for row in traced.flows} == {Verdict.EQUAL}
    messages = sum(
        amounts.get(op, (0, 0))[0]
        for amounts in traced.operations.values()
        for op in SENDERS_OF_MESSAGES
    )
    match = traced.stage["match"]
    assert match["sends"] == messages
    assert match["receives"] == match["receives_matched"]
    one_sided = sum(
        count
        for amounts in traced.operations.values()
        for op, (count, _) in amounts.items()
        if op not in SENDERS_OF_MESSAGES
    )
    assert match["one_sided"] == one_sided
    (unknown,) = traced.rows("select count(*) from ops where src_proc < 0 or dst_proc < 0")
    assert unknown == (0,)
    wire = traced.stage["wire"]
    datagrams = any(flow.transport == "UD" for flow in traced.ran.wire.flows if flow.qpn != 1)
    if traced.mode == "full" and not datagrams:
        assert wire["requests"] == messages + one_sided
    if traced.mode == "full":
        check_requests(traced)
    check_clocks(traced)


def check_clocks(traced: Traced) -> None:
    """Nodes' clocks differ by up to a second: where messages show that, none is left that does."""
    for kind in ("unsure_rate", "steps"):
        assert traced.stage["clock"][kind]["count"] == 0
    clocks = traced.stage["clock"]["messages"]
    if "received_before_sent_after" in clocks:
        assert clocks["received_before_sent_after"] == 0 and clocks["left_aside"] == 0
        assert clocks["clocks"] == 2 and not clocks["dropped"]
    else:
        assert clocks["beyond_error"] == 0


def check_requests(traced: Traced) -> None:
    """Each completion has its request. (That each request is on the wire, the verdict says.)"""
    completion = traced.stage["completion"]
    assert completion["not_joined"] == completion["not_joined_shared"]
    assert completion["errors"] == 0
    differ = """select count(*) from cqes c join requests r
        using (proc, object, queue, position) where c.wr_id <> r.wr_id or c.posted_tsc <> r.t_tsc"""
    assert traced.rows(differ) == [(0,)]
    joined = """select count(*) from cqes c join requests r using (proc, object, queue, position)"""
    assert traced.rows(joined) == [(completion["joined"],)]
    owners = traced.stage["one_sided"]["owners"]
    assert owners["no_region"] == owners["ambiguous"] == owners["target_unknown"] == 0


def all_matched(traced: Traced) -> None:
    match = traced.stage["match"]
    assert match["sends"] == match["sends_matched"] == match["receives"]


@BOTH
@pytest.mark.parametrize(
    ("kind", "size", "options"),
    [("rc", 1, []), ("rc", 1024, ["-e"]), ("rc", 5000, ["-N"]), ("uc", 5000, []), ("ud", 1000, [])],
    ids=["rc", "rc-events", "rc-new-calls", "uc", "ud"],
)
def test_pingpong(
    rig: Rig, tmp_path: Path, mode: str, kind: str, size: int, options: list[str]
) -> None:
    traced = run_traced(rig, tmp_path, mode, pingpong(kind, "-s", str(size), *options))
    check(traced)
    all_matched(traced)
    assert list(traced.operations.values()) == [{Op.SEND: (COUNT, COUNT * size)}] * 2


@BOTH
def test_srq_pingpong(rig: Rig, tmp_path: Path, mode: str) -> None:
    traced = run_traced(rig, tmp_path, mode, pingpong("srq", "-s", "3000"))
    check(traced)
    # A program may go on beyond its count, with as many messages as it has queue pairs.
    sent = sum(len(flow.messages) for flow in traced.ran.wire.flows if flow.qpn != 1)
    assert 2 * COUNT <= traced.stage["match"]["receives"] <= sent


@BOTH
@pytest.mark.parametrize(
    ("argv", "op", "size"),
    [
        (perftest("ib_write_bw", "-s", "65536"), Op.PUT, 65536),
        (perftest("ib_write_bw", "-s", "2", "-I", "64"), Op.PUT, 2),
        (perftest("ib_write_bw", "-s", "512", "-l", "4"), Op.PUT, 512),
        (perftest("ib_send_bw", "-s", "4096"), Op.SEND, 4096),
        (perftest("ib_send_bw", "-s", "512", "-R"), Op.SEND, 512),
        (perftest("ib_read_lat", "-s", "8192"), Op.GET, 8192),
        (perftest("ib_atomic_bw", "-A", "FETCH_AND_ADD"), Op.ATOMIC_FETCH, 8),
        (perftest("ib_atomic_bw", "-A", "CMP_AND_SWAP"), Op.ATOMIC_FETCH, 8),
    ],
    ids=["write", "inline", "list", "send", "send-cm", "read", "fetch_add", "compare_swap"],
)
def test_perftest(rig: Rig, tmp_path: Path, mode: str, argv: list[str], op: Op, size: int) -> None:
    traced = run_traced(rig, tmp_path, mode, argv)
    check(traced)
    all_matched(traced)
    amounts = [found[op] for (node, _), found in traced.operations.items() if node == 1]
    assert (COUNT, COUNT * size) in amounts
    sockets = traced.rows("select remote from qp_sockets where remote <> ''")
    assert bool(sockets) == ("-R" in argv)
    addresses = {node.address for node in rig.nodes}
    assert {name.rpartition(":")[0] for (name,) in sockets} <= addresses


@BOTH
def test_several_queue_pairs_both_ways(rig: Rig, tmp_path: Path, mode: str) -> None:
    argv = perftest("ib_write_bw", "-s", "2048", "-q", "4", "-b")
    traced = run_traced(rig, tmp_path, mode, argv)
    check(traced)
    assert list(traced.operations.values()) == [{Op.PUT: (COUNT, COUNT * 2048)}] * 8


@BOTH
def test_loss_and_reordering(rig: Rig, tmp_path: Path, mode: str) -> None:
    argv = perftest("ib_send_bw", "-s", "16384")
    with rig.node(0).dropping(20), rig.node(1).dropping(20):
        traced = run_traced(rig, tmp_path, mode, argv)
    assert any(flow.repeated for flow in traced.ran.wire.flows)
    check(traced)
    all_matched(traced)
