"""Canonical names: equal bytes at both ends, different for different things."""

from __future__ import annotations

import socket
import struct
from typing import Any

import numpy as np
import pytest
from capture_cases import object_tables

from sigmatrace.capture.names.ofi import ofi_name
from sigmatrace.capture.names.sockets import socket_name
from sigmatrace.capture.objects import thread_names
from sigmatrace.trace_format import RECORDS, Layer, Schema

NO_CHANNELS = np.empty(0, RECORDS[Schema.CHANNEL])


def ipv4(ip: str, port: int, size: int = 16) -> bytes:
    raw = struct.pack("<H", 2) + struct.pack(">H", port) + socket.inet_aton(ip)
    return raw.ljust(size, b"\0")


def ipv6(ip: str, port: int) -> bytes:
    head = struct.pack("<H", 10) + struct.pack(">HI", port, 7)
    return head + socket.inet_pton(socket.AF_INET6, ip) + bytes(4)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (ipv4("10.1.2.3", 80), "10.1.2.3:80"),
        (ipv4("10.1.2.3", 80, 128), "10.1.2.3:80"),
        (ipv4("127.0.0.1", 4242), "127.0.0.1:4242@h"),
        (ipv4("0.0.0.0", 1), "0.0.0.0:1@h"),
        (ipv6("2001:db8::1", 443), "[2001:db8::1]:443"),
        (ipv6("::1", 5), "[::1]:5@h"),
        (ipv6("::ffff:127.0.0.1", 5), "127.0.0.1:5@h"),
        (ipv6("fe80::1", 5), "[fe80::1]:5@h"),
        (b"", None),
        (b"fi_shm://812:0:1\0", None),
        (ipv4("10.1.2.3", 80, 20), None),
    ],
)
def test_socket_names(address: bytes, name: str | None) -> None:
    assert socket_name(address, "h") == name


@pytest.mark.parametrize(
    ("provider", "address", "name"),
    [
        ("tcp", ipv4("10.1.2.3", 80), "ofi:tcp/rdm:10.1.2.3:80"),
        ("tcp;ofi_rxm", ipv4("127.0.0.1", 80), "ofi:tcp;ofi_rxm/rdm:127.0.0.1:80@h"),
        ("shm", b"fi_shm://812:0:1\0", "ofi:shm/rdm:fi_shm://812:0:1@h"),
        ("other", b"\1\2\xff", "ofi:other/rdm:0102ff@h"),
        ("efa", b"\xfe\x80" + bytes(30), "ofi:efa/rdm:fe80" + "00" * 30),
        ("tcp", b"", ""),
    ],
)
def test_libfabric_names(provider: str, address: bytes, name: str) -> None:
    assert ofi_name(provider, "rdm", address, "h") == name


def endpoints(objects: dict[int, dict[str, Any]], host: str = "h") -> dict[int, dict[str, Any]]:
    rows = object_tables(objects, NO_CHANNELS, host)["endpoints"].to_pylist()
    return {row["object"]: row for row in rows}


def test_connected_libfabric_endpoints_mirror() -> None:
    a, b = ipv4("127.0.0.1", 1), ipv4("127.0.0.1", 2)
    common = {"type": "ofi_endpoint", "prov": "tcp", "ep_type": "msg"}
    here = endpoints({5: {**common, "local": a, "peer": b, "depth": 1}})[5]
    there = endpoints({9: {**common, "local": b, "peer": a}})[9]
    assert (here["local"], here["peer"]) == (there["peer"], there["local"])
    assert (here["layer"], here["depth"], here["owner"]) == (1, 1, 0)


def test_a_connection_with_the_names_of_an_earlier_one_is_its_later_life() -> None:
    a, b = ipv4("10.0.0.1", 1), ipv4("10.0.0.2", 2)
    one = {"type": "ofi_endpoint", "prov": "tcp", "ep_type": "msg", "local": a, "peer": b}
    rows = endpoints({9: {**one, "t_tsc": 30}, 5: {**one, "t_tsc": 10, "closed_tsc": 20}})
    lives = [(rows[key]["life"], rows[key]["born_tsc"], rows[key]["gone_tsc"]) for key in (5, 9)]
    assert lives == [(0, 10, 20), (1, 30, 0)]


def test_registered_memory_is_a_region() -> None:
    one = {"type": "memory", "layer": "ofi", "address": 4096, "length_bytes": 64, "key": 2**63}
    tables = object_tables({7: {**one, "t_tsc": 5, "closed_tsc": 8}}, NO_CHANNELS, "h")
    assert tables["regions"].to_pylist() == [
        {
            "object": 7, "layer": Layer.OFI, "key": 2**63, "address": 4096, "length_bytes": 64,
            "born_tsc": 5, "gone_tsc": 8,
        }
    ]  # fmt: skip


@pytest.mark.parametrize("ep_type", ["rdm", "dgram"])
def test_an_address_is_named_as_the_endpoint_that_owns_it(ep_type: str) -> None:
    address = ipv4("10.0.0.2", 7)
    owner = {"type": "ofi_endpoint", "prov": "tcp", "ep_type": ep_type, "local": address}
    sender = {
        1: {"type": "ofi_av", "prov": "other name"},
        2: {"type": "ofi_endpoint", "prov": "tcp", "ep_type": ep_type, "av": 1},
        3: {"type": "ofi_address", "av": 1, "addr": 2**64 - 2, "address": address},
    }
    [row] = object_tables(sender, NO_CHANNELS, "h")["addresses"].to_pylist()
    name = endpoints({1: owner})[1]["local"]
    assert row == {"av": 1, "addr": 2**64 - 2, "name": name, "place": "", "qpn": 0}


def test_an_entry_used_for_two_addresses_has_no_name() -> None:
    objects = {
        1: {"type": "ofi_av", "prov": "tcp"},
        2: {"type": "ofi_address", "av": 1, "addr": 0, "address": ipv4("10.0.0.1", 1)},
        3: {"type": "ofi_address", "av": 1, "addr": 0, "address": ipv4("10.0.0.2", 1)},
        4: {"type": "ofi_address", "av": 1, "addr": 1, "address": ipv4("10.0.0.3", 1)},
        5: {"type": "ofi_address", "av": 1, "addr": 1, "address": ipv4("10.0.0.3", 1)},
    }
    names = [
        row["name"] for row in object_tables(objects, NO_CHANNELS, "h")["addresses"].to_pylist()
    ]
    assert names == ["", "ofi:tcp/rdm:10.0.0.3:1"]


def test_ucp_names() -> None:
    uid = 0xFEDCBA9876543210
    a, b = ipv4("127.0.0.1", 1, 128), ipv4("127.0.0.1", 2)
    here = endpoints(
        {
            1: {"type": "ucp_worker", "uid": uid},
            2: {"type": "ucp_ep", "worker": 1, "remote_uid": 5},
            3: {"type": "ucp_ep", "worker": 1, "local_sockaddr": a, "remote_sockaddr": b},
            4: {"type": "ucp_ep", "worker": 1},
            5: {"type": "ucp_worker"},
        }
    )
    assert here[1]["local"] == "ucp:fedcba9876543210"
    assert (here[2]["local"], here[2]["peer"]) == ("", "ucp:0000000000000005")
    assert [here[key]["owner"] for key in (1, 2, 3, 4)] == [0, 1, 1, 1]
    there = endpoints({8: {"type": "ucp_ep", "local_sockaddr": b, "remote_sockaddr": a}})[8]
    assert here[3]["local"] == there["peer"] == "ucp:127.0.0.1:1@h-127.0.0.1:2@h"
    assert here[3]["peer"] == there["local"]
    assert here[4]["local"] == here[4]["peer"] == here[5]["local"] == ""


@pytest.mark.parametrize(("transport", "suffix"), [("posix", "@h"), ("tcp", "")])
def test_uct_names(transport: str, suffix: str) -> None:
    iface = {"type": "uct_iface", "tl": transport, "device_address": b"\1", "iface_address": b"\2"}
    remote = {"device_address": b"\1", "iface_address": b"\2"}
    named = endpoints({1: iface, 2: {"type": "uct_ep", "iface": 1, **remote}})
    assert named[1]["local"] == named[2]["peer"] == f"uct:{transport}:01:02{suffix}"
    assert (named[2]["local"], named[2]["owner"]) == ("", 1)


def test_uct_endpoints_connected_to_each_other_mirror() -> None:
    def side(device: bytes, ep: bytes, to_device: bytes, to_ep: bytes) -> dict[str, Any]:
        return endpoints(
            {
                1: {"type": "uct_iface", "tl": "rc", "device_address": device},
                2: {
                    "type": "uct_ep",
                    "iface": 1,
                    "local_ep_address": ep,
                    "device_address": to_device,
                    "ep_address": to_ep,
                },
            }
        )[2]

    here, there = side(b"a", b"1", b"b", b"2"), side(b"b", b"2", b"a", b"1")
    assert (here["local"], here["peer"]) == (there["peer"], there["local"])
    assert here["local"] != here["peer"]


def test_names_threads_and_libraries() -> None:
    objects = {
        1: {"type": "name", "name": "loop"},
        2: {"type": "thread", "tid": 77, "name": "worker"},
        3: {"type": "library", "layer": "ucp", "name": "libucp.so.0", "how": "symbol"},
        4: {"type": "library", "layer": "OFI", "name": "libfabric.so.1", "version": "2.5"},
    }
    tables = object_tables(objects, NO_CHANNELS, "h")
    assert tables["names"].to_pylist() == [{"name": 1, "text": "loop"}]
    assert thread_names(objects) == {77: "worker"}
    assert [row["layer"] for row in tables["libraries"].to_pylist()] == ["ucp", "ofi"]
