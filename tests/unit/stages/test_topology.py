from __future__ import annotations

import pytest

from sigmatrace.schema import NO_GROUP, Fate
from sigmatrace.stages.topology import Topology
from sigmatrace.trace_format import ChannelFlag, Kind, Layer, Op
from tests.factories import (
    in_channel,
    make_partition,
    make_run,
    out_channel,
    queue_pair,
    ucp_endpoints,
)
from tests.unit.stages.routes import fates, routes

RDM = "ofi:tcp/rdm:10.0.0.{}:5000"


def ucp(processes, links, channels):
    return routes(processes, endpoints=ucp_endpoints(processes, links), channels=channels)


def test_a_ucp_tag_stream_joins_both_ends():
    rows = ucp(
        2,
        [(0, 5, 1), (1, 7, 0)],
        [
            out_channel(0, 5, tag=9),
            in_channel(1, tag=9),
            out_channel(1, 7, tag=9),
            in_channel(0, tag=9),
            out_channel(0, 5, tag=10),
        ],
    )
    assert fates(rows) == [Fate.MATCHABLE] * 5
    groups = [row["group"] for row in rows]
    assert groups[0] == groups[1] and groups[2] == groups[3]
    assert sorted(set(groups)) == [0, 1, 2]
    ends = [(row["src_proc"], row["dst_proc"]) for row in rows]
    assert ends == [(0, 1), (0, 1), (1, 0), (1, 0), (0, 1)]
    assert rows[0]["src_name"] == "ucp:" + "0" * 16
    assert rows[0]["dst_name"] == rows[1]["dst_name"] == "ucp:" + "0" * 15 + "1"


def test_two_senders_of_one_key_are_ambiguous_when_the_receiver_is_not_told():
    rows = ucp(
        3,
        [(0, 5, 2), (1, 5, 2)],
        [out_channel(0, 5, tag=9), out_channel(1, 5, tag=9), in_channel(2, tag=9)],
    )
    assert fates(rows) == [Fate.SOURCE_AMBIGUOUS] * 3
    assert [row["src_proc"] for row in rows] == [0, 1, -1]


def test_two_senders_of_one_key_are_told_apart_by_a_known_source():
    rows = ucp(
        3,
        [(0, 5, 2), (1, 5, 2), (2, 5, 0), (2, 6, 1)],
        [
            out_channel(0, 5, tag=9),
            out_channel(1, 5, tag=9),
            in_channel(2, 6, tag=9),
            in_channel(2, 5, tag=9),
        ],
    )
    assert fates(rows) == [Fate.MATCHABLE] * 4
    assert rows[0]["group"] == rows[3]["group"] != rows[1]["group"] == rows[2]["group"]
    assert [row["src_proc"] for row in rows] == [0, 1, 1, 0]


def test_data_tells_senders_apart_and_data_zero_is_not_no_data():
    data = {"flags": ChannelFlag.HAS_DATA, "tag": 4}
    rows = ucp(
        3,
        [(0, 5, 2), (1, 5, 2)],
        [
            out_channel(0, 5, data=0, **data),
            out_channel(1, 5, data=1, **data),
            out_channel(1, 5, tag=4),
            in_channel(2, data=1, **data),
            in_channel(2, data=0, **data),
            in_channel(2, tag=4),
        ],
    )
    assert fates(rows) == [Fate.MATCHABLE] * 6
    groups = [row["group"] for row in rows]
    assert groups[0] == groups[4] and groups[1] == groups[3] and groups[2] == groups[5]
    assert len(set(groups)) == 3


def test_several_endpoints_to_one_receiver_are_ambiguous_but_the_sender_is_known():
    rows = ucp(
        2,
        [(0, 5, 1), (0, 6, 1)],
        [out_channel(0, 5, tag=1), out_channel(0, 6, tag=1), in_channel(1, tag=1)],
    )
    assert fates(rows) == [Fate.SOURCE_AMBIGUOUS] * 3
    assert rows[2]["src_proc"] == 0


def test_two_in_channels_that_could_take_from_one_sender_are_ambiguous():
    rows = ucp(
        2,
        [(0, 5, 1), (1, 5, 0)],
        [out_channel(0, 5, tag=1), in_channel(1, tag=1), in_channel(1, 5, tag=1)],
    )
    assert fates(rows) == [Fate.SOURCE_AMBIGUOUS] * 3


@pytest.mark.parametrize(
    ("change", "fate"),
    [
        ({"kind": Kind.RMA}, Fate.ONE_SIDED),
        ({"kind": Kind.STREAM}, Fate.BYTE_STREAM),
        ({"flags": ChannelFlag.OVERFLOW}, Fate.TOO_MANY_CHANNELS),
        ({"kind": 77}, Fate.NOT_A_MESSAGE),
    ],
)
def test_fates_of_a_channel_by_itself(change, fate):
    rows = ucp(2, [(0, 5, 1)], [out_channel(0, 5, **change)])
    assert fates(rows) == [fate]
    assert rows[0]["dst_proc"] == 1


def test_a_peer_outside_the_run_is_named():
    endpoints = [
        *ucp_endpoints(1, []),
        {"proc": 0, "object": 5, "layer": Layer.UCP, "owner": 1, "peer": "ucp:beef"},
    ]
    rows = routes(1, endpoints=endpoints, channels=[out_channel(0, 5), in_channel(0, 5)])
    assert fates(rows) == [Fate.PEER_NOT_TRACED] * 2
    assert rows[0]["dst_name"] == rows[1]["src_name"] == "ucp:beef"
    assert (rows[0]["dst_proc"], rows[1]["src_proc"]) == (-1, -1)


def test_a_peer_that_cannot_be_resolved_is_unknown():
    rows = ucp(2, [], [out_channel(0, 42), in_channel(1, tag=3)])
    assert fates(rows) == [Fate.PEER_UNKNOWN] * 2
    assert rows[0]["dst_name"] == "unknown: peer 42"
    assert rows[1]["src_name"] == "unknown: the API does not tell the source"


def test_a_sender_to_nowhere_could_be_the_other_sender_of_a_key():
    channels = [out_channel(0, 5, tag=1), in_channel(1, tag=1), out_channel(2, 42, tag=1)]
    rows = ucp(3, [(0, 5, 1)], channels)
    assert fates(rows) == [Fate.SOURCE_AMBIGUOUS, Fate.SOURCE_AMBIGUOUS, Fate.PEER_UNKNOWN]
    channels[2]["tag"] = 2
    assert fates(ucp(3, [(0, 5, 1)], channels))[:2] == [Fate.MATCHABLE] * 2


def test_a_receive_without_a_tag_spoils_its_endpoint_and_kind_only():
    rows = ucp(
        2,
        [(0, 5, 1)],
        [
            out_channel(0, 5, tag=1),
            in_channel(1, tag=1),
            in_channel(1, flags=ChannelFlag.TAG_UNKNOWN),
            out_channel(0, 5, tag=1, kind=Kind.AM),
            in_channel(1, tag=1, kind=Kind.AM),
        ],
    )
    assert fates(rows) == [Fate.TAG_UNKNOWN] * 3 + [Fate.MATCHABLE] * 2


def test_an_overflow_channel_of_another_sender_spoils_receivers_that_do_not_know_theirs():
    overflow = out_channel(1, 5, flags=ChannelFlag.OVERFLOW)
    channels = [out_channel(0, 5, tag=1), in_channel(2, tag=1), overflow]
    assert fates(ucp(3, [(0, 5, 2), (1, 5, 2)], channels)) == [Fate.TOO_MANY_CHANNELS] * 3
    known = [out_channel(0, 5, tag=1), in_channel(2, 7, tag=1), overflow]
    rows = ucp(3, [(0, 5, 2), (1, 5, 2), (2, 7, 0)], known)
    assert fates(rows) == [Fate.MATCHABLE, Fate.MATCHABLE, Fate.TOO_MANY_CHANNELS]


def ofi(proc: int, thing: int = 1, local: str = "", peer: str = "", av: int = 0):
    base = {"proc": proc, "object": thing, "layer": Layer.OFI, "type": "ofi_endpoint"}
    return {**base, "local": local, "peer": peer, "av": av}


def test_ofi_rdm_resolves_addresses_per_address_vector():
    rows = routes(
        2,
        endpoints=[ofi(p, 1, RDM.format(p), av=3) for p in (0, 1)],
        addresses=[
            {"proc": 0, "av": 3, "addr": 8, "name": RDM.format(1)},
            {"proc": 0, "av": 4, "addr": 8, "name": RDM.format(0)},
            {"proc": 1, "av": 3, "addr": 8, "name": RDM.format(0)},
        ],
        channels=[
            out_channel(0, 8, layer=Layer.OFI),
            in_channel(1, 8, layer=Layer.OFI),
            out_channel(1, 9, layer=Layer.OFI),
        ],
    )
    assert fates(rows) == [Fate.MATCHABLE, Fate.MATCHABLE, Fate.PEER_UNKNOWN]
    assert rows[0]["group"] == rows[1]["group"]
    assert rows[1]["src_name"] == RDM.format(0)


def test_connected_endpoints_share_the_servers_port_and_are_told_apart_by_pair():
    server, a, b = "ofi:tcp/msg:10.0.0.1:1", "ofi:tcp/msg:10.0.0.2:7", "ofi:tcp/msg:10.0.0.3:7"
    rows = routes(
        3,
        endpoints=[
            ofi(0, 4, server, a),
            ofi(0, 5, server, b),
            ofi(1, 1, a, server),
            ofi(2, 1, b, server),
        ],
        channels=[
            {**out_channel(0, 4, layer=Layer.OFI, kind=Kind.MSG), "object": 4},
            {**out_channel(0, 5, layer=Layer.OFI, kind=Kind.MSG), "object": 5},
            in_channel(1, 1, layer=Layer.OFI, kind=Kind.MSG),
            in_channel(2, 1, layer=Layer.OFI, kind=Kind.MSG),
            out_channel(2, 1, layer=Layer.OFI, kind=Kind.MSG),
            {**in_channel(0, 5, layer=Layer.OFI, kind=Kind.MSG), "object": 5},
        ],
    )
    assert fates(rows) == [Fate.MATCHABLE] * 6
    groups = [row["group"] for row in rows]
    assert groups == [groups[0], groups[1], groups[0], groups[1], groups[4], groups[4]]
    assert [(r["src_proc"], r["dst_proc"]) for r in rows] == [
        (0, 1), (0, 2), (0, 1), (0, 2), (2, 0), (2, 0),
    ]  # fmt: skip


def reopened(lives):
    """Two processes whose connection of the same names was made again, as often as said."""
    a, b = "ofi:tcp/msg:10.0.0.1:1", "ofi:tcp/msg:10.0.0.2:7"
    ends = [
        {**ofi(proc, 10 + life, local, peer), "life": life}
        for proc, (local, peer) in enumerate([(a, b), (b, a)])
        for life in range(lives[proc])
    ]
    channels = [
        {**make(end["proc"], end["object"], layer=Layer.OFI, kind=Kind.MSG), **own}
        for end in ends
        for own in ({"object": end["object"]},)
        for make in ((out_channel, in_channel)[end["proc"]],)
    ]
    return routes(2, endpoints=ends, channels=channels)


def test_the_nth_connection_of_two_names_is_the_nth_at_the_other_end():
    rows = reopened((3, 3))
    assert fates(rows) == [Fate.MATCHABLE] * 6
    groups = [row["group"] for row in rows]
    assert groups[:3] == groups[3:] and len(set(groups)) == 3


def test_connections_of_two_names_that_the_ends_count_differently_are_ambiguous():
    assert set(fates(reopened((3, 2)))) == {Fate.SOURCE_AMBIGUOUS}
    assert set(fates(reopened((2, 0)))) == {Fate.PEER_NOT_TRACED}


def test_client_server_endpoints_lead_to_their_workers():
    """The receiver of a tagged message knows its worker only, not the endpoint."""
    there, back = "ucp:10.0.0.1:5-10.0.0.2:6", "ucp:10.0.0.2:6-10.0.0.1:5"
    ep = {"layer": Layer.UCP, "type": "ucp_ep", "owner": 1}
    rows = routes(
        2,
        endpoints=[
            *ucp_endpoints(2, []),
            {"proc": 0, "object": 3, "local": there, "peer": back, **ep},
            {"proc": 1, "object": 4, "local": back, "peer": there, **ep},
        ],
        channels=[
            out_channel(0, 3, tag=1),
            in_channel(1, tag=1),
            in_channel(1, 4, tag=2),
            out_channel(0, 3, tag=2),
        ],
    )
    assert fates(rows) == [Fate.MATCHABLE] * 4
    assert rows[0]["group"] == rows[1]["group"] != rows[2]["group"] == rows[3]["group"]


def test_a_name_that_two_processes_used_is_said_to_be_ambiguous():
    name = RDM.format(9)
    rows = routes(
        3,
        endpoints=[ofi(0, 1, RDM.format(0), av=2), ofi(1, 1, name), ofi(2, 1, name)],
        addresses=[{"proc": 0, "av": 2, "addr": 0, "name": name}],
        channels=[
            out_channel(0, 0, layer=Layer.OFI),
            in_channel(1, layer=Layer.OFI),
            in_channel(2, layer=Layer.OFI),
        ],
    )
    assert fates(rows) == [Fate.SOURCE_AMBIGUOUS] * 3
    assert rows[0]["dst_proc"] == -1
    assert rows[0]["dst_name"] == f"unknown: several processes used {name}"


def test_an_endpoint_opened_again_under_its_name_is_the_same_place():
    rows = routes(
        2,
        endpoints=[
            ofi(0, 1, RDM.format(0), av=2),
            ofi(1, 1, RDM.format(1)),
            ofi(1, 8, RDM.format(1)),
        ],
        addresses=[{"proc": 0, "av": 2, "addr": 0, "name": RDM.format(1)}],
        channels=[
            out_channel(0, 0, layer=Layer.OFI, tag=1),
            {**in_channel(1, layer=Layer.OFI, tag=1), "object": 8},
            out_channel(0, 0, layer=Layer.OFI, tag=2),
            {**in_channel(1, layer=Layer.OFI, tag=2), "object": 8},
            in_channel(1, layer=Layer.OFI, tag=2),
        ],
    )
    assert fates(rows) == [Fate.MATCHABLE] * 2 + [Fate.SOURCE_AMBIGUOUS] * 3
    assert rows[0]["dst_proc"] == 1


def test_uct_ifaces_join_through_their_endpoints():
    a, b = "uct:tcp:00:01", "uct:tcp:00:02"
    rows = routes(
        2,
        endpoints=[
            {"proc": 0, "object": 1, "layer": Layer.UCT, "type": "uct_iface", "local": a},
            {"proc": 0, "object": 2, "layer": Layer.UCT, "type": "uct_ep", "owner": 1, "peer": b},
            {"proc": 1, "object": 1, "layer": Layer.UCT, "type": "uct_iface", "local": b},
        ],
        channels=[
            out_channel(0, 2, layer=Layer.UCT, kind=Kind.AM, tag=2),
            in_channel(1, layer=Layer.UCT, kind=Kind.AM, tag=2),
        ],
    )
    assert fates(rows) == [Fate.MATCHABLE] * 2
    assert (rows[1]["src_name"], rows[1]["src_proc"]) == (a, 0)


def test_empty_runs_and_lost_objects_do_not_crash():
    assert routes(0) == []
    rows = routes(1, channels=[out_channel(0, 5), in_channel(0), in_channel(0, 5)])
    assert fates(rows) == [Fate.PEER_UNKNOWN] + [Fate.SOURCE_AMBIGUOUS] * 2
    assert rows[0]["src_name"] == rows[1]["dst_name"] == "unknown: object 1"


def test_what_a_gpu_receives_is_not_visible_unless_an_arrival_is():
    gpu = {"layer": Layer.MLX5DV, "type": "mlx5_qp"}
    endpoints = [
        *(queue_pair(0, k, f"aa:{k}", f"bb:{k}", **gpu) for k in (1, 2, 3, 4)),
        *(queue_pair(1, k, f"bb:{k}", f"aa:{k}", **gpu) for k in (1, 2, 4)),
        queue_pair(1, 3, "bb:3", "aa:3"),  # of libibverbs, whose arrivals are seen
    ]
    own = {"kind": Kind.MSG, "layer": Layer.MLX5DV}
    data = {**own, "kind": Kind.RMA, "flags": ChannelFlag.HAS_DATA}
    channels = [
        {**own, **out_channel(0, 1), "object": 1},
        {**own, **out_channel(0, 2), "object": 2},
        {**own, **in_channel(1, 2), "object": 2},
        {**own, **out_channel(0, 3), "object": 3},
        {**own, **in_channel(1, 3), "object": 3, "layer": Layer.VERBS},
        {**data, **out_channel(0, 4), "object": 4},
        {**own, "kind": Kind.RMA, **out_channel(0, 1), "object": 1},
    ]
    found = fates(routes(2, endpoints=endpoints, channels=channels))
    assert found[0] == found[5] == Fate.RECEIVER_NOT_VISIBLE
    assert found[1] == found[2] == found[3] == Fate.MATCHABLE
    assert found[6] == Fate.ONE_SIDED


def test_apply_gathers_and_leaves_what_is_no_message():
    run = make_run(
        processes=[{}, {}],
        endpoints=ucp_endpoints(2, [(0, 5, 1)]),
        channels=[out_channel(0, 5), in_channel(1), out_channel(0, 5, kind=Kind.RMA)],
    )
    stage = Topology()
    ops = [
        {"proc": 0, "channel": 0, "op": Op.SEND},
        {"proc": 1, "channel": 1, "op": Op.RECV},
        {"proc": 0, "channel": 0, "op": Op.CANCEL},
        {"proc": 0, "channel": 2, "op": Op.GET},
        {"proc": 0, "channel": 2, "op": Op.FLUSH},
        {"proc": 1, "channel": 99, "op": Op.RECV},
    ]
    part = stage.apply(make_partition(ops=ops), stage.survey(run))
    got = part.tables["ops"].select(["src_proc", "dst_proc", "group", "fate", "layer"])
    assert [tuple(row.values()) for row in got.to_pylist()] == [
        (0, 1, 0, Fate.MATCHABLE, Layer.UCP),
        (0, 1, 0, Fate.MATCHABLE, Layer.UCP),
        (0, 1, NO_GROUP, Fate.NOT_A_MESSAGE, Layer.UCP),
        (0, 1, NO_GROUP, Fate.ONE_SIDED, Layer.UCP),
        (0, 1, NO_GROUP, Fate.NOT_A_MESSAGE, Layer.UCP),
        (-1, 1, NO_GROUP, Fate.PEER_UNKNOWN, 0),
    ]
