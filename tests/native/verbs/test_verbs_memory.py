"""Memory of the verbs layer: regions, and windows from bind to invalidation."""

from __future__ import annotations

from itertools import pairwise

from plain_reader import merged

BIND, PUT, SEND, INVALIDATE = 11, 3, 1, 12
WRITE = 0


def test_regions(run) -> None:
    rank = run("driver", "regions", mode="simple").rank()
    regions = merged(rank, "memory")
    first, other = (pd["id"] for pd in merged(rank, "ib_pd"))
    base = regions[0]["address"]
    assert [
        (
            r["address"] - base if r["address"] >= base else r["address"],
            r["length_bytes"],
            r.get("iova"),
            r.get("dmabuf_fd"),
            r.get("access"),
            r.get("kind"),
            r["pd"],
        )
        for r in regions
    ] == [
        (0, 8192, None, None, 3, None, first),
        (0, 100, 0x5000, None, 3, None, other),  # its rights and domain were changed
        (0x7000, 200, 0x7000, 11, 1, None, first),
        # registered by libibverbs for itself: once
        (0, 300, None, None, 1 << 20 | 4, None, first),
        (50, 400, None, None, 1 << 20 | 4, None, first),  # elsewhere, with its rights
        (0, 0, None, None, 0, "null", first),
        (0, 500, None, None, 1 << 5, "device", first),
        (0, 600, None, None, 0, None, first),  # ended by a change that failed
    ]
    assert all(r["key"] and r["closed_tsc"] for r in regions)


def test_each_bind_of_a_window_is_a_life(run) -> None:
    rank = run("driver", "windows").rank()
    (region, *windows) = merged(rank, "memory")
    base = region["address"]
    assert [
        (w["address"] - base, w["length_bytes"], w.get("iova"), w["access"]) for w in windows
    ] == [
        (0, 64, None, 2),
        (1024, 32, None, 2),
        (2048, 128, None, 2),
        *((4096 + 256 * i, 256, 0, 2 | 1 << 5) for i in range(3)),
    ]
    assert {w["kind"] for w in windows} == {"window"} and {w["pd"] for w in windows} == {
        region["pd"]
    }
    assert len({w["key"] for w in windows} | {region["key"]}) == 7
    # Each write went through the key of the window that lived at the time.
    writes = [r for r in rank.records(7) if r["opcode"] == WRITE]
    born = {w["id"]: w["t_tsc"] for w in reversed(rank.objects_of("memory"))}
    assert [r["rkey"] for r in writes] == [w["key"] for w in windows]
    for write, window in zip(writes, windows, strict=True):
        assert born[window["id"]] <= write["t_tsc"] < window["closed_tsc"]
        start = window.get("iova", window["address"])
        assert start <= write["raddr"] < start + window["length_bytes"]
    lives = [(born[w["id"]], w["closed_tsc"]) for w in windows]
    assert sorted(lives) == lives
    assert all(end <= begin for (_, end), (begin, _) in pairwise(lives))
    # Each has ended once, by what ends it: the next bind, an invalidation, its being freed.
    binds = [r["t_tsc"] for r in rank.records(7) if r["opcode"] == 8]
    (first, second, none, third, fourth, fifth, sixth) = binds
    ends = [w["closed_tsc"] for w in windows]
    assert first < second <= ends[0] and none <= ends[1] < third
    assert third < ends[2] < fourth < ends[3] < fifth < ends[4] < sixth < ends[5]
    assert len([w for w in rank.objects_of("memory") if "closed_tsc" in w]) == 7
    assert rank.end["lost"] == {}


def test_binds_and_invalidations_are_operations(run) -> None:
    for mode in ("simple", "full"):
        rank = run("driver", "windows", mode=mode).rank()
        owner, user = dict.fromkeys(item["id"] for item in rank.objects_of("ib_qp"))
        side = {c["id"]: c["object"] for c in rank.records(2) if c["dir"] == 1}
        found = {
            qp: [
                (op["op"], op["size_bytes"])
                for op in rank.records(1)
                if side.get(op["channel"]) == qp
            ]
            for qp in (owner, user)
        }
        bind, end = (BIND, 0), (INVALIDATE, 0)
        assert found[owner] == [bind] * 4 + [end] + [bind] * 2 + [end, bind]
        assert found[user] == [(PUT, 8)] * 4 + [(SEND, 0)] + [(PUT, 8)] * 2
        (arrival,) = [op for op in rank.records(1) if op["op"] == 2]
        assert arrival["size_bytes"] == 0
    binds = [r for r in rank.records(7) if r["opcode"] == 8]
    windows = merged(rank, "memory")[1:]
    assert [r["rkey"] for r in binds if r["raddr"]] == [w["key"] for w in windows]
    assert [r["raddr"] for r in binds if r["raddr"]] == [w["address"] for w in windows]
    keys = [w["key"] for w in windows]
    (sent,) = [r for r in rank.records(7) if r["opcode"] == 9]
    assert sent["imm"] == keys[3]
    assert [r["imm"] for r in rank.records(7) if r["opcode"] == 7] == [keys[2], keys[4]]
    (arrived,) = [c for c in rank.records(8) if c["queue"] == 2]
    assert (arrived["imm"], arrived["flags"]) == (keys[3], 8)  # IBV_WC_WITH_INV


def test_a_bind_takes_a_position(run) -> None:
    rank = run("driver", "binding", mode="full").rank()
    assert [(op["op"], op["aux"], op["ordinal"]) for op in rank.records(1)] == [
        (BIND, 0, 0),
        (PUT, 1, 1),
    ]
    assert [(r["wr_id"], r["position"], r["opcode"]) for r in rank.records(8)] == [
        (8, 0, 5),
        (9, 1, 1),
    ]
