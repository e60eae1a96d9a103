from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.schema import NO_GROUP, STAGE_TABLES, Fate
from sigmatrace.stages.channels import Channels
from sigmatrace.trace_format import Layer
from tests.factories import make_partition, make_run, make_table

LAYERS = [Layer.UCP, Layer.UCT, 200, Layer.MLX5DV]


@pytest.fixture(scope="module")
def run():
    routes = [{"group": k, "fate": k, "lossy": k % 2} for k in range(4)]
    made = make_run(channels=[{"layer": layer} for layer in LAYERS])
    return made.with_results({"routes": make_table(STAGE_TABLES["routes"], routes)})


@given(st.lists(st.one_of(st.integers(0, 6), st.just(2**32 - 1)), max_size=20))
def test_each_row_finds_what_is_known_of_its_channel(run, rows):
    ops = {"channel": np.array(rows, np.uint32)}
    channels = Channels.of(replace(make_partition(0, ops=ops), run=run))
    own = channels.channel.astype(np.int64) - channels.low
    assert ((own >= 0) & (own < channels.size)).all() and channels.size <= 5
    assert channels.rows_of_layer(Layer.MLX5DV).tolist() == [
        k for k, channel in enumerate(rows) if channel == 3
    ]
    if rows:
        known = [channel if channel < 4 else None for channel in rows]
        assert channels.group()[own].tolist() == [NO_GROUP if k is None else k for k in known]
        fate = [Fate.PEER_UNKNOWN if k is None else k for k in known]
        assert channels.fate()[own].tolist() == fate
        assert channels.lossy()[own].tolist() == [0 if k is None else k % 2 for k in known]
        layer = [0 if k in (None, 2) else int(LAYERS[k]) for k in known]
        assert channels.layer()[own].tolist() == layer
