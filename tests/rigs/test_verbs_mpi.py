"""Open MPI over UCX over verbs: three layers, one above the other in one trace."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sigmatrace.query.trace_processor import TraceProcessor
from sigmatrace.trace_format import Layer, Op
from sigmatrace.validate.compare import Verdict
from tests.rigs.programs import Ran
from tests.rigs.rig import RSH, Rig
from tests.rigs.traced import Traced, correlated, tracing

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("mpi_pair.c")
COUNT = 3
FIRST = 1  # while these are sent, UCX connects; it keeps them until then
EAGER, RENDEZVOUS = (8, 1024, 8000), (32768, 65536)
SIZES = (FIRST, *EAGER, *RENDEZVOUS)
UCX = {
    "UCX_TLS": "rc_v,self",
    "UCX_IB_GID_INDEX": "0",
    "UCX_RNDV_THRESH": "16384",
    "UCX_RNDV_SCHEME": "get_zcopy",
}
MCA = {
    "plm_rsh_agent": f"python3 {RSH}",
    "oob_tcp_if_include": "eth0",
    "pml": "ucx",
    "btl": "^openib,uct,vader",
    "osc": "^ucx",
}
TAG_BYTES, AM_ID_BYTES = 8, 1  # headers: of UCP's eager messages, of UCX's transport over verbs
STACKS = """
select v.name, v.depth, v.dur, v.size, p.name as outer, p.size as outer_size,
    p.ts <= v.ts and v.ts + v.dur <= p.ts + p.dur as inside,
    g.name as outermost, g.depth as outermost_depth, g.size as outermost_size,
    g.ts <= p.ts and p.ts + p.dur <= g.ts + g.dur as outer_inside
from sized v left join sized p on p.id = v.parent_id left join sized g on g.id = p.parent_id
where v.name = 'ibv_post_send'
"""
SIZED = """
create perfetto view sized as
select s.*, extract_arg(s.arg_set_id, 'debug.size_bytes') as size
from slice s join thread_track t on t.id = s.track_id
"""


@pytest.fixture(scope="module")
def mpi(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """Both ranks, traced in mode full."""
    folder = tmp_path_factory.mktemp("mpi")
    run, binary = rig.share / folder.name, rig.share / "mpi_pair"
    run.mkdir()
    compiler = ["mpicc.openmpi", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*compiler, "-o", binary, PROGRAM], check=True)
    command = ["mpirun.openmpi", "--allow-run-as-root", "-np", "2", "--host", "node0:1,node1:1"]
    for name, value in MCA.items():
        command += ["--mca", name, value]
    for name, value in {**UCX, **tracing(run, "full", "ucp,uct,verbs")}.items():
        command += ["-x", f"{name}={value}"]
    command += [f"/share/{binary.name}", str(COUNT), *map(str, SIZES)]
    with rig.capture.into(folder / "case.pcap"):
        result = rig.node(0).run(command, timeout=200)
    ran = Ran(rig, (result,), folder / "case.pcap")
    return correlated(ran, run, folder / "out", "full", ["parquet", "perfetto"])


@pytest.fixture(scope="module")
def timeline(mpi: Traced, trace_processor: Callable[[Path], TraceProcessor]) -> TraceProcessor:
    opened = trace_processor(mpi.result.files["perfetto"][0])
    opened.query(SIZED)
    return opened


def test_messages_of_the_program_are_messages_of_ucp(mpi: Traced) -> None:
    query = f"select size_bytes, count(*) from ops where layer = {Layer.UCP} and op = {Op.SEND}"
    assert dict(mpi.rows(f"{query} group by all")) == dict.fromkeys(SIZES, 2 * COUNT)
    query = f"select sum(sent), sum(received), sum(matched) from messages where layer = {Layer.UCP}"
    assert mpi.rows(query) == [(2 * COUNT * len(SIZES),) * 3]


def test_operations_of_verbs_are_those_on_the_wire(mpi: Traced) -> None:
    assert mpi.ran.is_whole()
    assert {row["verdict"] for row in mpi.flows} == {Verdict.EQUAL}
    reads = [amounts[Op.GET][1] for amounts in mpi.operations.values() if Op.GET in amounts]
    assert reads == [COUNT * sum(RENDEZVOUS)] * 2
    query = (
        f"select sum(sent), sum(received), sum(matched) from messages where layer = {Layer.VERBS}"
    )
    ((sent, received, matched),) = mpi.rows(query)
    assert sent == received == matched > 0


def test_a_transfer_is_a_stack_of_calls(timeline: TraceProcessor) -> None:
    """The request of verbs lies in the call of UCT, which lies in the call of UCP that began it."""
    stacks = [row for row in timeline.query(STACKS) if row["outer"]]
    assert all(row["inside"] for row in stacks)
    begun = [row for row in stacks if row["outermost"] == "ucp_tag_send_nbx"]
    assert all(row["outer_inside"] for row in begun)
    assert {(row["outermost_depth"], row["depth"]) for row in begun} == {(0, 2)}
    sizes = Counter(row["outermost_size"] for row in begun)
    del sizes[FIRST]
    assert sizes == dict.fromkeys((*EAGER, *RENDEZVOUS), 2 * COUNT)
    for row in stacks:
        if row["outer"].startswith("uct_ep_am_") and row["outermost_size"] in EAGER:
            assert row["size"] == row["outer_size"] + AM_ID_BYTES
            assert row["outer_size"] == row["outermost_size"] + TAG_BYTES
    reads = [row for row in stacks if row["outer"] == "uct_ep_get_zcopy"]
    assert all(row["size"] == row["outer_size"] for row in reads)
    assert sum(row["size"] for row in reads) == 2 * COUNT * sum(RENDEZVOUS)


def test_every_request_of_a_connection_is_made_by_a_call_of_uct(
    mpi: Traced, timeline: TraceProcessor
) -> None:
    """Timers and progress of UCX send datagrams of their own, to connect."""
    query = f"""select e.peer <> '', exists (select 1 from ops u where u.layer = {Layer.UCT}
            and u.op <> {Op.RECV} and u.thread = o.thread
            and o.t_ns between u.t_ns and u.t_ns + u.call_ns), count(*)
        from ops o join channels c using (channel)
        join endpoints e on e.proc = c.proc and e.object = c.object
        where o.layer = {Layer.VERBS} and o.op <> {Op.RECV} group by all"""
    posts = {(connected, called): count for connected, called, count in mpi.rows(query)}
    assert (True, False) not in posts
    stacks = Counter(row["outer"] is not None for row in timeline.query(STACKS))
    assert stacks[True] == posts[True, True] + posts.get((False, True), 0)
    assert stacks[False] == posts.get((False, False), 0)


def test_the_timeline_is_whole(mpi: Traced, timeline: TraceProcessor) -> None:
    assert timeline.problems() == []
    counts = mpi.result.ledger["exports"]["perfetto"]
    assert timeline.value("select count(*) from slice") == counts["slices"] + counts["instants"]
    assert counts["op_records"] == mpi.result.ledger["records"]["op"]["read"]
    assert all(line["ok"] for line in mpi.result.ledger["balance"])
