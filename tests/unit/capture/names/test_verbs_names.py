"""Names of queue pairs, equal at both ends."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from capture_cases import object_tables

from sigmatrace.trace_format import RECORDS, Dir, Kind, Layer, Schema

A, B = bytes(range(16)), bytes(range(16, 32))
PREFIX = bytes.fromhex("fe80000000000000")
NONE = np.zeros(0, RECORDS[Schema.CHANNEL])
QP = {"type": "ib_qp", "qp_type": "rc", "device": 1, "port": 1}


def named(objects: dict[int, dict[str, Any]], *channels: dict[str, int]) -> dict[str, list[Any]]:
    records = np.zeros(len(channels), RECORDS[Schema.CHANNEL])
    for record, fields in zip(records, channels, strict=True):
        for name, value in fields.items():
            record[name] = value
    tables = object_tables(objects, records, "h")
    return {name: tables[name].to_pylist() for name in ("endpoints", "addresses")}


def test_connected_queue_pairs_mirror() -> None:
    here = {9: {**QP, "qpn": 0x11, "sgid": A, "dgid": B, "dest_qpn": 0x12}}
    there = {4: {**QP, "qpn": 0x12, "sgid": B, "dgid": A, "dest_qpn": 0x11}}
    [one], [other] = named(here)["endpoints"], named(there)["endpoints"]
    assert one["local"] == f"ib:{A.hex()}:11" == other["peer"]
    assert one["peer"] == f"ib:{B.hex()}:12" == other["local"]
    assert (one["layer"], one["av"]) == (Layer.VERBS, 0)


def test_paths_without_gids_are_named_by_lid_and_subnet() -> None:
    port = {
        1: {"type": "ib_device", "name": "mlx5_0"},
        2: {"type": "ib_port", "device": 1, "port": 1},
        3: {"type": "ib_gid", "port": 2, "index": 0, "gid": PREFIX + A[:8]},
    }
    here = {**port, 9: {**QP, "qpn": 0x11, "slid": 3, "dlid": 5, "dest_qpn": 0x12}}
    there = {**port, 9: {**QP, "qpn": 0x12, "slid": 5, "dlid": 3, "dest_qpn": 0x11}}
    [one], [other] = named(here)["endpoints"], named(there)["endpoints"]
    [row] = object_tables({**port, 2: {**port[2], "lid": 3}}, NONE, "h")["ports"].to_pylist()
    assert row["place"] == one["place"] == f"lid3/{PREFIX.hex()}"
    assert one["local"] == f"ib:lid3/{PREFIX.hex()}:11" == other["peer"]
    assert one["peer"] == other["local"]


def test_a_queue_pair_that_is_not_connected_has_no_peer() -> None:
    [row] = named({9: {**QP, "qpn": 0x11, "sgid": A}})["endpoints"]
    assert (row["local"], row["peer"]) == (f"ib:{A.hex()}:11", "")


def test_datagrams_go_to_an_address_handle_and_a_number() -> None:
    objects = {
        7: {"type": "ib_ah", "device": 1, "port": 1, "dgid": B},
        9: {**QP, "qp_type": "ud", "qpn": 0x11, "sgid": A},
    }
    peer = 0x22 << 32 | 7
    out = {"object": 9, "peer": peer, "kind": Kind.MSG, "dir": Dir.OUT, "layer": Layer.VERBS}
    found = named(objects, out, {**out, "peer": 0x22 << 32 | 8}, {**out, "layer": Layer.UCP})
    assert found["addresses"] == [
        {"av": 9, "addr": peer, "name": f"ib:{B.hex()}:22", "place": B.hex(), "qpn": 0x22}
    ]
    assert [row["av"] for row in found["endpoints"]] == [9]


def test_places_and_numbers_stand_beside_the_names() -> None:
    here = {9: {**QP, "qpn": 0x11, "sgid": A, "dlid": 5, "dest_qpn": 0}, 8: {**QP, "sgid": A}}
    bare, full = named(here)["endpoints"]
    assert (bare["place"], bare["qpn"], bare["peer_place"]) == ("", 0, "")
    assert (full["place"], full["qpn"]) == (A.hex(), 0x11)
    assert (full["peer"], full["peer_place"], full["peer_qpn"]) == ("ib:lid5/:0", "lid5/", 0)


@pytest.mark.parametrize(
    ("kind", "lossy"), [("rc", 0), ("xrc_send", 0), ("uc", 1), ("ud", 1), ("raw", 1), ("driver", 1)]
)
def test_what_the_transport_promises_and_where_its_numbers_begin(kind: str, lossy: int) -> None:
    [row] = named({9: {**QP, "qp_type": kind, "qpn": 0x11, "sgid": A, "sq_psn": 0}})["endpoints"]
    assert (row["lossy"], row["sq_psn"]) == (lossy, 0)
    [row] = named({9: {**QP, "qp_type": kind, "qpn": 0x11, "sgid": A}})["endpoints"]
    assert row["sq_psn"] == -1


def test_queue_pairs_of_mlx5_are_named_alike() -> None:
    mlx5 = {"type": "mlx5_qp", "qp_type": "rc"}
    here = {9: {**mlx5, "qpn": 0x11, "sgid": A, "dgid": B, "dest_qpn": 0x12}}
    there = {4: {**QP, "qpn": 0x12, "sgid": B, "dgid": A, "dest_qpn": 0x11}}
    [one], [other] = named(here)["endpoints"], named(there)["endpoints"]
    assert (one["local"], one["peer"]) == (other["peer"], other["local"])
    assert (one["layer"], one["type"]) == (Layer.MLX5DV, "mlx5_qp")
    by_lid = {9: {**mlx5, "qpn": 0x11, "slid": 3, "dlid": 5, "prefix": PREFIX, "dest_qpn": 0x12}}
    [row] = named(by_lid)["endpoints"]
    assert (row["place"], row["peer_place"]) == (f"lid3/{PREFIX.hex()}", f"lid5/{PREFIX.hex()}")


def test_a_queue_pair_that_two_layers_tell_of_is_one_connection() -> None:
    ends = {"qp_type": "rc", "qpn": 0x11, "sgid": A, "dgid": B, "dest_qpn": 0x12}
    both = {3: {"type": "ib_qp", **ends}, 4: {"type": "mlx5_qp", **ends}}
    rows = named({**both, 5: {"type": "mlx5_qp", **ends}})["endpoints"]
    assert [(row["layer"], row["life"]) for row in rows] == [(4, 0), (5, 0), (5, 1)]


def test_elements_of_a_dci_name_their_destinations() -> None:
    objects = {
        6: {"type": "mlx5_av", "dlid": 5, "prefix": PREFIX},
        7: {"type": "mlx5_av", "dgid": B},
        9: {"type": "mlx5_qp", "qp_type": "dci", "qpn": 0x11, "sgid": A},
    }
    out = {"object": 9, "kind": Kind.RMA, "dir": Dir.OUT, "layer": Layer.MLX5DV}
    found = named(objects, *({**out, "peer": 0x22 << 32 | av} for av in (6, 7, 8)))
    lid = f"lid5/{PREFIX.hex()}"
    assert found["addresses"] == [
        {"av": 9, "addr": 0x22 << 32 | 6, "name": f"ib:{lid}:22", "place": lid, "qpn": 0x22},
        {"av": 9, "addr": 0x22 << 32 | 7, "name": f"ib:{B.hex()}:22", "place": B.hex(), "qpn": 34},
    ]
    assert [row["av"] for row in found["endpoints"]] == [9]


def test_sockets_of_rdma_cm_are_those_of_its_queue_pair() -> None:
    local = struct.pack("=H", 2) + struct.pack(">H", 4711) + bytes((10, 0, 0, 1)) + bytes(8)
    remote = struct.pack("=H", 2) + struct.pack(">H", 18515) + bytes((10, 0, 0, 2)) + bytes(8)
    objects = {
        7: {"type": "ib_cm", "qp": 9, "local_sockaddr": local, "remote_sockaddr": remote},
        8: {"type": "ib_cm", "qp": 10, "local_sockaddr": local},
    }
    assert object_tables(objects, NONE, "h")["qp_sockets"].to_pylist() == [
        {"object": 9, "local": "10.0.0.1:4711", "remote": "10.0.0.2:18515"},
        {"object": 10, "local": "10.0.0.1:4711", "remote": ""},
    ]


def test_transitions_are_in_the_order_of_time() -> None:
    objects = {9: {**QP, "error_tsc": 3, "rtr_tsc": 5, "init_tsc": 4}}
    assert object_tables(objects, NONE, "h")["qp_transitions"].to_pylist() == [
        {"object": 9, "t_tsc": 3, "state": "error"},
        {"object": 9, "t_tsc": 4, "state": "init"},
        {"object": 9, "t_tsc": 5, "state": "rtr"},
    ]
