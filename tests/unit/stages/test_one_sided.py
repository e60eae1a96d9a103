"""Stage one_sided against a plain search."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.schema import NO_REGION, Owner
from sigmatrace.stages.one_sided import ONE_SIDED_OPCODES, OneSided
from sigmatrace.trace_format import Kind, Layer
from tests.factories import make_partition, make_run, out_channel

REGION = st.fixed_dictionaries(
    {
        "proc": st.integers(0, 2),
        "key": st.sampled_from([5, 6, 2**32 - 1]),
        "address": st.sampled_from([0, 4096, 2**63]),
        "length_bytes": st.sampled_from([0, 64, 8192]),
    }
)
REQUEST = st.fixed_dictionaries(
    {
        "proc": st.integers(0, 2),
        "object": st.integers(8, 11),
        "opcode": st.integers(0, 16),
        "rkey": st.sampled_from([5, 6, 7, 2**32 - 1]),
        "raddr": st.sampled_from([0, 32, 4096, 4100, 2**63]),
        "size_bytes": st.sampled_from([0, 8, 64, 4096]),
    }
)
PEERS = {(0, 8): 1, (0, 9): 2, (1, 8): 0, (2, 8): -1, (2, 9): 2}


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
        if row["opcode"] not in ONE_SIDED_OPCODES:
            want = (-1, NO_REGION, Owner.NOT_ONE_SIDED)
        elif target < 0:
            want = (-1, NO_REGION, Owner.TARGET_UNKNOWN)
        elif len(inside) != 1:
            want = (target, NO_REGION, Owner.AMBIGUOUS if inside else Owner.NO_REGION)
        else:
            want = (target, inside[0], Owner.REGION)
        assert (got["target_proc"], got["region"], got["owner"]) == want
