"""Known operations and errors on real RDMA traffic: the trace says what the program printed."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plain_reader import read_all

from sigmatrace.trace_format import Op
from sigmatrace.validate.compare import request_of
from sigmatrace.validate.flows import Flow
from tests.rigs.pairs import (
    LIFE_PSNS,
    Connection,
    Key,
    Said,
    Trace,
    compiled,
    phase,
    polls,
    said,
)
from tests.rigs.programs import PORT, Ran
from tests.rigs.rig import Rig
from tests.rigs.test_verbs import BOTH, all_matched, check
from tests.rigs.traced import Traced, correlated, run_traced, tracing

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

SERVER, CLIENT = 0, 1
GOOD, OPERATION, PROTECTION, FLUSHED, ACCESS, OTHER_END, RETRIES, NOT_READY = (
    *(0, 2, 4, 5),
    *(10, 11, 12, 13),
)
"""``enum ibv_wc_status``, as soft-RoCE uses it: a bad lkey is a failed OPERATION of a send, and so
is a message that is too long, of the receive; the sender of it learns that the OTHER_END failed."""
NAK_ACCESS, NAK_OPERATION, RNR_NAK = 0x62, 0x63, 0x2C
"""Syndromes of acknowledgements; the last one with the receiver's timer, 12."""

MESSAGES = {
    "SEND": (3, 1 + 801 + 1401),
    "SEND_IMM": (3, 401 + 1801 + 2001),
    "WRITE": (2, 601 + 1601),
    "WRITE_IMM": (4, 201 + 1001 + 1201 + 2201),
}
SIZES = [
    middle + more
    for middle in [*(2**k for k in range(17)), *(1024 * packets for packets in (3, 10, 63))]
    for more in (-1, 0, 1)
]
"""Of phase sizes: 0 to 64 KiB + 1; exactly so many packets of the path MTU, and one byte off."""
OPERATIONS = {
    "rc": [MESSAGES],
    "uc": [MESSAGES],
    "shared": [
        {
            "SEND": (3, 1 + 801 + 1401),
            "SEND_IMM": (3, 401 + 1801 + 2001),
            "WRITE": (2, 601 + 1601),
            "WRITE_IMM": (4, 201 + 1001 + 1201 + 2201),
        },
        {
            "SEND": (3, 101 + 901 + 1501),
            "SEND_IMM": (3, 501 + 1901 + 2101),
            "WRITE": (2, 701 + 1701),
            "WRITE_IMM": (4, 301 + 1101 + 1301 + 2301),
        },
    ],
    "lists": [{"SEND": (8, 1 + 3 + 5 + 7 + 10 + 30 + 60 + 100), "WRITE": (4, 2 + 4 + 6 + 8)}],
    "unsignaled": [{"WRITE": (30, 30 * 64)}],
    "refused": [{"SEND": (4 + 2, 4 * 30 + 2 * 31)}],
    "reads": [{"READ": (4, 700 * (1 + 3 + 5 + 8)), "FETCH_ADD": (2, 16), "COMPARE_SWAP": (2, 16)}],
    "several": [{"SEND": (5, 50 * (5 * i + 30))} for i in (1, 2, 3)],
    "again": [{"SEND_IMM": (4, 4 * 20 + 6)}, {"SEND_IMM": (7, 7 * 20 + 21)}],
    "datagrams": [
        {"SEND": (3, 92 + 94 + 98), "SEND_IMM": (2, 90 + 96)},
        {"SEND": (3, 91 + 95 + 97), "SEND_IMM": (2, 93 + 99)},
    ],
    "registrations": [{"WRITE": (8, 8 * 256)}],
    "windows": [
        {"WRITE": (2, 200), "WRITE_IMM": (1, 200), "READ": (2, 600), "SEND_INV": (2, 70 + 2500)}
    ],
    "sizes": [dict.fromkeys(("WRITE", "SEND", "READ", "WRITE_IMM"), (len(SIZES), sum(SIZES)))],
}
"""What the client does on each connection of a phase: by kind, how many and how many bytes."""


EXTENDED = {
    "lists": [{"SEND": (8, 1 + 3 + 5 + 7 + 4 * 10), "WRITE": (4, 2 + 4 + 6 + 8)}],
    "refused": [{"SEND": (2, 2 * 31)}],
    "batches": [
        {
            "SEND": (6, 3 * (1 + 2001)),
            "SEND_IMM": (3, 3 * 1001),
            "WRITE": (3, 3 * 501),
            "WRITE_IMM": (6, 3 * (1501 + 2501)),
            "READ": (3, 3 * 8),
        }
    ],
}
"""Where this is another with ``ibv_wr_*``: no list of elements; all of a batch is refused."""
BINDS = {"BIND": (4, 0), "INVALIDATE": (1, 0)}
"""What the server does in phase windows."""
THROUGH_WINDOWS = 5
"""Writes and reads of phase windows, by four keys: one window is bound twice."""


CALLS = {
    "operations": {"ibv_post_send", "ibv_bind_mw", "ibv_poll_cq"},
    "extended": {"ibv_wr_complete", "ibv_bind_mw", "ibv_start_poll", "ibv_next_poll"},
}
BATCHED_ARRIVALS = 3 * 4
"""Receives of phase batches that ibv_next_poll() brought."""


def told_by(printed: Said, tell: Callable[[Connection], list[Any]]) -> dict[Key, list[Any]]:
    """What connections say, of those that say something."""
    return {key: tell(one) for key, one in printed.items() if tell(one)}


def check_printed(traced: Traced, printed: Said) -> Trace:
    """Each operation, and in mode full each request and completion, is one that was printed."""
    assert traced.ran.is_whole()
    trace = Trace(traced)
    assert trace.operations() == told_by(
        printed, lambda c: [(k, s.op, s.size_bytes, s.signaled) for k, s in enumerate(c.sent)]
    )
    assert trace.arrivals() == told_by(printed, lambda c: [*enumerate(c.arrivals())])
    differ = f"""select count(*) from ops s join ops r using (flow)
        where s.flow <> 0 and s.op <> {Op.RECV} and r.op = {Op.RECV}
        and s.size_bytes <> r.size_bytes"""
    assert traced.rows(differ) == [(0,)]
    if traced.mode == "full":
        check_requests(trace, printed)
        check_completion(traced, printed)
        lost = ("destroyed",)  # nobody learns what became of them
        done = {key: len(c.sent) for key, c in printed.items() if c.sent and c.phase not in lost}
        assert {key: n for key, n in trace.retired().items() if n} == done
    return trace


def check_requests(trace: Trace, printed: Said) -> None:
    """Requests and completions, each with all that the program knows of it, in order."""
    sent = told_by(printed, lambda c: [(k, *s[1:]) for k, s in enumerate(c.sent)])
    assert trace.requests() == sent
    receives = told_by(printed, lambda c: [(c.receives,)] if c.receives else [])
    assert trace.receives() == receives
    check_queue(trace, printed, receive=False)
    check_queue(trace, printed, receive=True)


def check_queue(trace: Trace, printed: Said, *, receive: bool) -> None:
    """The completions of all send queues, or of all receive queues."""
    seen = trace.completions(receive=receive)
    expected = told_by(printed, lambda c: c.completions(receive=receive))
    for key in expected:
        if receive and printed[key].shares_receives:  # what one poll returned has no order
            seen[key], expected[key] = sorted(seen[key]), sorted(expected[key])
    assert seen == expected


def check_completion(traced: Traced, printed: Said) -> None:
    """The stage's numbers, counted from what was printed."""
    completion = traced.stage["completion"]
    completed = [one for c in printed.values() for one in c.completed]
    assert completion["cqes"] == len(completed)
    assert completion["errors"] == sum(one.status != GOOD for one in completed)
    assert completion["send_requests"] == sum(len(c.sent) for c in printed.values())
    by_status = "select status, cast(sum(count) as bigint) from latencies group by all"
    assert dict(traced.rows(by_status)) == Counter(one.status for one in completed)
    shared = [one for c in printed.values() if c.shares_receives for one in c.completed]
    assert completion["not_joined"] == sum(one.receive for one in shared)


def run_group(rig: Rig, folder: Path, mode: str, group: str) -> tuple[Traced, Said]:
    wire = group != "errors"  # of those, not all requests leave their node
    argv = [*compiled(rig), group]
    traced = run_traced(rig, folder, mode, argv, wire=wire, threads=group == "threads")
    return traced, said(traced.ran)


def amounts(one: Connection) -> dict[str, tuple[int, int]]:
    """By kind, how many requests were sent and how many bytes."""
    kinds = Counter(sent.kind for sent in one.sent)
    size = {kind: sum(s.size_bytes for s in one.sent if s.kind == kind) for kind in kinds}
    return {kind: (count, size[kind]) for kind, count in kinds.items()}


@BOTH
@pytest.mark.parametrize("group", ["operations", "extended"])
def test_operations(rig: Rig, tmp_path: Path, mode: str, group: str) -> None:
    """Against the program's source, its output, and the wire."""
    traced, printed = run_group(rig, tmp_path, mode, group)
    all_expected = OPERATIONS | EXTENDED if group == "extended" else OPERATIONS
    for name, expected in all_expected.items():
        assert [amounts(one) for one in phase(printed, name, CLIENT)] == expected
    assert [amounts(one) for one in phase(printed, "windows", SERVER)] == [BINDS]
    (sizes,) = phase(printed, "sizes", CLIENT)
    assert [one.size_bytes for one in sizes.sent[::4]] == SIZES
    check(traced)
    all_matched(traced)
    check_printed(traced, printed)
    check_datagrams(traced, printed)
    calls = traced.rows("select distinct c.text from ops o join calls c using (call)")
    assert {text for (text,) in calls} == CALLS[group]
    batched = "select count(*) from ops o join calls c using (call) where text = 'ibv_next_poll'"
    assert traced.rows(batched) == [(BATCHED_ARRIVALS if group == "extended" else 0,)]
    check_polls(rig, tmp_path, traced)
    if mode == "full":
        assert traced.stage["completion"]["send_outstanding"] == 0
        check_regions(traced, window_keys(rig, tmp_path))


def check_polls(rig: Rig, folder: Path, traced: Traced) -> None:
    """Polls, empty ones apart, over all completion queues; mode full alone counts them."""
    for rank in read_all(rig.share / folder.name):
        queues = rank.objects_of("ib_cq")
        seen = [sum(one.get(name, 0) for one in queues) for name in ("polls", "empty_polls")]
        node = int(rank.header["host"].removeprefix("node"))
        printed = polls(traced.ran.results[node]) if traced.mode == "full" else (0, 0)
        assert tuple(seen) == printed


def check_datagrams(traced: Traced, printed: Said) -> None:
    """On the wire, a datagram names its sender."""
    wire = {flow.source_qpn or 0: flow for flow in traced.ran.wire.flows if flow.transport == "UD"}
    sent = {key[1]: one.sent for key, one in printed.items() if one.phase == "datagrams"}
    assert len(wire) == 2
    for qpn, flow in wire.items():
        assert [one.told for one in sent[qpn]] == [request_of(message) for message in flow.messages]


def window_keys(rig: Rig, folder: Path) -> set[int]:
    """Keys of the windows that were bound."""
    memory = [
        one for rank in read_all(rig.share / folder.name) for one in rank.objects_of("memory")
    ]
    return {one["key"] for one in memory if one.get("kind") == "window"}


def check_regions(traced: Traced, windows: set[int]) -> None:
    """The region of each one-sided request has its key, and contains what it touches."""
    regions = traced.result.tables["regions"].to_pylist()
    rows = traced.rows("select region, rkey, raddr, size_bytes from requests where owner = 1")
    keys = {rkey for _, rkey, _, _ in rows}
    assert len(keys) == 2 + 4 + 4  # of both ends; phase registrations; phase windows
    assert len(windows) == 4 and windows <= keys
    assert len([rkey for _, rkey, _, _ in rows if rkey in windows]) == THROUGH_WINDOWS
    for region, rkey, raddr, size in rows:
        one = regions[region]
        assert one["key"] == rkey
        assert one["address"] <= raddr <= raddr + size <= one["address"] + one["length_bytes"]


def test_aggregates(rig: Rig, tmp_path: Path) -> None:
    """Counts and bytes of each connection by operation."""
    traced, printed = run_group(rig, tmp_path, "aggregate", "operations")
    expected = {}
    for key, one in printed.items():
        sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        done = [(sent.op, sent.size_bytes) for sent in one.sent]
        for op, size in [*done, *((Op.RECV, size) for size in one.arrivals())]:
            sums[op][0] += 1
            sums[op][1] += size
        if sums:
            expected[key] = [(op, *sums[op]) for op in sorted(sums)]
    assert Trace(traced).aggregates() == expected


FAILED = [FLUSHED] * 3
NONE: list[int] = []
ERRORS: dict[tuple[str, int], tuple[list[int], list[int], list[int]]] = {
    ("bad_rkey_write", 0): ([GOOD, ACCESS, *FAILED], [FLUSHED] * 2, [GOOD, FLUSHED, FLUSHED]),
    ("bad_rkey_read", 0): ([GOOD, ACCESS, *FAILED], [FLUSHED] * 2, [GOOD, FLUSHED, FLUSHED]),
    ("bad_lkey_send", 0): ([GOOD, OPERATION, *FAILED], [FLUSHED] * 2, [GOOD]),
    ("bad_lkey_read", 0): ([GOOD, PROTECTION, *FAILED], [FLUSHED] * 2, [GOOD]),
    ("too_long", 0): ([OTHER_END, *FAILED], [FLUSHED] * 2, [OPERATION, FLUSHED]),
    ("not_ready", 0): ([NOT_READY, *FAILED], [FLUSHED] * 2, NONE),
    ("recovered", 0): ([FLUSHED] * 2, [FLUSHED] * 2, NONE),
    ("recovered", 1): ([GOOD] * 3, NONE, [GOOD] * 3),
    ("destroyed", 0): (NONE, NONE, NONE),
    ("invalidated", 0): ([GOOD, GOOD, ACCESS, *FAILED], [FLUSHED] * 2, [GOOD, FLUSHED, FLUSHED]),
}
KILLED = {("killed", 0): ([*[GOOD] * 5, RETRIES, *FAILED], [FLUSHED] * 2, [GOOD] * 5)}
"""By phase and life: statuses of the client's requests and receives, of the server's receives."""


def statuses(printed: Said) -> dict[tuple[str, int], tuple[list[int], ...]]:
    """In the shape of ``ERRORS``."""
    ends = {(one.phase, life, node): one for (node, _, life), one in printed.items()}
    found = {}
    for name, life in {(name, life) for name, life, _ in ends}:
        client, server = ends[name, life, CLIENT], ends[name, life, SERVER]
        queues = (
            client.completions(receive=False),
            client.completions(receive=True),
            server.completions(receive=True),
        )
        found[name, life] = tuple([one.status for one in queue] for queue in queues)
    return found


def check_unmatched(traced: Traced, sent: int, received: int) -> None:
    """Of the messages that failed, each is one that was not seen at the other end."""
    match = traced.stage["match"]
    assert (match["sends"], match["receives"]) == (sent, received)
    assert match["sends_matched"] == match["receives_matched"] == received
    unmatched = {why: count for why, count in match["sends_unmatched"].items() if count}
    assert unmatched == {"not_seen_received": sent - received}
    assert not any(match["receives_unmatched"].values())


def check_begun(traced: Traced, printed: Said) -> dict[str, tuple[Flow | None, Flow | None]]:
    """What is on the wire is the beginning of what was requested; flows by phase, and back."""
    flows = {(flow.source, flow.qpn): flow for flow in traced.ran.wire.flows}
    server, client = (traced.ran.rig.node(number).address for number in (SERVER, CLIENT))
    found = {}
    for (node, qpn, life), one in printed.items():
        if node == CLIENT:
            there = flows.get((client, one.sent[0].peer))
            messages = there.messages if there else []
            seen = [request_of(message) for message in messages if message.psn // LIFE_PSNS == life]
            assert seen == [sent.told for sent in one.sent][: len(seen)]
            good = [c for c in one.completions(receive=False) if c.status == GOOD]
            assert len(seen) >= len(good)
            found[one.phase] = (there, flows.get((server, qpn)))
    return found


@BOTH
def test_errors(rig: Rig, tmp_path: Path, mode: str) -> None:
    traced, printed = run_group(rig, tmp_path, mode, "errors")
    assert statuses(printed) == ERRORS
    check_printed(traced, printed)
    check_unmatched(traced, sent=3 + 3 + 4 + 3 + 3 + 3 + 2 + 3 + 3 + 3, received=4 + 3 + 1)
    flows = check_begun(traced, printed)
    refusals = {name: set(back.refusals) for name, (_, back) in flows.items() if back}
    for name in ("bad_rkey_write", "bad_rkey_read", "invalidated"):
        assert refusals[name] == {NAK_ACCESS}
    assert refusals["too_long"] == {NAK_OPERATION}
    assert RNR_NAK in refusals["not_ready"]
    assert flows["bad_lkey_send"][0] is not None
    assert len(flows["bad_lkey_send"][0].messages) == 1
    assert traced.result.ledger["balanced"]
    check_not_offered(traced, printed)
    if mode == "full":
        completion = traced.stage["completion"]
        assert completion["send_outstanding"] == 3
        owners = traced.stage["one_sided"]["owners"]
        assert owners["no_region"] == 2  # bad keys; a window's is known, also when it is void
        assert owners["ambiguous"] == owners["target_unknown"] == 0


def check_not_offered(traced: Traced, printed: Said) -> None:
    """The trace has the queue pairs that there were: none of XRC, which the driver refused."""
    counts = dict(
        traced.rows("select host, count(*) from endpoints join processes using (proc) group by all")
    )
    connected = Counter(f"node{node}" for node, _, _ in printed)
    assert counts == connected


@BOTH
def test_killed_peer(rig: Rig, tmp_path: Path, mode: str) -> None:
    """The killed process has left all that it had recorded."""
    traced, printed = run_killed(rig, tmp_path, mode)
    assert statuses(printed) == KILLED
    check_printed(traced, printed)
    check_unmatched(traced, sent=8, received=5)
    check_begun(traced, printed)
    assert traced.result.ledger["balanced"]
    ends = dict(traced.rows('select host, "end" from processes'))
    assert ends == {"node0": "", "node1": "exit"}
    if mode == "full":
        assert traced.stage["completion"]["send_outstanding"] == 0


def run_killed(rig: Rig, folder: Path, mode: str) -> tuple[Traced, Said]:
    """Here the server may fail: it is killed, by itself."""
    run = rig.share / folder.name
    gone = rig.share / f"{folder.name}.gone"
    argv = [*compiled(rig), "killed"]
    env = {**tracing(run, mode), "SERVER_GONE": f"/share/{gone.name}"}
    run.mkdir()
    with rig.capture.into(folder / "case.pcap"):
        server = rig.node(SERVER).start(argv, env=env)
        server.listening(PORT)
        client = rig.node(CLIENT).start([*argv, rig.node(SERVER).address], env=env)
        ended = server.wait(check=False)
        gone.touch()
        result = client.wait()
    assert ended.code == -signal.SIGKILL
    ran = Ran(rig, (ended, result), folder / "case.pcap")
    return correlated(ran, run, folder / "out", mode, wire=False, strict=False), said(ran)
