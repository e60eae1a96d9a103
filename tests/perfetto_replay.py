"""A plain-Python reader of Perfetto traces, with the protobuf classes of the perfetto package.

It knows what SigmaTrace writes: incremental clocks, defaults, interned strings. Slices are built
as trace_processor builds them: events sorted by time, stable in file order, one stack a track.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    ClockSnapshot,
    Trace,
    TracePacket,
    TrackEvent,
)

STATE_CLEARED = 1


@dataclass
class Slice:
    """A slice or an instant (``end`` = ``begin``)."""

    track: int
    begin: int
    end: int | None
    name: str
    args: dict[str, Any]
    flow: int
    sink: bool
    instant: bool


@dataclass
class _Sequence:
    now: int = 0
    track: int = 0
    names: dict[int, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)

    def learn(self, packet: TracePacket) -> None:
        if packet.sequence_flags & STATE_CLEARED:
            self.__init__()
        for clock in packet.clock_snapshot.clocks:
            assert isinstance(clock, ClockSnapshot.Clock)
            if clock.is_incremental:
                self.now = clock.timestamp
        if packet.HasField("trace_packet_defaults"):
            assert packet.trace_packet_defaults.timestamp_clock_id == 64
            self.track = packet.trace_packet_defaults.track_event_defaults.track_uuid
        interned = packet.interned_data
        self.names |= {e.iid: e.name for e in interned.event_names}
        self.keys |= {e.iid: e.name for e in interned.debug_annotation_names}
        self.values |= {e.iid: e.str.decode() for e in interned.debug_annotation_string_values}

    def argument(self, note: Any) -> tuple[str, Any]:
        kind = note.WhichOneof("value")
        value = getattr(note, kind)
        return self.keys[note.name_iid], (
            self.values[value] if kind == "string_value_iid" else value
        )


def replay(data: bytes) -> list[Slice]:
    """Return the slices and instants of a trace."""
    trace = Trace()
    trace.ParseFromString(data)
    sequences: dict[int, _Sequence] = {}
    events: list[tuple[int, TrackEvent, _Sequence, int]] = []
    for packet in trace.packet:
        number = packet.trusted_packet_sequence_id
        assert number > 0
        state = sequences.setdefault(number, _Sequence())
        state.learn(packet)
        event = packet.track_event
        if not packet.HasField("track_event") or event.type == TrackEvent.TYPE_COUNTER:
            continue
        state.now += packet.timestamp
        assert state.now < 1 << 63, "times go back"
        events.append((state.now, event, state, event.track_uuid or state.track))
    events.sort(key=lambda e: e[0])
    return _stacks(events)


def _stacks(events: list[tuple[int, TrackEvent, _Sequence, int]]) -> list[Slice]:
    out: list[Slice] = []
    stacks: dict[int, list[Slice]] = {}
    for t, event, state, track in events:
        stack = stacks.setdefault(track, [])
        if event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop().end = t
            continue
        instant = event.type == TrackEvent.TYPE_INSTANT
        ids = (*event.flow_ids, *event.terminating_flow_ids)
        made = Slice(
            track=track,
            begin=t,
            end=t if instant else None,
            name=state.names[event.name_iid],
            args=dict(state.argument(note) for note in event.debug_annotations),
            flow=ids[0] if ids else 0,
            sink=bool(event.terminating_flow_ids),
            instant=instant,
        )
        out.append(made)
        if not instant:
            stack.append(made)
    assert not any(stacks.values()), "unfinished slices"
    return out
