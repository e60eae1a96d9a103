"""Stage one_sided against a plain search."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sigmatrace.schema import NO_REGION, RegionFate
from sigmatrace.stages.one_sided import OneSided
from sigmatrace.trace_format import Kind, Layer
from tests.factories import make_partition, make_run, out_channel

REGION = st.fixed_dictionaries(
    {
        "proc": st.integers(0, 2),
        "key": st.sampled_from([5, 6, 2**32 - 1]),
        "address": st.sampled_from([0, 4096, 2**63, 2**64 - 8192]),
        "length_bytes": st.sampled_from([0, 64, 8192]),
    }
)
REQUEST = st.fixed_dictionaries(
    {
        "proc": st.integers(0, 2),
        "object": st.integers(8, 11),
        "opcode": st.sampled_from([*range(17), 255]),
        "rkey": st.sampled_from([5, 6, 7, 2**32 - 1]),
        "raddr": st.sampled_from([0, 32, 4096, 4100, 2**63, 2**64 - 8192, 2**64 - 64, 2**64 - 8]),
        "size_bytes": st.sampled_from([0, 8, 64, 4096]),
    }
)
NAME_MEMORY = {0, 1, 4, 5, 6, 14, 15}
"""Of ``enum ibv_wr_opcode``: writes, read, both atomics, flush, atomic write."""
PEERS = {(0, 8): 1, (0, 9): 2, (1, 8): 0, (2, 8): -1, (2, 9): 2}


@settings(deadline=None)  # the first call loads a kernel
@given(st.lists(REGION, max_size=12), st.lists(REQUEST, max_size=20))
def test_owner_and_region_are_those_of_a_search(regions, requests):
    run = make_run(
        processes=[{}, {}, {}],
        channels=[
            {**out_channel(proc, 0, layer=Layer.VERBS, kind=kind), "object": thing}
            for proc, thing in PEERS
            for kind in (Kind.MSG, Kind.RMA)
        ],
        regions=[{"layer": Layer.VERBS, **row} for row in regions]
        + [{**row, "layer": Layer.OFI} for row in regions],
    )
    peers = [peer for peer in PEERS.values() for _ in range(2)]
    run = run.with_results({"routes": pa.table({"dst_proc": pa.array(peers, pa.int32())})})
    stage = OneSided()
    known = stage.resolve(stage.survey(run), run)
    part = stage.apply(make_partition(0, requests=requests), known)
    for row, got in zip(requests, part.tables["requests"].to_pylist(), strict=True):
        target = PEERS.get((row["proc"], row["object"]), -1)
        end = row["raddr"] + row["size_bytes"]
        inside = [
            number
            for number, r in enumerate(regions)
            if (r["proc"], r["key"]) == (target, row["rkey"])
            and r["address"] <= row["raddr"]
            and end <= r["address"] + r["length_bytes"]
        ]
        if row["opcode"] not in NAME_MEMORY:
            want = (-1, NO_REGION, RegionFate.NOT_ONE_SIDED)
        elif target < 0:
            want = (-1, NO_REGION, RegionFate.TARGET_UNKNOWN)
        elif len(inside) != 1:
            want = (target, NO_REGION, RegionFate.AMBIGUOUS if inside else RegionFate.NO_REGION)
        else:
            want = (target, inside[0], RegionFate.REGION)
        assert (got["target_proc"], got["region"], got["owner"]) == want
    told = stage.account(stage.conclude(known, stage.combine(stage.summarize(part), np.int64(0))))
    rows = part.tables["requests"].to_pylist()
    owners = Counter(RegionFate(row["owner"]).name.lower() for row in rows)
    assert {name: n for name, n in told["owners"].items() if n} == owners
    [equation] = told["balance"]
    assert sum(equation["right"]) == len(requests)


def test_memory_of_layer_verbs_is_that_of_a_gpus_requests():
    run = make_run(
        processes=[{}, {}, {}],
        channels=[
            {**out_channel(0, peer, layer=Layer.MLX5DV, kind=Kind.RMA), "object": thing}
            for thing, peer in ((8, 8), (9, 1), (9, 2))
        ],
        regions=[
            {"proc": 1, "layer": layer, "key": key, "address": 4096, "length_bytes": 64}
            for layer, key in ((Layer.VERBS, 5), (Layer.MLX5DV, 6), (Layer.UCP, 7))
        ],
    )
    run = run.with_results({"routes": pa.table({"dst_proc": pa.array([1, 1, 2], pa.int32())})})
    stage = OneSided()
    request = {"proc": 0, "object": 8, "raddr": 4096, "size_bytes": 64}
    requests = [{**request, "rkey": key} for key in (5, 6, 7)] + [{**request, "object": 9}]
    part = stage.apply(make_partition(0, requests=requests), stage.survey(run))
    assert part.column("requests", "region").tolist() == [0, 1, NO_REGION, NO_REGION]
    assert part.column("requests", "owner").tolist() == [
        *(RegionFate.REGION, RegionFate.REGION, RegionFate.NO_REGION),
        RegionFate.TARGET_UNKNOWN,  # of a DCI that reaches two processes, and does not say which
    ]


def test_a_request_of_a_dci_says_whom_it_reaches():
    # As numbers of 53 bits these are equal: a queue pair of 24 bits, and the address vector.
    peers = [0xFFFFFF << 32 | vector for vector in (100, 102, 104)]
    channels = [
        {**out_channel(0, peer, layer=layer, kind=kind), "object": thing}
        for layer, thing in ((Layer.MLX5DV, 9), (Layer.VERBS, 10))
        for peer in peers
        for kind in (Kind.MSG, Kind.RMA)
    ]
    run = make_run(
        processes=[{}, {}, {}],
        channels=channels,
        regions=[
            {"proc": proc, "layer": Layer.VERBS, "key": 5, "address": 4096, "length_bytes": 64}
            for proc in (1, 2)
        ],
    )
    reached = pa.array([1, 1, 2, 2, -1, -1] * 2, pa.int32())
    run = run.with_results({"routes": pa.table({"dst_proc": reached})})
    stage = OneSided()
    request = {"proc": 0, "raddr": 4096, "size_bytes": 64, "rkey": 5}
    named = [*peers, 0, peers[0] + 1, peers[2] + 1]
    requests = [{**request, "object": thing, "wr_id": x} for thing in (9, 10, 11) for x in named]
    part = stage.apply(make_partition(0, requests=requests), stage.survey(run))
    gpu = [1, 2, -1, -1, -1, -1]
    assert part.column("requests", "target_proc").tolist() == [*gpu, *[-1] * 12]
    assert part.column("requests", "region").tolist()[:3] == [0, 1, NO_REGION]
