"""Routes of random programs against what these programs did."""

from __future__ import annotations

import numpy as np
import pytest

from sigmatrace.schema import Fate
from sigmatrace.trace_format import UNKNOWN_PEER, Dir
from tests.factories import in_channel, out_channel, ucp_endpoints
from tests.unit.stages.routes import routes


def random_program(rng, processes: int, streams: int):
    """Channels of random sends and receives, with the true stream of each channel."""
    endpoints = ucp_endpoints(
        processes, [(p, 10 + q, q) for p in range(processes) for q in range(processes)]
    )
    channels, truth = [], []
    seen: dict[tuple, int] = {}
    for _ in range(streams):
        src, dst = rng.integers(0, processes, 2)
        tag, told = int(rng.integers(0, 3)), bool(rng.integers(0, 2))
        for row in (
            out_channel(src, 10 + dst, tag=tag),
            in_channel(dst, 10 + src if told else UNKNOWN_PEER, tag=tag),
        ):
            if seen.setdefault(tuple(row.values()), len(channels)) == len(channels):
                channels.append(row)
                truth.append((src, dst, tag))
    return endpoints, channels, truth


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_never_matched_wrongly(seed):
    """Whatever is in one group is one true stream, and no other channel has part in it."""
    rng = np.random.default_rng(seed)
    endpoints, channels, truth = random_program(rng, 4, int(rng.integers(1, 30)))
    order = rng.permutation(len(channels))
    channels, truth = [channels[k] for k in order], [truth[k] for k in order]
    rows = routes(4, endpoints=endpoints, channels=channels)
    for row, channel, stream in zip(rows, channels, truth, strict=True):
        if row["fate"] != Fate.MATCHABLE:
            continue
        members = [k for k, other in enumerate(rows) if other["group"] == row["group"]]
        assert {truth[k] for k in members} == {stream}
        sharing = [
            k
            for k, other in enumerate(channels)
            if other["dir"] == channel["dir"] == Dir.IN and takes(other, truth[k], stream)
        ]
        assert len(sharing) <= 1
        outs = [k for k in members if channels[k]["dir"] == Dir.OUT]
        assert len(outs) <= 1
        if channel["peer"] == UNKNOWN_PEER:
            senders = {t for t, c in zip(truth, channels, strict=True) if c["dir"] == Dir.OUT}
            assert {t for t in senders if t[1:] == stream[1:]} == {stream}


def takes(channel, own, stream) -> bool:
    """Say whether an in-channel can hold messages of a stream."""
    if own[1:] != stream[1:]:
        return False
    return channel["peer"] == UNKNOWN_PEER or own[0] == stream[0]
