"""The rig itself: untraced programs do on the wire exactly what their parameters say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sigmatrace.validate.flows import Total
from tests.rigs.errors import RigError, RigTimeoutError
from tests.rigs.programs import COUNT, PORT, perftest, pingpong, printed_ends, run_pair
from tests.rigs.rig import RSH, Rig

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

MTU = 1024


def test_nodes_share_a_folder_with_the_host(rig: Rig) -> None:
    """Files written, and mapped ones whose program was killed, arrive; others stay there."""
    mapped = (
        "import mmap, os, signal, sys;"
        "f = open(sys.argv[1], 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192);"
        "m[5000:5005] = b'stays'; os.kill(os.getpid(), signal.SIGKILL)"
    )
    for node in rig.nodes:
        (rig.share / f"to-{node.number}").write_text("from the host")
        copied = (
            f"cat to-{node.number} > back-{node.number}; echo $WORD $RIG_NODE; echo no >&2; exit 3"
        )
        result = node.run(["bash", "-c", copied], env={"WORD": "a b"}, check=False)
        assert (result.code, result.stderr) == (3, "no\n")
        assert result.stdout == f"a b {node.number}\n"
        assert (rig.share / f"back-{node.number}").read_text() == "from the host"
        target = f"/share/mapped-{node.number}"
        assert node.run(["python3", "-c", mapped, target], check=False).code == -9
        assert (rig.share / f"mapped-{node.number}").read_bytes()[5000:5005] == b"stays"
        node.run(["bash", "-c", "mkdir -p /run/own && hostname > /run/own/name"])
        own = rig.collect(node, "/run/own")
        assert (own / "name").read_text() == f"node{node.number}\n"
    assert not Path("/run/own").exists()


def test_failures_are_named(rig: Rig) -> None:
    node = rig.node(0)
    with pytest.raises(RigError, match="No such file"):
        node.run(["no-such-program"])
    with pytest.raises(RigError, match="exit code 7\nwhy"):
        node.run(["bash", "-c", "echo why; exit 7"])
    with pytest.raises(RigTimeoutError, match=r"killed after 0\.5 s.*exit code -9\nbegun"):
        node.run(["bash", "-c", "echo begun; sleep 600"], timeout=0.5)
    with pytest.raises(RigError, match="exit code 4"):
        node.start(["bash", "-c", "exit 4"]).listening(PORT)


def test_nodes_reach_each_other(rig: Rig) -> None:
    """The rsh agent, for launchers of MPI."""
    command = ["python3", str(RSH), "node1", "echo", '"$RIG_NODE', 'of"', "two"]
    assert rig.node(0).run(command).stdout == "1 of two\n"


@pytest.mark.parametrize(
    ("kind", "size", "options"),
    [("rc", 1, []), ("rc", 1024, ["-e"]), ("rc", 5000, ["-N"]), ("uc", 5000, [])],
    ids=["rc", "rc-events", "rc-new-calls", "uc"],
)
def test_pingpong(rig: Rig, tmp_path: Path, kind: str, size: int, options: list[str]) -> None:
    ran = run_pair(rig, tmp_path, pingpong(kind, "-s", str(size), *options))
    client, server = printed_ends(ran.client.stdout)
    assert client["qpn"] != server["qpn"]
    for sender, mine, other in ((1, client, server), (0, server, client)):
        flow = ran.flow(sender, other["qpn"])
        assert flow.transport == kind.upper()
        assert flow.totals() == {"SEND": Total(COUNT, COUNT * size)}
        assert flow.messages[0].psn == mine["psn"]
        assert flow.packets - flow.repeated == COUNT * -(-size // MTU)
    assert ran.is_whole()


def test_srq_pingpong(rig: Rig, tmp_path: Path) -> None:
    """Sixteen queue pairs on each node; what is under way on others at the end is extra."""
    ran = run_pair(rig, tmp_path, pingpong("srq", "-s", "3000"))
    numbers = [end["qpn"] for end in printed_ends(ran.client.stdout)]
    assert len(numbers) == 32
    for sender, receivers in ((1, numbers[16:]), (0, numbers[:16])):
        messages = [m for qpn in receivers for m in ran.flow(sender, qpn).messages]
        assert COUNT <= len(messages) < COUNT + 16
        assert {m.length for m in messages} == {3000}
    assert ran.is_whole()


def test_ud_pingpong(rig: Rig, tmp_path: Path) -> None:
    ran = run_pair(rig, tmp_path, pingpong("ud", "-s", "1000"))
    client, server = printed_ends(ran.client.stdout)
    for sender, mine, other in ((1, client, server), (0, server, client)):
        flow = ran.flow(sender, other["qpn"])
        assert (flow.transport, flow.source_qpn) == ("UD", mine["qpn"])
        assert flow.totals() == {"SEND": Total(COUNT, COUNT * 1000)}
    assert ran.is_whole()


@pytest.mark.parametrize(
    ("argv", "kind", "size"),
    [
        (perftest("ib_write_bw", "-s", "65536"), "WRITE", 65536),
        (perftest("ib_send_bw", "-s", "4096"), "SEND", 4096),
        (perftest("ib_read_lat", "-s", "8192"), "READ", 8192),
        (perftest("ib_atomic_bw", "-A", "FETCH_AND_ADD"), "FETCH_ADD", 8),
        (perftest("ib_atomic_bw", "-A", "CMP_AND_SWAP"), "COMPARE_SWAP", 8),
    ],
    ids=["write", "send", "read", "fetch_add", "compare_swap"],
)
def test_perftest(rig: Rig, tmp_path: Path, argv: list[str], kind: str, size: int) -> None:
    """The client is the only one that sends; address and rkey are the server's."""
    ran = run_pair(rig, tmp_path, argv)
    client, server = printed_ends(ran.client.stdout)
    flow, back = ran.flow(1, server["qpn"]), ran.flow(0, client["qpn"])
    assert flow.totals() == {kind: Total(COUNT, COUNT * size)}
    assert flow.messages[0].psn == client["psn"]
    assert back.messages == []
    if kind in ("WRITE", "READ"):
        assert {(m.address, m.rkey) for m in flow.messages} == {(server["address"], server["rkey"])}
    answered = {"READ": COUNT * size, "FETCH_ADD": COUNT * 8, "COMPARE_SWAP": COUNT * 8}
    assert back.response_bytes == answered.get(kind, 0)
    assert ran.is_whole()


def test_several_queue_pairs_both_ways(rig: Rig, tmp_path: Path) -> None:
    ran = run_pair(rig, tmp_path, perftest("ib_write_bw", "-s", "2048", "-q", "3", "-b"))
    seen = printed_ends(ran.client.stdout)
    for sender, receivers in ((1, seen[3:]), (0, seen[:3])):
        for receiver in receivers:
            flow = ran.flow(sender, receiver["qpn"])
            assert flow.totals() == {"WRITE": Total(COUNT, COUNT * 2048)}
            assert {m.rkey for m in flow.messages} == {receiver["rkey"]}
    assert ran.is_whole()


def test_connection_manager(rig: Rig, tmp_path: Path) -> None:
    """The wire names both queue pairs; rping mixes operations, as its documentation says."""
    common = ["-C", "10", "-S", "300"]
    server, client = ["rping", "-s", *common], ["rping", "-c", *common, "-a"]
    ran = run_pair(rig, tmp_path, server, client, port=7174)
    (made,) = ran.wire.connections
    assert (made.client, made.server) == (rig.node(1).address, rig.node(0).address)
    assert made.service & 0xFFFF == 7174
    there, back = ran.flow(1, made.server_qpn), ran.flow(0, made.client_qpn)
    assert (there.source_qpn, back.source_qpn) == (made.client_qpn, made.server_qpn)
    sends = Total(2 * 10, 2 * 10 * 16)
    assert there.totals() == {"SEND": sends}
    assert back.totals() == {"READ": Total(10, 3000), "SEND": sends, "WRITE": Total(10, 3000)}
    assert there.response_bytes == 3000
    assert ran.is_whole()


def test_perftest_over_the_connection_manager(rig: Rig, tmp_path: Path) -> None:
    ran = run_pair(rig, tmp_path, perftest("ib_send_bw", "-R", "-s", "512"))
    client, server = printed_ends(ran.client.stdout)
    flow = ran.flow(1, server["qpn"])
    assert flow.source_qpn == client["qpn"]
    assert flow.totals() == {"SEND": Total(COUNT, COUNT * 512)}
    assert {c.service & 0xFFFF for c in ran.wire.connections} == {PORT}
    assert ran.is_whole()


@pytest.mark.parametrize(
    "argv", [perftest("ib_write_bw"), perftest("ib_read_lat")], ids=["write", "read"]
)
def test_packets_lost_behind_the_capture(rig: Rig, tmp_path: Path, argv: list[str]) -> None:
    """What is sent again counts once."""
    with rig.node(0).dropping(20), rig.node(1).dropping(20):
        ran = run_pair(rig, tmp_path, [*argv, "-s", "16384"])
    server = printed_ends(ran.client.stdout)[1]
    flow = ran.flow(1, server["qpn"])
    assert [total for total in flow.totals().values()] == [Total(COUNT, COUNT * 16384)]
    assert flow.repeated > 0
    assert ran.is_whole()


def test_packets_lost_and_reordered_before_the_capture(rig: Rig, tmp_path: Path) -> None:
    netem = ["delay", "1ms", "reorder", "20%", "50%", "loss", "2%"]
    ran = run_pair(
        rig, tmp_path, pingpong("rc", "-s", "8000"), within=lambda: rig.node(1).netem(*netem)
    )
    client, server = printed_ends(ran.client.stdout)
    for sender, other in ((1, server), (0, client)):
        assert ran.flow(sender, other["qpn"]).totals() == {"SEND": Total(COUNT, COUNT * 8000)}
    assert ran.is_whole()


def test_kernels_did_not_complain(rig: Rig) -> None:
    for node in rig.nodes:
        assert not re.search(r"BUG|Oops|Call Trace|WARNING", node.run(["dmesg"]).stdout)


def test_a_guest_that_dies_is_named(rig: Rig, tmp_path: Path) -> None:
    """A rig of its own, with one node; `rig` is there so that a machine without is skipped."""
    assert len(rig.nodes) == 2
    with Rig(tmp_path / "other", nodes=1) as other:
        process = other.node(0).process
        with pytest.raises(RigError, match="node 0: the guest died; its console ends with"):
            other.node(0).run(["bash", "-c", "echo c > /proc/sysrq-trigger"])
        assert "sysrq: Trigger a crash" in other.node(0).console()
    assert process.returncode is not None
