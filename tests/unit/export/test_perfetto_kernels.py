"""The kernels of the Perfetto exporter against plain Python and against protobuf's own decoder."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from sigmatrace.export import perfetto_packets as packets
from sigmatrace.export.kernels import packets as kernel
from sigmatrace.export.kernels.order import sort_rows
from sigmatrace.export.kernels.wire import SLACK_BYTES
from sigmatrace.export.perfetto_rows import Argument, Kind, argument_table
from tests.perfetto_replay import replay

LANES = 1 << 40
SEQUENCE = 300
EDGES = [
    0,
    1,
    127,
    128,
    2**14 - 1,
    2**14,
    2**21 - 1,
    2**21,
    2**28 - 1,
    2**28,
    2**35,
    2**63,
    2**64 - 1,
]


ARGUMENTS = (
    Argument("size_bytes", Kind.U64),
    Argument("peer", Kind.TEXT),
    Argument("why", Kind.TEXT),
    Argument("failed", Kind.FLAG),
)
ROW_BYTES = kernel.ROW_BYTES + len(ARGUMENTS) * kernel.ARGUMENT_BYTES


class Encoded:
    """One track, encoded; rows are dicts, keys as in ``encode_track``.

    ``wide``: arguments of numbers come after the others, with values ``row["wide"]``.
    ``kind``: that of the values of the others.
    """

    def __init__(self, rows, border=-1, base=0, nests=1, wide=(), kind=np.uint64):
        n = len(rows)
        arguments = [*ARGUMENTS[:3], *wide, ARGUMENTS[3]]
        row_bytes = kernel.ROW_BYTES + len(arguments) * kernel.ARGUMENT_BYTES

        def column(key, dtype, default=0):
            return np.array([row.get(key, default) for row in rows], dtype)

        begin, length = column("begin", "i8"), column("length", "i8")
        order = np.arange(n, dtype=np.uint32)
        sort_rows(order, begin, length, column("depth", "u1"))
        self.order = order.tolist()
        self.out = np.full(n * row_bytes + SLACK_BYTES, 0xEE, np.uint8)
        self.borders = tuple(np.zeros(n, np.int64) for _ in range(3))
        listed = tuple(np.zeros(128, np.int64) for _ in range(2))
        iids = tuple(np.zeros(128, np.int32) for _ in range(2))
        room = [np.zeros(n, np.int64) for _ in range(5)]
        stat = np.zeros(kernel.STATS, np.int64)
        shown = [
            row.get("shown", 1) | (row.get("peer", -1) >= 0) << 1 | (row.get("note", 0) > 0) << 2
            | (2 ** len(row.get("wide", ())) - 1) << 3 | row.get("failed", 0) << 3 + len(wide)
            | (kernel.SINK if row.get("sink") else 0)
            for row in rows
        ]  # fmt: skip
        given = column("size_bytes", "u8"), column("peer", "i8", -1), column("note", "i8") + 64
        values = [value.astype(kind) for value in given]
        values += [
            np.array([row["wide"][k] if "wide" in row else 0 for row in rows], np.uint64)
            for k in range(len(wide))
        ]
        kernel.encode_track(
            order,
            begin,
            length,
            (
                column("name", "u4"),
                np.array(shown, np.uint16),
                column("flow", "u8"),
            ),
            argument_table(arguments, values),
            base,
            border,
            LANES,
            nests,
            packets.word(packets.number(10, SEQUENCE)),
            self.out,
            self.borders,
            iids,
            listed,
            (stat, room[0], (room[1], room[2]), (room[3], room[4])),
        )
        assert not any(array.any() for array in iids), "room is left as it was found"
        self.stat = stat.tolist()
        names, texts = (keys[: stat[kernel.NAMES + k]].tolist() for k, keys in enumerate(listed))
        self.head, _ = packets.sequence_head(
            SEQUENCE,
            [f"name {key}" for key in names],
            [argument.name for argument in arguments],
            [f"peer {key}" if key < 64 else f"note {key - 64}" for key in texts],
        )
        self.first = int(begin.min())

    @property
    def body(self) -> bytes:
        """The packets, with the first time filled in."""
        body = bytearray(self.out[: self.stat[kernel.BYTES]].tobytes())
        at = self.stat[kernel.FIRST_AT]
        body[at : at + packets.PADDED_BYTES] = packets.padded(self.first)
        return bytes(body)

    def slices(self):
        return replay(self.head + self.body)


def test_a_slice_with_everything_decodes_to_what_was_given():
    row = {
        "begin": 5000, "length": 70, "name": 3, "size_bytes": 2**40, "peer": 7, "note": 2,
        "flow": 2**64 - 3, "failed": 1,
    }  # fmt: skip
    (found,) = Encoded([row]).slices()
    assert (found.begin, found.end, found.name, found.flow, found.sink) == (
        5000, 5070, "name 3", 2**64 - 3, False,
    )  # fmt: skip
    assert found.args == {"size_bytes": 2**40, "peer": "peer 7", "why": "note 2", "failed": True}


def test_what_a_row_does_not_have_is_not_written():
    encoded = Encoded([{"begin": 1, "shown": 0}])
    (found,) = encoded.slices()
    assert (found.args, found.flow, found.instant) == ({}, 0, True)


@pytest.mark.parametrize("value", EDGES)
def test_numbers_of_every_length(value):
    later = min(value, 2**62)
    rows = [{"begin": 0}, {"begin": later, "size_bytes": value, "flow": value}]
    found = Encoded(rows).slices()[-1]
    assert (found.begin, found.args["size_bytes"], found.flow) == (later, value, value)


def test_the_largest_row_stays_within_its_bound_and_one_byte_lengths():
    row = {
        "length": 2**61, "size_bytes": 2**64 - 1, "peer": 63, "note": 63, "name": 63,
        "flow": 2**64 - 1, "failed": 1,
    }  # fmt: skip
    rows = [{**row, "begin": 0}, {**row, "begin": 2**60}]
    encoded = Encoded(rows, border=2**62)
    assert encoded.stat[kernel.BYTES] <= len(rows) * ROW_BYTES
    assert len(encoded.slices()) == 2


WIDE = [
    Argument(f"argument {k}", kind)
    for k, kind in enumerate((Kind.U64, Kind.HEX, Kind.I64, Kind.U64) * 2)
]


@pytest.mark.parametrize("border", [-1, 2**62])
@pytest.mark.parametrize("wide", range(len(WIDE) + 1))
def test_rows_whose_packets_need_two_length_bytes(wide, border):
    """Packets grow over the limit of one byte, first alone, then with their event."""
    values = [2**64 - 1 - k for k in range(wide)]
    row = {
        "length": 7, "size_bytes": 2**64 - 1, "peer": 63, "note": 63, "name": 63, "failed": 1,
        "flow": 2**64 - 1, "wide": values,
    }  # fmt: skip
    rows = [{**row, "begin": 3}, {"begin": 2**60, "length": 9}, {**row, "begin": 2**61}]
    encoded = Encoded(rows, border=border, wide=WIDE[:wide])
    body = bytearray(encoded.body)
    for places in encoded.borders[:2]:
        for at in places[: encoded.stat[kernel.BORDERS]].tolist():
            assert body[at : at + packets.PADDED_BYTES] == packets.padded(0)
            body[at : at + packets.PADDED_BYTES] = packets.padded(11)
    first, middle, last = replay(encoded.head + bytes(body))
    assert (first.begin, first.end, middle.begin, middle.end) == (3, 10, 2**60, 2**60 + 9)
    assert (last.begin, last.end) == (2**61, 2**61 + 7)
    assert first.args == last.args
    signed = [value - 2**64 if k % 4 == 2 else value for k, value in enumerate(values)]
    assert [first.args[f"argument {k}"] for k in range(wide)] == signed
    assert first.args["failed"] is True and first.flow == 2**64 - 1
    assert first.track == (0 if border < 0 else 11)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_values_are_read_in_their_own_width(kind):
    most = int(np.iinfo(kind).max)
    rows = [{"begin": k, "size_bytes": most - k, "peer": k, "note": 3 - k} for k in range(3)]
    found = Encoded(rows, kind=kind).slices()
    assert [one.args for one in found] == [
        {"size_bytes": most, "peer": "peer 0", "why": "note 3"},
        {"size_bytes": most - 1, "peer": "peer 1", "why": "note 2"},
        {"size_bytes": most - 2, "peer": "peer 2", "why": "note 1"},
    ]


def test_values_of_another_type_are_refused():
    with pytest.raises(TypeError, match="size_bytes"):
        argument_table(ARGUMENTS, [np.zeros(3, np.int64)])
    with pytest.raises(TypeError, match="peer"):
        argument_table(ARGUMENTS, [np.zeros(3, np.uint64), np.zeros(6, np.uint64)[::2]])


def test_bytes_are_those_that_protobuf_itself_writes():
    encoded = Encoded(
        [{"begin": 0}, {"begin": 200, "length": 9, "size_bytes": 300, "peer": 4, "flow": 9}]
    )
    packet = TracePacket(timestamp=200, trusted_packet_sequence_id=SEQUENCE)
    event = packet.track_event
    event.type, event.name_iid = TrackEvent.TYPE_SLICE_BEGIN, 1
    event.debug_annotations.add(name_iid=1, uint_value=300)
    event.debug_annotations.add(name_iid=2, string_value_iid=1)
    event.flow_ids.append(9)
    trace = Trace()
    trace.ParseFromString(encoded.body)
    assert trace.packet[1] == packet
    assert trace.packet[1].ByteSize() == packet.ByteSize()
    assert len(trace.packet) == 3


def test_nested_slices_stay_on_one_track_in_any_storage_order():
    rows = [
        {"begin": 20, "length": 10, "name": 2},
        {"begin": 0, "length": 100, "name": 1},
        {"begin": 30, "length": 70, "name": 3},
        {"begin": 100, "length": 5, "name": 4},
    ]
    encoded = Encoded(rows)
    assert encoded.stat[kernel.DISPLACED] == 0
    assert {(s.name, s.begin, s.end) for s in encoded.slices()} == {
        ("name 1", 0, 100), ("name 2", 20, 30), ("name 3", 30, 100), ("name 4", 100, 105),
    }  # fmt: skip


def test_depth_decides_between_slices_of_the_same_times():
    rows = [
        {"begin": 5, "length": 5, "depth": 1, "name": 2},
        {"begin": 5, "length": 5, "name": 1},
    ]
    assert [s.name for s in Encoded(rows).slices()] == ["name 1", "name 2"]


def test_overlapping_slices_go_to_as_many_lanes_as_needed_and_no_more():
    rows = [{"begin": k, "length": 10} for k in range(40)]
    encoded = Encoded(rows)
    assert encoded.stat[kernel.LANES] == 9
    assert {s.track for s in encoded.slices()} == {0, *range(LANES, LANES + 9)}


def test_slices_that_must_not_nest_never_do():
    rows = [{"begin": k, "length": 20 - k} for k in range(5)] + [{"begin": 20, "length": 5}]
    encoded = Encoded(rows, nests=0)
    assert encoded.stat[kernel.LANES] == 4
    found = encoded.slices()
    assert {(s.begin, s.end) for s in found} == {*((k, 20) for k in range(5)), (20, 25)}
    assert sorted(s.track for s in found) == [0, 0, *range(LANES, LANES + 4)]


def test_border_slices_are_those_that_begin_before_the_border():
    rows = [{"begin": 0, "length": 50}, {"begin": 5, "length": 2}, {"begin": 7, "length": 2}]
    encoded = Encoded(rows, border=7)
    assert encoded.stat[kernel.BORDERS] == 2
    assert encoded.borders[2][:2].tolist() == [0, 5]
    body = bytearray(encoded.body)
    for places in encoded.borders[:2]:
        for at, uuid in zip(places[:2].tolist(), (11, 22), strict=True):
            assert body[at : at + packets.PADDED_BYTES] == packets.padded(0)
            body[at : at + packets.PADDED_BYTES] = packets.padded(uuid)
    found = replay(encoded.head + bytes(body))
    assert [(s.begin, s.end, s.track) for s in found] == [(0, 50, 11), (5, 7, 22), (7, 9, 0)]


rows_of_a_track = st.lists(
    st.builds(
        lambda begin, length, sink, key, flow: {
            "begin": begin, "length": length, "sink": sink, "name": key, "size_bytes": key * 1000,
            "peer": key - 1, "note": key % 3, "flow": flow,
        },
        st.integers(0, 60),
        st.integers(0, 30),
        st.booleans(),
        st.integers(0, 5),
        st.sampled_from([0, 1, 2**63]),
    ),
    min_size=1,
    max_size=40,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(rows_of_a_track, st.integers(0, 60))
def test_every_row_comes_back_with_its_own_times_and_arguments(rows, base):
    encoded = Encoded(rows, base=base)
    expected = sorted(
        (
            row["begin"], row["begin"] + row["length"], f"name {row['name']}", row["size_bytes"],
            f"peer {row['peer']}" if row["peer"] >= 0 else "",
            f"note {row['note']}" if row["note"] else "",
            row["flow"], row["flow"] != 0 and row["sink"],
        )
        for row in rows
    )  # fmt: skip
    found = encoded.slices()
    assert expected == sorted(
        (s.begin, s.end, s.name, s.args["size_bytes"], s.args.get("peer", ""),
         s.args.get("why", ""), s.flow, s.sink)
        for s in found
    )  # fmt: skip
    slices = [row for row in rows if row["length"] > 0]
    assert encoded.stat[kernel.SLICES] == len(slices)
    assert encoded.stat[kernel.INSTANTS] == len(rows) - len(slices)
    assert encoded.stat[kernel.EARLY] == sum(row["begin"] < base for row in rows)
    assert encoded.stat[kernel.FLOW_ENDS] == sum(row[-1] for row in expected)
    assert encoded.stat[kernel.FLOW_STARTS] == sum(
        row["flow"] != 0 and not row["sink"] for row in rows
    )
    assert encoded.stat[kernel.DISPLACED] == sum(s.track >= LANES for s in found)


def test_counters_decode_to_what_was_given():
    values = [0.0, -1.5, 1e300, struct.unpack("<d", bytes(range(8)))[0]]
    uuid, t = np.array([1, 200, 2**20, 2**40]), np.array([0, 127, 2**40, 2**62])
    out = np.empty(4 * kernel.COUNTER_BYTES + SLACK_BYTES, np.uint8)
    used = kernel.encode_counters(uuid, t, np.array(values), out)
    trace = Trace()
    trace.ParseFromString(out[:used].tobytes())
    found = [
        (p.timestamp, p.track_event.track_uuid, p.track_event.double_counter_value)
        for p in trace.packet
    ]
    assert found == list(zip(t.tolist(), uuid.tolist(), values, strict=True))
    assert {(p.trusted_packet_sequence_id, p.track_event.type) for p in trace.packet} == {
        (1, TrackEvent.TYPE_COUNTER)
    }


def test_values_of_a_counter_of_its_own_sequence():
    t, value = np.array([5, 5, 200, 2**61]), np.array([0, 1, 2**40, 3])
    out = np.empty(4 * kernel.COUNTER_BYTES + SLACK_BYTES, np.uint8)
    word = packets.word(packets.number(10, SEQUENCE))
    used = kernel.encode_values(t, value, 4, word, out)
    trace = Trace()
    trace.ParseFromString(out[:used].tobytes())
    times = np.cumsum([p.timestamp for p in trace.packet]).tolist()
    assert times == [1, 1, 196, 2**61 - 4]
    assert [p.track_event.counter_value for p in trace.packet] == value.tolist()
    kinds = {(p.trusted_packet_sequence_id, p.track_event.type) for p in trace.packet}
    assert kinds == {(SEQUENCE, TrackEvent.TYPE_COUNTER)}


@given(st.integers(0, 2**64 - 1))
def test_a_padded_number_has_ten_bytes_and_its_value(value):
    packet = TracePacket()
    packet.ParseFromString(packets.varint(8 << 3) + packets.padded(value))
    assert packet.timestamp == value
    assert len(packets.padded(value)) == packets.PADDED_BYTES
