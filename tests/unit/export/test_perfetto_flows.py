"""Arrows of a trace, counted stretch by stretch, against a plain look at all ends."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.export import perfetto_flows as flows
from sigmatrace.export.kernels.flows import STRETCH_BITS
from sigmatrace.export.kernels.packets import SINK

ZERO = 1_700_000_000_000_000_000
FLOWS = [0, 1, 2, 3, (1 << STRETCH_BITS) - 1, 1 << STRETCH_BITS, 5 << 32, 5 << 32 | 1, 2**63 | 9]
TIMES = [0, 1, 2, 3, -5, 1 << 40]
EVENTS = st.lists(
    st.tuples(st.sampled_from(FLOWS), st.sampled_from(TIMES), st.booleans()), max_size=12
)
PIECES = st.lists(st.lists(st.lists(EVENTS, max_size=3), max_size=2), max_size=3)
"""Pieces, sources, tracks, events: flow, time, is a receive."""


def written(tracks):
    """Return a source whose tracks have their events in time order, rows stored in reverse."""
    tracks = [sorted(track, key=lambda event: event[1]) for track in tracks]
    events = [event for track in tracks for event in track][::-1]
    return flows.Written(
        np.arange(len(events), dtype=np.uint32)[::-1].copy(),
        np.cumsum([0, *map(len, tracks)]),
        np.array([flow for flow, _, _ in events], np.uint64),
        np.array([SINK * sink for _, _, sink in events], np.uint16),
        np.array([ZERO + t for _, t, _ in events], np.int64),
    )


def plain(pieces):
    """Look at all events in the order in which a viewer takes them."""
    listed = []
    for piece in pieces:
        for source in piece:
            for track in source:
                listed += sorted(track, key=lambda event: event[1])
    taken = [listed[k] for k in sorted(range(len(listed)), key=lambda k: (listed[k][1], k))]
    shown = backwards = 0
    for flow in {flow for flow, _, _ in listed} - {0}:
        ends = [sink for other, _, sink in taken if other == flow]
        if True in ends and False in ends:
            last = len(ends) - 1 - ends[::-1].index(True)
            if ends.index(False) < last:
                shown += 1
            else:
                backwards += 1
    return {"flows": shown, "flows_backwards": backwards}


def counted(pieces, folder):
    heads, places, data = [], [], b""
    for piece in pieces:
        mine, parts = flows.collect([written(source) for source in piece])
        heads.append(mine)
        places.append(len(data))
        data += b"".join(parts)
    (folder / flows.ENDS).write_bytes(data)
    return flows.count(heads, places, folder / flows.ENDS)


@settings(deadline=None, max_examples=300)
@given(pieces=PIECES, batch=st.sampled_from([1, 3, 1000]), keys=st.sampled_from([1, 2, 4096]))
def test_arrows_are_those_that_a_viewer_draws(pieces, batch, keys):
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(flows, "_BATCH_ENDS", batch)
        patch.setattr(flows, "_KEYS", keys)
        assert counted(pieces, Path(name)) == plain(pieces)


def test_many_messages_of_several_stretches(tmp_path):
    count = 3 << STRETCH_BITS
    chance = np.random.default_rng(5)
    sent = np.sort(chance.integers(0, 10**9, count))
    received = sent + chance.integers(-50, 200, count)
    sends = [(7 << 32 | k, int(t), False) for k, t in enumerate(sent)]
    receives = [(7 << 32 | k, int(t), True) for k, t in enumerate(received)]
    chance.shuffle(receives)
    pieces = [[[sends]], [[receives[: count // 2], receives[count // 2 :]]]]
    backwards = int((received < sent).sum())
    assert 0 < backwards < count / 2
    expected = {"flows": count - backwards, "flows_backwards": backwards}
    assert counted(pieces, tmp_path) == expected
