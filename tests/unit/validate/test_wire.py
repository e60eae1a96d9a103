"""The stage that compares: flows from the tables of a run, sums over partitions, what it says."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sigmatrace.trace_format import Dir, Layer, Op, OpFlag, Queue
from sigmatrace.validate.pcap import read_capture
from sigmatrace.validate.wire import Places, Wire
from tests.factories import make_partition, make_run, queue_pair
from tests.unit.validate import wire
from tests.unit.validate.wire import A, B, packet, write_pcap

V4 = {A: f"{0xFFFF:024x}0a000001", B: f"{0xFFFF:024x}0a000002"}
LINK = {A: "fe80" + "0" * 27 + "1", B: "fe80" + "0" * 27 + "2"}
WRITE, SEND, BIND = 0, 2, 8


def run(mode="full"):
    """Rank 0 with a connected queue pair (7) and one for datagrams (8); its peer is rank 1."""
    endpoints = [
        queue_pair(0, 7, f"{LINK[A]}:22", f"{LINK[B]}:11", sq_psn=5),
        queue_pair(0, 8, f"{LINK[A]}:23", sq_psn=1),
        queue_pair(1, 5, f"{LINK[B]}:11", f"{LINK[A]}:22"),
        queue_pair(1, 6, "lid5/fe80:9", "lid6/fe80:9"),
    ]
    channels = [
        {"proc": 0, "object": 7, "peer": 7, "dir": Dir.OUT, "layer": Layer.VERBS},
        {"proc": 0, "object": 8, "peer": 9, "dir": Dir.OUT, "layer": Layer.VERBS},
        {"proc": 1, "object": 5, "peer": 5, "dir": Dir.IN, "layer": Layer.VERBS},
        {"proc": 0, "object": 7, "peer": 7, "dir": Dir.OUT, "layer": Layer.UCP},
        {"proc": 1, "object": 6, "peer": 6, "dir": Dir.OUT, "layer": Layer.VERBS},
    ]
    gids = [
        {"proc": proc, "port": 3, "index": index, "gid": gids[host], "place": LINK[host]}
        for proc, host in enumerate((A, B))
        for index, gids in enumerate((LINK, V4))
    ]
    return make_run(
        processes=[{"mode": mode}, {"mode": mode}],
        endpoints=endpoints,
        channels=channels,
        addresses=[{"proc": 0, "av": 8, "addr": 9, "place": LINK[B], "qpn": 0x33}],
        gids=gids,
    )


def part_of(number=0, **tables):
    """A partition whose operations have times: those of ``t_tsc``."""
    made = make_partition(number, **tables)
    return made.with_columns("ops", {"t_ns": made.column("ops", "t_tsc").astype(np.int64)})


def op(code, size, channel=0, proc=0):
    return {"proc": proc, "channel": channel, "op": code, "size_bytes": size}


def request(position, opcode, size, raddr=0, rkey=0, queue=Queue.SEND):
    at = {"proc": 0, "object": 7, "position": position, "queue": queue, "opcode": opcode}
    return {**at, "size_bytes": size, "raddr": raddr, "rkey": rkey}


PARTS = [
    part_of(
        0,
        ops=[op(Op.SEND, 10), op(Op.RECV, 10, 2, 1), op(Op.SEND, 99, 3), op(Op.SEND, 50, 1)],
        requests=[request(0, SEND, 10), request(0, SEND, 77, queue=Queue.RECV)],
    ),
    part_of(
        1,
        ops=[op(Op.PUT, 20), op(Op.BIND, 0), op(Op.SEND, 5, 4, 1)],
        requests=[request(2, WRITE, 20, 0x1000, 7), request(1, BIND, 0)],
    ),
]
FRAMES = [
    packet(wire.SEND_ONLY, 5, 10),
    packet(wire.WRITE_ONLY, 6, 20, headers=wire.reth(0x1000, 7, 20)),
    packet(wire.UD | wire.SEND_ONLY, 1, 50, qpn=0x33, headers=wire.deth(0x23)),
]


def comparing(tmp_path: Path, frames) -> Wire:
    path = write_pcap(tmp_path / "x.pcap", frames)
    return Wire(partial(read_capture, path), str(path))


def outcome(tmp_path: Path, frames=FRAMES, of=None, parts=PARTS):
    stage = comparing(tmp_path, frames)
    right, left = (stage.summarize(part) for part in reversed(parts))
    of = of or run()
    resolved = stage.resolve(stage.combine(left, right), of)
    table = stage.results(resolved)["wire_flows"].to_pylist()
    return table, stage.account(resolved), stage.lines(resolved, of)


def row(qpn, code, messages, length, **more):
    counts = {"traced": messages, "traced_bytes": length}
    counts |= {"captured": messages, "captured_bytes": length}
    return {"source": A, "destination": B, "qpn": qpn, "op": code, **counts, "repeated": 0, **more}


def test_all_equal(tmp_path):
    table, account, lines = outcome(tmp_path)
    assert table == [
        row(0x11, Op.SEND, 1, 10, verdict="equal"),
        row(0x11, Op.PUT, 1, 20, verdict="equal"),
        row(0x33, Op.SEND, 1, 50, verdict="equal"),
    ]
    assert (account["flows"], account["equal"], account["requests"]) == (2, 2, 2)
    assert account["frames"]["roce"] == 3
    assert lines == ["wire       2 flows, all equal"]


def test_packets_that_were_sent_again_are_told_and_count_once(tmp_path):
    table, account, lines = outcome(tmp_path, [*FRAMES[:2], *FRAMES[:2], FRAMES[2]])
    assert table == [
        row(0x11, Op.SEND, 1, 10, verdict="equal", repeated=2),
        row(0x11, Op.PUT, 1, 20, verdict="equal", repeated=2),
        row(0x33, Op.SEND, 1, 50, verdict="equal"),
    ]
    assert account["repeated_packets"] == 2
    assert lines == ["wire       2 flows, all equal", "             2 packets sent again"]


def test_differences_are_told(tmp_path):
    frames = [FRAMES[0], packet(wire.WRITE_ONLY, 6, 20, headers=wire.reth(0x1008, 7, 20))]
    frames.append(packet(wire.SEND_ONLY, 9, 4, source=B, destination=A, qpn=0x99))
    _, account, lines = outcome(tmp_path, frames)
    counts = {name: account[name] for name in ("flows", "differs", "not_whole", "not_traced")}
    assert counts == {"flows": 3, "differs": 1, "not_whole": 1, "not_traced": 1}
    assert lines[0] == "wire       3 flows, 1 different, 1 not traced, 1 not whole in the capture"
    told = f"{A} to queue pair 0x11 of {B}: request 1 is another one"
    missing = f"{A} to queue pair 0x33 of {B}: send: 1 of 50 bytes in the trace, 0 of 0 bytes"
    assert [line.strip() for line in lines[1:]] == account["differing"] == [told]
    assert account["undecided"] == [f"{missing} on the wire"]


@pytest.mark.parametrize("flags", [0, OpFlag.ORDER_UNCERTAIN])
def test_an_uncertain_order_is_not_compared(tmp_path, flags):
    """Threads that post to one queue pair may be numbered in another order than they went."""
    swapped = part_of(
        0,
        ops=[op(Op.SEND, 10), op(Op.SEND, 20) | {"flags": flags}],
        requests=[request(0, SEND, 20), request(1, SEND, 10)],
    )
    frames = [packet(wire.SEND_ONLY, 5, 10), packet(wire.SEND_ONLY, 6, 20)]
    _, account, lines = outcome(tmp_path, frames, parts=[swapped, part_of(1)])
    assert (account["equal"], account["requests"]) == (int(flags != 0), 2)
    assert lines[0] == f"wire       1 flow, {'all equal' if flags else '1 different'}"


def test_without_requests_amounts_are_compared(tmp_path):
    frames = [FRAMES[0], packet(wire.WRITE_ONLY, 6, 20, headers=wire.reth(1, 2, 20)), FRAMES[2]]
    _, account, _ = outcome(tmp_path, frames, run(mode="simple"))
    assert (account["equal"], account["requests"]) == (2, 0)


def test_a_flow_of_processes_of_several_modes_is_compared_by_amounts(tmp_path):
    """Another process of the host, of mode simple, sends to the same queue pair."""
    of = run()
    processes = of.tables["processes"].to_pylist()
    endpoints = [
        *of.tables["endpoints"].to_pylist(),
        queue_pair(2, 7, V4[A] + ":24", LINK[B] + ":11"),
    ]
    tables = {name: table.to_pylist() for name, table in of.tables.items()}
    tables |= {"processes": [*processes, {"mode": "simple"}], "endpoints": endpoints}
    _, account, _ = outcome(tmp_path, of=make_run(**tables))
    assert (account["equal"], account["requests"]) == (2, 0)


def test_frames_that_are_not_decoded_are_told(tmp_path):
    _, account, lines = outcome(tmp_path, [*FRAMES, FRAMES[0][:50]])
    assert account["frames"]["damaged"] == 1
    assert lines == ["wire       2 flows, all equal, 1 frame not decoded"]


def test_aggregates_count(tmp_path):
    stage = comparing(tmp_path, FRAMES[:1])
    rows = [{"channel": 0, "op": Op.SEND, "count": 1, "size_bytes": 10}]
    part = part_of(0, aggregates=rows)
    resolved = stage.resolve(stage.summarize(part), run(mode="aggregate"))
    assert stage.account(resolved)["equal"] == 1


def test_a_gid_that_two_ports_claim_is_a_place_of_its_own():
    gids = [
        {"proc": proc, "port": 1, "index": index, "gid": gid, "place": gid}
        for proc, host in enumerate((A, B))
        for index, gid in enumerate((LINK[A], V4[host]))
    ]
    places = Places(make_run(processes=[{}, {}], gids=gids))
    assert places.of_ip("fe80::1") == "fe80::1"
    assert [places.of_ip(host) for host in (A, B, "10.9.9.9")] == [A, B, "10.9.9.9"]


WHOLE = [packet(wire.SEND_ONLY, psn, 10) for psn in (5, 6, 7)]


@pytest.mark.parametrize(
    ("frames", "verdict"),
    [
        (WHOLE, "differs"),
        (WHOLE[1:], "not_whole"),
        (WHOLE[::2], "not_whole"),
        ([*WHOLE, FRAMES[2][:40]], "not_whole"),
        ([*WHOLE, packet(wire.SEND_ONLY, 8, 10), packet(wire.SEND_ONLY, 9, 10)], "differs"),
    ],
)
@pytest.mark.parametrize("mode", ["simple", "full"])
def test_less_on_the_wire_is_a_difference_where_the_capture_is_whole(
    tmp_path, mode, frames, verdict
):
    """The trace has four sends within two seconds: one of three that were sent has been invented.

    Frames are a second apart, and the queue pair's numbers begin at 5.
    """
    times = [0, 0, 1, 2]
    ops = [op(Op.SEND, 10) | {"t_tsc": t * 10**9} for t in times]
    requests = [request(k, SEND, 10) for k in range(4)] if mode == "full" else []
    parts = [part_of(0, ops=ops, requests=requests), part_of(1)]
    _, account, _ = outcome(tmp_path, frames, run(mode=mode), parts)
    assert account[verdict] == account["flows"] == 1
    ops[-1]["t_tsc"] = 10 * 10**9  # later than all that was captured
    parts = [part_of(0, ops=ops, requests=requests), part_of(1)]
    _, account, _ = outcome(tmp_path, frames, run(mode=mode), parts)
    assert account["differs" if len(frames) == 5 else "not_whole"] == 1


def test_numbers_of_datagrams_go_on_over_all_receivers(tmp_path):
    """A gap towards one receiver is none where another one got that number."""
    there = {"headers": wire.deth(0x23)}
    frames = [
        packet(wire.UD | wire.SEND_ONLY, 1, 50, qpn=0x33, **there),
        packet(wire.UD | wire.SEND_ONLY, 2, 50, qpn=0x99, **there),
        packet(wire.UD | wire.SEND_ONLY, 3, 50, qpn=0x33, **there),
    ]
    parts = [part_of(0, ops=[op(Op.SEND, 50, 1)] * 3), part_of(1)]
    for kept, verdict in ((frames, "differs"), (frames[::2], "not_whole")):
        _, account, _ = outcome(tmp_path, kept, parts=parts)
        assert account[verdict] == 1
