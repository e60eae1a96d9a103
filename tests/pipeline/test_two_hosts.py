"""A recorded run on two hosts whose clocks disagree: by recorded clock pairs, and by messages.

``tests/data/two-hosts/README.md`` says how it was made.
"""

from __future__ import annotations

import struct
import tarfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from sigmatrace import api
from sigmatrace.errors import DataLossError, PcapError
from sigmatrace.validate.pcap import read_capture

ARCHIVE = Path(__file__).parents[1] / "data" / "two-hosts" / "two-hosts.tar.xz"
MESSAGES = 500  # each way
SIZE_BYTES = 64
STAGES = ("clock", "topology", "match", "traffic", "messages")
OTHER = {"node0": "node1", "node1": "node0"}
NODES = {"10.77.0.1": "node0", "10.77.0.2": "node1"}


@dataclass(frozen=True)
class TwoHosts:
    """The run.

    Attributes:
        run: Folder of its files.
        result: Of the pipeline.
        times: By sending host, when each message was sent and received by the trace (ns).
        wire: By sending host, when each message was on the network, by a third clock (ns).
    """

    run: Path
    result: api.Result
    times: dict[str, list[tuple[int, int]]]
    wire: dict[str, list[int]]


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> TwoHosts:
    run = tmp_path_factory.mktemp("two-hosts")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(run, filter="data")
    capture = run / "wire.pcap"
    wire = {
        NODES[flow.source]: [message.time_ns for message in flow.messages]
        for flow in read_capture(capture).flows
    }
    overrides = [f"validate.pcap={capture}", "stage.clock.method=calibration"]
    result = api.run(
        run, export="json", out=run / "out", stage=STAGES, strict=True, overrides=overrides
    )
    return TwoHosts(run, result, times_of(result), wire)


def times_of(result: api.Result) -> dict[str, list[tuple[int, int]]]:
    """By sending host, when each message was sent and received by the trace (ns)."""
    hosts = result.tables["processes"].column("host").to_pylist()
    times = defaultdict(list)
    for row in result.tables["message_pairs"].sort_by("flow").to_pylist():
        times[hosts[row["src_proc"]]].append((row["send_ns"], row["receive_ns"]))
    return times


def test_all_messages_are_matched(two_hosts):
    ledger = two_hosts.result.ledger
    assert ledger["balanced"] and ledger["lossless"]
    match = ledger["stages"]["match"]
    assert match["sends"] == match["sends_matched"] == 2 * MESSAGES
    assert match["receives"] == match["receives_matched"] == 2 * MESSAGES
    assert [len(two_hosts.times[host]) for host in OTHER] == [MESSAGES] * 2
    assert [len(two_hosts.wire[host]) for host in OTHER] == [MESSAGES] * 2
    rows = two_hosts.result.tables["traffic"].to_pylist()
    amounts = {(row["count"], row["size_bytes"]) for row in rows}
    assert amounts == {(MESSAGES, MESSAGES * SIZE_BYTES)}


def test_violations_of_causality_are_counted(two_hosts):
    told = two_hosts.result.ledger["stages"]["messages"]
    early = [r - s for rows in two_hosts.times.values() for s, r in rows if r < s]
    assert told["received_before_sent"] == len(early) == MESSAGES
    assert told["worst_violation_ns"] == -min(early) == pytest.approx(957_760_316, abs=1000)
    hosts = two_hosts.result.tables["processes"].column("host").to_pylist()
    pair = f"{hosts.index('node0')} to {hosts.index('node1')}"
    assert told["violations_by_pair"] == {pair: MESSAGES}
    line = "pairs      500 of 1 000 messages received before they were sent: clocks disagree"
    assert line in two_hosts.result.text().splitlines()


def test_clock_pairs_of_each_host_fit(two_hosts):
    quality = two_hosts.result.tables["clock_quality"].to_pylist()
    assert [(row["pairs"], row["bad_pairs"]) for row in quality] == [(24, 0), (23, 0)]
    assert all(row["calibrated"] and row["error_ns"] < 100 for row in quality)
    assert two_hosts.result.ledger["stages"]["clock"]["steps"]["count"] == 0


def test_one_offset_for_each_host_puts_every_message_in_order(two_hosts):
    """Sent, then on the network, then received: so that only the clocks are to blame."""
    offsets = {}
    for host, other in OTHER.items():
        sent = zip(two_hosts.times[host], two_hosts.wire[host], strict=True)
        received = zip(two_hosts.times[other], two_hosts.wire[other], strict=True)
        least = max(send - wire for (send, _), wire in sent)
        most = min(receive - wire for (_, receive), wire in received)
        assert least < most
        offsets[host] = (least + most) / 2
    assert offsets["node0"] - offsets["node1"] == pytest.approx(0.963e9, abs=2e6)


@pytest.mark.parametrize("method", ["auto", "messages"])
def test_messages_correct_the_clocks_and_no_violation_is_left(two_hosts, tmp_path, method):
    """Judged by the third clock: where it allows the difference of both nodes' to be."""
    words = [f"stage.clock.method={method}"]
    made = api.run(
        two_hosts.run,
        export=["json", "perfetto"],
        out=tmp_path / "out",
        stage=STAGES,
        overrides=words,
    )
    assert made.ledger["stages"]["messages"]["received_before_sent"] == 0
    assert made.ledger["exports"]["perfetto"]["flows_backwards"] == 0
    assert made.ledger["exports"]["perfetto"]["flows"] == 2 * MESSAGES
    rows = {row["host"]: row for row in made.tables["clock_hosts"].to_pylist()}
    assert all(row["violations_before"] == MESSAGES for row in rows.values())
    assert all(row["violations_after"] == 0 and row["tied"] for row in rows.values())
    assert all(row["messages"] == 2 * MESSAGES and row["steps"] == 0 for row in rows.values())
    ((host, row),) = ((h, r) for h, r in rows.items() if r["reference"] != h)
    sign = 1 if host == "node1" else -1
    assert sign * row["offset_ns"] == pytest.approx(0.963e9, abs=2e6)
    # The wire saw each message between its two times: so do times that were corrected.
    offsets = {}
    times = times_of(made)
    for one, other in OTHER.items():
        sent = zip(times[one], two_hosts.wire[one], strict=True)
        received = zip(times[other], two_hosts.wire[other], strict=True)
        least = max(send - wire for (send, _), wire in sent)
        most = min(receive - wire for (_, receive), wire in received)
        offsets[one] = (least + most) / 2
    assert abs(offsets["node0"] - offsets["node1"]) <= row["bound_ns"]


def test_the_wire_shows_what_the_trace_says(two_hosts):
    rows = two_hosts.result.tables["wire_flows"].to_pylist()
    amounts = {(row["traced"], row["traced_bytes"], row["verdict"]) for row in rows}
    assert amounts == {(MESSAGES, MESSAGES * SIZE_BYTES, "equal")}
    assert "wire       2 flows, all equal" in two_hosts.result.lines
    assert two_hosts.result.ledger["stages"]["wire"]["frames"]["damaged"] == 0


def test_packets_that_were_sent_again_are_counted(two_hosts):
    """By plain Python: requests (SEND and the like) whose number was there before."""
    pcap, at, seen, again = pcap_of(two_hosts), 24, set(), Counter()
    while at < len(pcap):
        size = struct.unpack_from("<I", pcap, at + 8)[0]
        frame, at = pcap[at + 16 : at + 16 + size], at + 16 + size
        bth = frame[14 + 20 + 8 :]
        if frame[36:38] == struct.pack(">H", 4791) and bth[0] <= 0x0C:
            destination, qpn, psn = frame[30:34], bth[5:8], bth[9:12]
            key = destination, qpn, psn
            again[int.from_bytes(qpn, "big")] += key in seen
            seen.add(key)
    rows = two_hosts.result.tables["wire_flows"].to_pylist()
    found = Counter()
    for row in rows:
        found[row["qpn"]] += row["repeated"]
    assert found == again and again.total() > 100
    assert two_hosts.result.ledger["stages"]["wire"]["repeated_packets"] == again.total()
    assert two_hosts.result.lines[-1] == f"             {again.total()} packets sent again"


def with_capture(two_hosts, tmp_path, pcap):
    """Validates with a changed capture; returns the result, and what ``strict=true`` says."""
    capture = tmp_path / "changed.pcap"
    capture.write_bytes(pcap)
    options = {"export": "json", "stage": STAGES, "overrides": [f"validate.pcap={capture}"]}
    done = api.run(two_hosts.run, out=tmp_path / "out", **options)
    assert done.ledger["lossless"]
    with pytest.raises(DataLossError) as refused:
        api.run(two_hosts.run, out=tmp_path / "strict", strict=True, **options)
    assert not (tmp_path / "strict").exists()
    return done, str(refused.value)


def test_a_message_that_the_trace_does_not_have_is_told_and_an_error_with_strict(
    two_hosts, tmp_path
):
    done, refused = with_capture(two_hosts, tmp_path, with_another_send(pcap_of(two_hosts)))
    assert done.lines[-3] == "wire       2 flows, 1 different, 1 equal"
    told = f"send: {MESSAGES} of {MESSAGES * SIZE_BYTES} bytes in the trace, {MESSAGES + 1} of"
    assert told in done.lines[-2]
    assert "1 flow differs from the packet capture: 10.77.0" in refused


@pytest.mark.parametrize("which", [0, MESSAGES // 2, -1])
def test_a_packet_that_the_capture_lost_is_no_fault_of_the_trace(two_hosts, tmp_path, which):
    """The first, one in between, or the last message, each a packet of its own."""
    done, refused = with_capture(two_hosts, tmp_path, without_send(pcap_of(two_hosts), which))
    assert done.lines[-2] == "wire       2 flows, 1 equal, 1 not whole in the capture"
    told = f"send: {MESSAGES} of {MESSAGES * SIZE_BYTES} bytes in the trace, {MESSAGES - 1} of"
    assert told in done.ledger["stages"]["wire"]["undecided"][0]
    assert "1 flow is not whole in the packet capture" in refused and told in refused


def test_a_capture_of_something_else_validates_nothing(two_hosts, small, tmp_path):
    """Neither one without packets, nor one for a run that used no queue pairs."""
    done, refused = with_capture(two_hosts, tmp_path, pcap_of(two_hosts)[:24])
    assert done.lines[-1] == "wire       2 flows, 2 not captured"
    assert "2 flows are not whole in the packet capture, or not there" in refused
    options = [f"validate.pcap={two_hosts.run / 'wire.pcap'}"]
    api.run(small, export="json", out=tmp_path / "other", overrides=options)
    with pytest.raises(DataLossError, match="no flow could be compared with the packet capture"):
        api.run(small, export="json", out=tmp_path / "none", strict=True, overrides=options)


def test_what_is_no_capture_is_refused_before_the_run_is_looked_at(tmp_path):
    (tmp_path / "text").write_text("no capture")
    with pytest.raises(PcapError, match="is not a pcap file"):
        api.run(tmp_path / "missing", overrides=[f"validate.pcap={tmp_path / 'text'}"])


def pcap_of(two_hosts) -> bytes:
    return (two_hosts.run / "wire.pcap").read_bytes()


BASE = slice(16 + 42, 16 + 42 + 12)  # behind the headers of the record, Ethernet, IPv4 and UDP
PSN = slice(BASE.stop - 3, BASE.stop)


def frames_of(pcap: bytes) -> tuple[list[bytes], list[bytes]]:
    """The records of a capture, and those of packets that carry a message."""
    frames, at = [], 24
    while at < len(pcap):
        end = at + 16 + int.from_bytes(pcap[at + 8 : at + 12], "little")
        frames.append(pcap[at:end])
        at = end
    return frames, [frame for frame in frames if len(frame) >= 16 + 42 + 12 + SIZE_BYTES]


def without_send(pcap: bytes, which: int) -> bytes:
    """The capture without a packet of one direction, and without its repetitions."""
    frames, sends = frames_of(pcap)
    same = [frame for frame in sends if frame[BASE][:8] == sends[-1][BASE][:8]]
    distinct = list(dict.fromkeys(frame[BASE] for frame in same))
    return pcap[:24] + b"".join(frame for frame in frames if frame[BASE] != distinct[which])


def with_another_send(pcap: bytes) -> bytes:
    """The capture with one more message behind the last one."""
    last = bytearray(frames_of(pcap)[1][-1])
    last[PSN] = ((int.from_bytes(last[PSN], "big") + 1) % 2**24).to_bytes(3, "big")
    return pcap + last
