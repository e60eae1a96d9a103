"""One name for each port over the whole run."""

from __future__ import annotations

from sigmatrace.capture.names.places import port_places, settle_places
from tests.factories import make_run, queue_pair


def test_all_gids_of_a_port_are_one_place_unless_two_ports_claim_them() -> None:
    ports = [("h1", ["a", "b"]), ("h2", ["c", "x"]), ("h1", ["a", "b"]), ("h3", ["x", "d", "e"])]
    known = port_places(ports)
    assert known == {"a": "a", "b": "a", "c": "c", "d": "d", "e": "d"}


def test_an_address_that_appears_between_two_starts_is_still_of_the_port() -> None:
    """Process 0 saw one GID of the port, process 1 on the same host, which started later, both."""
    gids = [
        {"proc": proc, "port": 2, "index": index, "gid": gid, "place": gid}
        for proc, index, gid in [(0, 0, "aa"), (1, 0, "aa"), (1, 1, "bb"), (2, 0, "cc")]
    ]
    tables = make_run(
        processes=[{"host": "a"}, {"host": "a"}, {"host": "b"}],
        ports=[{"proc": proc, "object": 2, "device": "mlx5_0", "port": 1} for proc in range(3)],
        gids=gids,
        endpoints=[
            queue_pair(0, 7, "aa:11", "cc:33"),
            queue_pair(1, 7, "bb:22", "dd:44"),
            queue_pair(2, 7, "cc:33", "bb:22"),
            {"proc": 2, "object": 8, "type": "ucp_worker", "local": "ucp:bb:22"},
        ],
        addresses=[{"proc": 2, "av": 9, "addr": 1, "name": "ib:bb:5", "place": "bb", "qpn": 5}],
    ).tables
    settled = dict(tables)
    settle_places(settled)
    assert settled["gids"].column("place").to_pylist() == ["aa", "aa", "aa", "cc"]
    ends = settled["endpoints"].to_pylist()
    assert [(row["local"], row["peer"]) for row in ends] == [
        ("ib:aa:11", "ib:cc:33"),
        ("ib:aa:22", "ib:dd:44"),
        ("ib:cc:33", "ib:aa:22"),
        ("ucp:bb:22", ""),
    ]
    assert [(row["place"], row["peer_place"]) for row in ends[:3]] == [
        ("aa", "cc"),
        ("aa", "dd"),
        ("cc", "aa"),
    ]
    [address] = settled["addresses"].to_pylist()
    assert (address["name"], address["place"], address["qpn"]) == ("ib:aa:5", "aa", 5)
