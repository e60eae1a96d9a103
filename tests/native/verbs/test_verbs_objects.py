"""Objects of the verbs layer, and the ways in which programs reach libibverbs."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_reader import Rank, merged


def test_device_port_and_gids(run) -> None:
    rank = run("driver", "polls", 1, mode="simple").rank()
    (device,) = merged(rank, "ib_device")
    assert device["name"] == "fake0" and device["node_guid"] == 0x020000FFFE000001
    assert (device["vendor_id"], device["vendor_part_id"]) == (0x1234, 77)
    (port,) = merged(rank, "ib_port")
    assert (port["device"], port["port"], port["lid"]) == (device["id"], 1, 9)
    assert (port["link_layer"], port["state"], port["mtu_bytes"]) == ("ethernet", "active", 1024)
    assert port["rate_mbps"] == 103124
    gids = [(g["port"], g["index"], g["gid"]) for g in merged(rank, "ib_gid")]
    assert gids == [
        (port["id"], 0, b"\xfe\x80" + bytes(13) + b"\x01"),
        (port["id"], 1, bytes(15) + b"\x02"),
    ]


def test_library_and_layer(run, fake: Path) -> None:
    rank = run("driver", "polls", 1, mode="simple").rank()
    (library,) = rank.objects_of("library")
    assert (library["name"], library["layer"]) == ("libibverbs", "verbs")
    assert library["path"] == str(fake / "libibverbs.so.1")
    assert library["version"] == "" and rank.header["layers"] == ["verbs"]


def test_the_release_is_in_the_name_of_the_file(run, fake: Path, tmp_path: Path) -> None:
    (tmp_path / "libibverbs.so.1.14.44.0").write_bytes((fake / "libibverbs.so.1").read_bytes())
    (tmp_path / "libibverbs.so.1").symlink_to("libibverbs.so.1.14.44.0")
    rank = run("loader", "dlsym", tmp_path / "libibverbs.so.1", mode="simple").rank()
    assert [o["version"] for o in rank.objects_of("library")] == ["44.0"]


def test_each_connection_is_an_object(run) -> None:
    rank = run("driver", "again").rank()
    pairs = merged(rank, "ib_qp")
    assert len(pairs) == 6
    numbers = [p["qpn"] for p in pairs]
    assert len(set(numbers)) == 2
    for pair in pairs:
        assert pair["dest_qpn"] in set(numbers) - {pair["qpn"]}
        assert pair["sgid"] == pair["dgid"] == bytes(15) + b"\x02"
        assert (pair["port"], pair["sq_psn"], pair["rq_psn"], pair["qp_type"]) == (1, 7, 7, "rc")
        assert pair["sq_sig_all"] == 1 and pair["closed_tsc"]
    channels = {c["id"]: c for c in rank.records(2)}
    sent = [
        [op["ordinal"] for op in rank.records(1) if channels[op["channel"]]["object"] == p["id"]]
        for p in pairs
        if p["qpn"] == min(numbers)
    ]
    assert sent == [list(range(3)), list(range(4)), list(range(5))]
    assert [
        [c["position"] for c in rank.records(8) if c["object"] == p["id"] and c["queue"] == 1]
        for p in pairs
        if p["qpn"] == min(numbers)
    ] == sent


def test_a_context_opened_again_at_the_same_address(run) -> None:
    times = 5
    rank = run("driver", "reopen", times).rank()
    assert len(rank.records(1)) == times * 14
    assert len(merged(rank, "ib_qp")) == 2 * times
    assert len(merged(rank, "ib_device")) == 1 and len(merged(rank, "ib_cq")) == times + 1
    assert rank.end["lost"] == {}


def test_empty_polls_are_counted(run) -> None:
    rank = run("driver", "polls", 1234).rank()
    (cq,) = merged(rank, "ib_cq")
    assert (cq["polls"], cq["empty_polls"], cq["cqe"]) == (1234, 1234, 1024)
    assert not rank.records(8)
    assert "polls" not in merged(run("driver", "polls", 5, mode="simple").rank(), "ib_cq")[0]


def test_failed_polls_are_no_empty_ones(run) -> None:
    (cq,) = merged(run("driver", "failing_polls").rank(), "ib_cq")
    assert (cq["polls"], cq["empty_polls"], cq["failed_polls"]) == (4, 1, 3)


def check_one_write(rank: Rank) -> None:
    """What verbs_client.h does."""
    assert [(op["op"], op["size_bytes"], op["aux"]) for op in rank.records(1)] == [(3, 24, 0)]
    (request,), (done,) = rank.records(7), rank.records(8)
    (region,) = merged(rank, "memory")
    assert (request["wr_id"], request["rkey"], request["raddr"]) == (
        *(6, region["key"], region["address"]),
    )
    assert (done["wr_id"], done["position"], done["status"]) == (6, 0, 0)
    (cq,) = merged(rank, "ib_cq")
    assert (cq["polls"], cq["empty_polls"]) == (1, 0) and cq["closed_tsc"]
    assert rank.end["lost"] == {}


@pytest.mark.parametrize("way", ["dlsym", "dlvsym"])
def test_functions_looked_up_by_name(run, fake: Path, way: str) -> None:
    check_one_write(run("loader", way, fake / "libibverbs.so.1").rank())


def test_a_plugin_of_its_own_scope(run, fake: Path) -> None:
    check_one_write(run("loader", "plugin", fake / "plugin.so").rank())


def test_other_look_ups_are_left_alone(run, fake: Path) -> None:
    assert not run("loader", "plain", fake / "libibverbs.so.1").ranks()


def test_domains_and_channels(run) -> None:
    rank = run("driver", "domains").rank()
    device, plain, parent, imported = (
        merged(rank, "ib_device")[0]["id"],
        *merged(rank, "ib_pd"),
    )
    assert [pd["device"] for pd in (plain, parent, imported)] == [device] * 3
    assert parent["parent"] == plain["id"] and "parent" not in plain
    own, there = merged(rank, "memory")
    assert (own["pd"], there["pd"]) == (plain["id"], imported["id"])
    (channel,) = merged(rank, "ib_comp_channel")
    assert channel["device"] == device
    assert [cq.get("channel") for cq in merged(rank, "ib_cq")] == [None] + [channel["id"]] * 2
    (ah,) = merged(rank, "ib_ah")  # made from a completion
    assert (ah["pd"], ah["dgid"], ah["dlid"]) == (parent["id"], bytes(15) + b"\x03", 5)
    last = max(cq["closed_tsc"] for cq in merged(rank, "ib_cq") if "channel" in cq)
    assert last < channel["closed_tsc"]  # what was refused before did not end it
    assert all(x["closed_tsc"] for x in (plain, parent, imported, ah, there))
    assert rank.end["lost"] == {}


def test_what_a_connection_negotiates(run) -> None:
    rank = run("driver", "negotiated").rank()
    first, _b, second, _d = merged(rank, "ib_qp")
    (pd,) = merged(rank, "ib_pd")
    for number, qp in enumerate((first, second), 1):
        assert (qp["ece_vendor_id"], qp["ece_options"], qp["ece_comp_mask"]) == (
            0x15B3,
            number,
            number,
        )
        attributes = {
            **{"path_mtu_bytes": 4096, "timeout": 14, "retry_cnt": 7, "rnr_retry": 6},
            **{"min_rnr_timer": 12, "max_rd_atomic": 16, "max_dest_rd_atomic": 15, "access": 2},
            **{"pkey_index": 0, "sl": 0, "hop_limit": 0, "pd": pd["id"]},
        }
        assert qp.items() >= attributes.items()
    asked = [q["ece_options"] for q in rank.objects_of("ib_qp") if "ece_options" in q]
    assert asked == [0x70001, 1, 0x70002, 2]  # asked for, in force
    states = [
        [q["state"] for q in rank.objects_of("ib_qp") if q["id"] == qp["id"] and "state" in q]
        for qp in (first, second)
    ]
    # The second breaks by itself; a query tells. (A query that says nothing new adds nothing.)
    assert states == [["reset", "init", "rtr", "rts"], ["reset", "init", "rtr", "rts", "error"]]


def test_a_program_bound_to_the_old_interface(run) -> None:
    rank = run("driver", "old").rank()
    assert len(merged(rank, "ib_device")) == 1 and not merged(rank, "ib_comp_channel")
    check_one_write(rank)


def test_nothing_is_wrapped_unless_the_layer_is_chosen(run) -> None:
    assert not run("driver", "traffic", 1, SIGMATRACE_LAYERS="ofi").ranks()
