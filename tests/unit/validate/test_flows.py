"""Messages from packets: assembly, loss, repetition, order, numbers that wrap."""

import random
import struct
from pathlib import Path

import pytest

from sigmatrace.validate.connections import Connection
from sigmatrace.validate.flows import Flow, PacketCapture, Total
from sigmatrace.validate.pcap import read_capture
from tests.unit.validate import wire
from tests.unit.validate.wire import A, B, packet, write_pcap

MTU = 1024


def captured(tmp_path: Path, frames: list[bytes], mtu: int | None = None) -> PacketCapture:
    return read_capture(write_pcap(tmp_path / "x.pcap", frames), mtu)


def only_flow(tmp_path: Path, frames: list[bytes], mtu: int | None = None) -> Flow:
    (flow,) = captured(tmp_path, frames, mtu).flows
    return flow


def message(psn: int, size: int, *, write: bool = False, address: int = 0x1000) -> list[bytes]:
    """The packets of a send, or of a write with rkey 7."""
    shift = wire.WRITE_FIRST if write else 0
    count = max(1, -(-size // MTU))
    frames = []
    for index in range(count):
        position = wire.SEND_MIDDLE if 0 < index < count - 1 else wire.SEND_LAST
        if index == 0:
            position = wire.SEND_ONLY if count == 1 else wire.SEND_FIRST
        headers = wire.reth(address, 7, size) if write and index == 0 else b""
        payload = min(MTU, size - index * MTU)
        frames.append(packet(position + shift, psn + index, payload, headers=headers))
    return frames


def response(psn: int, size: int, qpn: int = 0x22) -> list[bytes]:
    """The packets that B answers a read of A with."""
    count = max(1, -(-size // MTU))
    frames = []
    for index in range(count):
        op = wire.RESPONSE_MIDDLE if 0 < index < count - 1 else wire.RESPONSE_LAST
        if index == 0:
            op = wire.RESPONSE_ONLY if count == 1 else wire.RESPONSE_FIRST
        headers = b"" if op == wire.RESPONSE_MIDDLE else wire.ACKNOWLEDGED
        payload = min(MTU, size - index * MTU)
        where = {"qpn": qpn, "source": B, "destination": A}
        frames.append(packet(op, psn + index, payload, headers=headers, **where))
    return frames


def read_request(psn: int, address: int, length: int) -> bytes:
    return packet(wire.READ, psn, headers=wire.reth(address, 9, length))


def test_every_kind_of_message(tmp_path: Path) -> None:
    atomic = struct.pack(">QIQQ", 0x40, 3, 1, 2)
    frames = [
        *message(10, 0),
        *message(11, 3000),
        packet(wire.SEND_ONLY_IMM, 14, 5, headers=wire.number(1)),
        packet(wire.SEND_FIRST, 15, MTU),
        packet(wire.SEND_LAST_IMM, 16, 1, headers=wire.number(2)),
        packet(wire.SEND_FIRST, 17, MTU),
        packet(wire.SEND_LAST_INV, 18, 2, headers=wire.number(3)),
        *message(19, 100, write=True, address=0x2000),
        packet(wire.WRITE_FIRST, 20, MTU, headers=wire.reth(0x3000, 8, MTU + 1)),
        packet(wire.WRITE_LAST_IMM, 21, 1, headers=wire.number(4)),
        read_request(22, 0x4000, 600),
        packet(wire.COMPARE_SWAP, 23, headers=atomic),
        packet(wire.FETCH_ADD, 24, headers=atomic),
    ]
    flow = only_flow(tmp_path, frames)
    seen = [(m.kind, m.psn, m.length, m.address, m.rkey, m.immediate) for m in flow.messages]
    assert seen == [
        ("SEND", 10, 0, None, None, None),
        ("SEND", 11, 3000, None, None, None),
        ("SEND_IMM", 14, 5, None, None, 1),
        ("SEND_IMM", 15, MTU + 1, None, None, 2),
        ("SEND_INV", 17, MTU + 2, None, None, 3),
        ("WRITE", 19, 100, 0x2000, 7, None),
        ("WRITE_IMM", 20, MTU + 1, 0x3000, 8, 4),
        ("READ", 22, 600, 0x4000, 9, None),
        ("COMPARE_SWAP", 23, 8, 0x40, 3, None),
        ("FETCH_ADD", 24, 8, 0x40, 3, None),
    ]
    assert (flow.packets, flow.repeated, flow.incomplete, flow.contradicting) == (15, 0, 0, 0)
    assert flow.totals()["SEND_IMM"] == Total(2, MTU + 6)
    assert flow.messages[1].time_ns == 1 * 10**9 + 7000


def test_flows_are_apart(tmp_path: Path) -> None:
    frames = [
        packet(wire.SEND_ONLY, 5, 10, qpn=0x11),
        packet(wire.SEND_ONLY, 5, 20, qpn=0x12),
        packet(wire.SEND_ONLY, 5, 30, qpn=0x11, source=B, destination=A),
    ]
    flows = captured(tmp_path, frames).flows
    assert [(f.source, f.destination, f.qpn, f.totals()["SEND"]) for f in flows] == [
        (A, B, 0x11, Total(1, 10)),
        (A, B, 0x12, Total(1, 20)),
        (B, A, 0x11, Total(1, 30)),
    ]


@pytest.mark.parametrize("start", [0, 1000, (1 << 24) - 10])
@pytest.mark.parametrize("seed", range(5))
def test_repeated_and_reordered_packets_change_nothing(
    tmp_path: Path, start: int, seed: int
) -> None:
    """Also where the numbers wrap, and where the first one seen is not the lowest."""
    chance = random.Random(seed)
    expected, frames, psn = [], [], start
    for index in range(40):
        size, write = chance.choice([0, 1, MTU, MTU + 1, 5 * MTU]), chance.random() < 0.5
        new = message(psn, size, write=write, address=index)
        expected.append(("WRITE" if write else "SEND", size, index if write else None))
        frames += new
        psn += len(new)
    extra = chance.sample(frames, len(frames) // 3)
    shuffled = sorted(
        [*enumerate(frames), *((frames.index(one) + 3, one) for one in extra)],
        key=lambda item: item[0] + chance.uniform(0, 8),
    )
    flow = only_flow(tmp_path, [frame for _, frame in shuffled])
    assert [(m.kind, m.length, m.address) for m in flow.messages] == expected
    assert (flow.packets, flow.repeated) == (len(frames) + len(extra), len(extra))
    assert (flow.incomplete, flow.contradicting) == (0, 0)


@pytest.mark.parametrize("missing", [0, 1, 2, 4])
def test_a_message_with_a_hole_is_incomplete(tmp_path: Path, missing: int) -> None:
    frames = [*message(0, 100), *message(1, 5 * MTU), *message(6, 200)]
    del frames[1 + missing]
    flow = only_flow(tmp_path, frames)
    assert (flow.totals(), flow.incomplete) == ({"SEND": Total(2, 300)}, 1)


def test_incomplete_messages_side_by_side(tmp_path: Path) -> None:
    first, second, third = message(0, 3 * MTU), message(3, 3 * MTU), message(6, 3 * MTU)
    flow = only_flow(tmp_path, [*first[:1], *second[1:], *third[:2]])
    # The first two may as well be one message with a hole: the fewest count.
    assert (flow.messages, flow.incomplete) == ([], 2)
    flow = only_flow(tmp_path, [*first[1:], *second[1:], *third])
    assert (flow.totals(), flow.incomplete) == ({"SEND": Total(1, 3 * MTU)}, 2)


def test_a_write_that_is_not_as_long_as_it_says(tmp_path: Path) -> None:
    short = packet(wire.WRITE_ONLY, 1, 10, headers=wire.reth(1, 2, 11))
    flow = only_flow(tmp_path, [short])
    assert (flow.messages, flow.incomplete) == ([], 1)


@pytest.mark.parametrize("start", [5, (1 << 24) - 3])
def test_a_partly_repeated_read_is_one_read(tmp_path: Path, start: int) -> None:
    """A read request owns the numbers of its response; a repeated one may ask for the rest."""
    size = 10 * MTU + 1
    answer = response(start, size)
    frames = [
        read_request(start, 0x8000, size),
        *answer[:4],
        read_request(start + 4, 0x8000 + 4 * MTU, size - 4 * MTU),
        read_request(start + 4, 0x8000 + 4 * MTU, size - 4 * MTU),
        # Asked for anew, the rest begins with a "first" packet; two packets come twice.
        *response(start + 4, size - 4 * MTU),
        *answer[4:6],
        read_request(start + 11, 0x8000 + 8 * MTU, 3 * MTU),  # another one, inside the first
    ]
    requests, answers = captured(tmp_path, frames).flows
    assert [(m.psn, m.address, m.length) for m in requests.messages] == [
        (start, 0x8000, size),
        (start + 11, 0x8000 + 8 * MTU, 3 * MTU),
    ]
    assert (requests.packets, requests.repeated, requests.contradicting) == (4, 2, 0)
    assert (answers.messages, answers.packets) == ([], 0)
    assert (answers.responses, answers.response_bytes) == (11, size)
    assert answers.repeated_responses == 2


def test_requests_and_responses_of_one_queue_pair_are_counted_apart(tmp_path: Path) -> None:
    """Both directions read: the same numbers mean a request here and a response there."""
    back = packet(wire.READ, 3, headers=wire.reth(1, 2, 8), qpn=0x22, source=B, destination=A)
    frames = [read_request(3, 0, 8), back, *response(3, 8)]
    to_b, to_a = captured(tmp_path, frames).flows
    assert (len(to_b.messages), len(to_a.messages)) == (1, 1)
    assert (to_a.responses, to_a.response_bytes, to_a.repeated) == (1, 8, 0)


def test_acknowledgements_and_refusals(tmp_path: Path) -> None:
    syndromes = [0x1F, 0x00, 0x62, 0x62, 0x21, 0x60]
    frames = [packet(wire.ACK, n, headers=wire.number(s << 24)) for n, s in enumerate(syndromes)]
    atomic = packet(wire.ATOMIC_ACK, 9, headers=wire.ACKNOWLEDGED + bytes(8))
    flow = only_flow(tmp_path, [*frames, atomic, atomic])
    assert flow.refusals == {0x62: 2, 0x21: 1, 0x60: 1}
    assert (flow.responses, flow.response_bytes, flow.repeated_responses) == (1, 8, 1)


def test_datagrams_are_told_apart_by_sender(tmp_path: Path) -> None:
    """UD: equal numbers are no repetition, since a queue pair counts over all receivers."""
    frames = [
        packet(wire.UD | wire.SEND_ONLY, psn, size, headers=wire.deth(sender))
        for sender, psn, size in [(1, 5, 10), (2, 5, 20), (1, 5, 30)]
    ]
    flows = captured(tmp_path, frames).flows
    assert [(f.source_qpn, f.totals()["SEND"]) for f in flows] == [
        (1, Total(2, 40)),
        (2, Total(1, 20)),
    ]


def test_a_different_packet_of_the_same_number_is_counted(tmp_path: Path) -> None:
    flow = only_flow(tmp_path, [packet(wire.SEND_ONLY, 1, 10), packet(wire.SEND_ONLY, 1, 11)])
    assert (flow.totals(), flow.repeated, flow.contradicting) == ({"SEND": Total(1, 10)}, 0, 1)
    frames = [read_request(1, 0, 3 * MTU), packet(wire.SEND_ONLY, 2, 10)]
    flow = only_flow(tmp_path, frames, MTU)
    assert (flow.totals(), flow.contradicting) == ({"READ": Total(1, 3 * MTU)}, 1)


def test_an_uncertain_mtu_is_told_unless_named(tmp_path: Path) -> None:
    frames = [read_request(0, 0, 3000), *response(0, 3000), packet(wire.SEND_FIRST, 3, 256)]
    for mtu, unsure in [(None, True), (MTU, False)]:
        flow = captured(tmp_path, frames, mtu).flows[0]
        assert (flow.totals(), flow.unsure_mtu) == ({"READ": Total(1, 3000)}, unsure)


def test_operations_that_are_not_decoded_are_counted(tmp_path: Path) -> None:
    flow = only_flow(tmp_path, [*message(0, 10), packet(29, 1, 24), *message(2, 20)])
    assert (flow.totals(), flow.unsupported) == ({"SEND": Total(2, 30)}, 1)


def test_packets_of_several_sizes_are_certain_without_reads(tmp_path: Path) -> None:
    """The number of a queue pair was used again with another MTU."""
    small = [packet(wire.SEND_FIRST, 9, 256), packet(wire.SEND_LAST, 10, 256)]
    flow = only_flow(tmp_path, [*message(0, 2 * MTU), *small])
    assert not flow.unsure_mtu
    assert flow.totals() == {"SEND": Total(2, 2 * MTU + 512)}


def datagram(attribute: int, body: bytes) -> bytes:
    return struct.pack(">BBBBHHQHHI", 1, 7, 2, 3, 0, 0, 99, attribute, 0, 0) + body.ljust(
        232, b"\0"
    )


def test_connections_name_the_senders(tmp_path: Path) -> None:
    asked = struct.pack(">IIQQIII", 0xABC, 0, 0x01064866, 0, 0, 0, 0x33 << 8)
    agreed = struct.pack(">IIII", 0xDEF, 0xABC, 0, 0x44 << 8)
    where = {"qpn": 1, "headers": wire.deth(1)}
    back = where | {"source": B, "destination": A}
    request = packet(wire.UD | wire.SEND_ONLY, 0, datagram(0x10, asked), **where)
    reply = packet(wire.UD | wire.SEND_ONLY, 0, datagram(0x13, agreed), **back)
    stray = packet(wire.UD | wire.SEND_ONLY, 1, datagram(0x13, bytes(16)), **back)
    frames = [
        *(request, stray, reply, request, reply),
        packet(wire.SEND_ONLY, 0, 10, qpn=0x44),
        packet(wire.SEND_ONLY, 0, 10, qpn=0x33, source=B, destination=A),
        packet(wire.SEND_ONLY, 0, 10, qpn=0x55),
    ]
    found = captured(tmp_path, frames)
    assert found.connections == [Connection(A, 0x33, B, 0x44, 0x01064866)]
    senders = {(f.source, f.qpn): f.source_qpn for f in found.flows if f.transport == "RC"}
    assert senders == {(A, 0x44): 0x33, (B, 0x33): 0x44, (A, 0x55): None}


def test_an_empty_capture(tmp_path: Path) -> None:
    found = captured(tmp_path, [])
    assert (found.flows, found.connections, found.frames.frames) == ([], [], 0)


@pytest.mark.parametrize("start", [0, (1 << 24) - 2])
def test_packets_that_are_missing_leave_gaps_in_the_numbers(tmp_path: Path, start: int) -> None:
    """Whole messages in one packet, too, and the answers of reads count."""
    sent = [packet(wire.SEND_ONLY, start + k, 10) for k in range(4)]
    read, end = read_request(start + 4, 0, 3000), packet(wire.SEND_ONLY, start + 7, 1)
    frames = [*sent, sent[1], read, *response(start + 4, 3000), end]
    flow = captured(tmp_path, frames).flows[0]
    assert flow.runs == [(start, start + 8)]
    flow = captured(tmp_path, [*sent[:2], *frames[3:4], *frames[5:-1]]).flows[0]
    assert flow.runs == [(start, start + 2), (start + 3, start + 7)]
    assert (flow.incomplete, flow.contradicting) == (0, 0)


def test_numbers_of_datagrams_are_those_of_the_sender(tmp_path: Path) -> None:
    frames = [
        packet(wire.UD | wire.SEND_ONLY, psn, 5, qpn=qpn, headers=wire.deth(sender))
        for sender, qpn, psn in [(1, 8, 5), (1, 9, 6), (2, 8, 90), (1, 8, 7), (1, 9, 9)]
    ]
    found = captured(tmp_path, frames)
    assert [flow.runs for flow in found.flows] == [[(5, 8), (9, 10)]] * 2 + [[(90, 91)]]
    assert found.until_ns == 4 * 10**9 + 7000


def test_the_last_request_that_was_answered(tmp_path: Path) -> None:
    """By an acknowledgement or a response; a refusal says nothing of what came before it."""
    back = {"source": B, "destination": A, "qpn": 0x22}
    good, bad = wire.ACKNOWLEDGED, wire.number(0x60 << 24)
    ack = [packet(wire.ACK, psn, headers=good, **back) for psn in ((1 << 24) - 1, 3, 2)]
    refused = packet(wire.ACK, 9, headers=bad, **back)
    for frames, last in (([*ack, refused], 3), ([refused], None), (response(4, 3000), 6)):
        answered = only_flow(tmp_path, frames).answered
        assert (answered if answered is None else answered % (1 << 24)) == last
