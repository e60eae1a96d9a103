"""Mode full: each request and its completion, joined by queue and position."""

from __future__ import annotations

import pytest
from plain_reader import Rank

NOWHERE = 2**32 - 1
WRITE, WRITE_IMM, SEND, SEND_IMM, READ, SWAP, ADD, INVALIDATE, _BIND, SEND_INV = range(10)
OPCODES = (SEND, SEND_IMM, WRITE, READ, WRITE_IMM, SWAP, INVALIDATE, SEND_INV, ADD)
COMPLETIONS = {
    **{SEND: 0, SEND_IMM: 0, SEND_INV: 0, WRITE: 1, WRITE_IMM: 1, READ: 2},
    **{SWAP: 3, ADD: 4, INVALIDATE: 6},
}


def joined(rank: Rank) -> list[tuple[dict, dict]]:
    """Completions with the requests that they name."""
    requests = {(r["object"], r["queue"], r["position"]): r for r in rank.records(7)}
    assert len(requests) == len(rank.records(7))
    return [(requests[c["object"], c["queue"], c["position"]], c) for c in rank.records(8)]


def test_every_completion_finds_its_request(run) -> None:
    rounds = 30
    rank = run("driver", "traffic", rounds).rank()
    rows = joined(rank)
    assert len(rows) == rounds * 13 + 1
    for request, done in rows:
        assert request["wr_id"] == done["wr_id"] and done["status"] == 0
        assert request["t_tsc"] == done["posted_tsc"] <= done["t_tsc"]
        assert done["first"] == done["position"]
    sent = [request for request, _done in rows if request["queue"] == 1][:-1]
    assert [r["opcode"] for r in sent] == list(OPCODES) * rounds
    assert [r["wr_id"] for r in sent] == list(range(1, 9 * rounds + 1))
    for request, done in rows:
        if request["queue"] == 1:
            assert done["opcode"] == COMPLETIONS[request["opcode"]]
            assert request["sges"] == (
                0
                if request["opcode"] == INVALIDATE
                else 1
                if request["opcode"] in (SWAP, ADD) or request["wr_id"] == 9999
                else 1 + (request["wr_id"] - 1) // 9 % 3
            )


def test_remote_addresses_and_immediates(run) -> None:
    rank = run("driver", "traffic", 2).rank()
    (region,) = [m for m in rank.objects_of("memory") if "address" in m]
    base, key = region["address"], region["key"]
    sent = [r for r in rank.records(7) if r["queue"] == 1]
    for r in sent:
        where = {SWAP: base + 64, ADD: base + 64}.get(r["opcode"], base + 128)
        one_sided = r["opcode"] in (WRITE, WRITE_IMM, READ, SWAP, ADD)
        assert (r["raddr"], r["rkey"]) == ((where, key) if one_sided else (0, 0))
        immediate = 0xABCD0000 + r["wr_id"] if r["opcode"] in (SEND_IMM, WRITE_IMM) else 0
        if r["opcode"] in (INVALIDATE, SEND_INV):
            immediate = 0x777
        assert r["imm"] == immediate
    sending = [r for r in sent if r["opcode"] in (SEND, SEND_IMM, WRITE_IMM, SEND_INV)]
    arrived = [c for c in rank.records(8) if c["queue"] == 2]
    assert [c["imm"] for c in arrived] == [r["imm"] for r in sending]
    assert [c["size_bytes"] for c in arrived] == [r["size_bytes"] for r in sending]
    assert [c["opcode"] for c in arrived] == [
        129 if r["opcode"] == WRITE_IMM else 128 for r in sending
    ]
    inline = [r["wr_id"] for r in sent if r["flags"] & 8]
    assert inline == [1, 10]


def test_unsignaled_requests_retire_with_the_next_signaled(run) -> None:
    rank = run("driver", "unsignaled").rank()
    assert [(c["position"], c["first"], c["wr_id"]) for c in rank.records(8)] == [
        (3, 0, 4),
        (9, 4, 10),
        (13, 10, 4),
        (19, 14, 10),
    ]
    assert len(rank.records(7)) == 20
    assert [op["flags"] & 64 for op in rank.records(1)][:4] == [0, 0, 0, 64]


def test_failed_and_flushed_requests(run) -> None:
    rank = run("driver", "errors").rank()
    completions = rank.records(8)
    sends = [c for c in completions if c["queue"] == 1]
    # wr_id, status (10 remote access, 5 flushed), position, first, opcode (of the request)
    assert [(c["wr_id"], c["status"], c["position"], c["first"], c["opcode"]) for c in sends] == [
        (1, 0, 0, 0, 0),
        (3, 10, 2, 1, 2),
        (4, 5, 3, 3, 1),
        (5, 5, 4, 4, 0),
    ]
    receives = [c for c in completions if c["queue"] == 2]
    assert [(c["wr_id"], c["status"], c["position"]) for c in receives] == [
        (700, 0, 0),
        (701, 5, 1),
        (702, 5, 2),
    ]
    assert {c["size_bytes"] for c in completions if c["status"]} == {0}
    assert len([op for op in rank.records(1) if op["op"] == 2]) == 1
    assert rank.end["lost"] == {}


def test_a_request_that_cannot_be_told(run) -> None:
    rank = run("driver", "ambiguous").rank()
    (done,) = rank.records(8)
    assert (done["wr_id"], done["status"], done["position"]) == (7, 10, NOWHERE)
    assert (done["opcode"], done["posted_tsc"]) == (127, 0)
    assert rank.end["lost"] == {"verbs: completion whose request is not known": 1}


def test_what_the_provider_refuses_is_given_back(run) -> None:
    for mode in ("simple", "full"):
        rank = run("driver", "refused", mode=mode).rank()
        ops = rank.records(1)
        # 100, then 28 of 100, then 100; nothing of a queue pair that is not connected
        assert [op["aux"] for op in ops] == list(range(228))
        assert [op["ordinal"] for op in ops] == list(range(228))
        assert rank.end["lost"] == {}
    posted = [r["wr_id"] for r in rank.records(7)]
    assert posted == [*range(100), *range(100, 128), *range(200, 300)]
    assert [(c["position"], c["wr_id"]) for c in rank.records(8)] == list(enumerate(posted))


def test_extended_queue_pair(run) -> None:
    rank = run("driver", "extended").rank()
    (region,) = [m for m in rank.objects_of("memory") if "address" in m]
    requests = [r for r in rank.records(7) if r["queue"] == 1]
    first = [
        tuple(r[k] for k in ("wr_id", "opcode", "size_bytes", "sges", "flags", "imm"))
        for r in requests[:4]
    ]
    assert first == [
        (1, WRITE, 60, 3, 0, 0),
        (2, SEND_IMM, 17, 1, 2 | 8, 0x11223344),
        (3, ADD, 8, 1, 2, 0),
        (4, READ, 50, 1, 2, 0),
    ]
    assert (requests[0]["raddr"], requests[0]["rkey"]) == (region["address"] + 8, region["key"])
    # The aborted batch and the refused one took no position.
    assert [r["position"] for r in requests] == list(range(4 + 128))
    assert [r["wr_id"] for r in requests[4:]] == [*range(1000, 1064)] * 2
    done = [(c["wr_id"], c["position"], c["first"]) for c in rank.records(8) if c["queue"] == 1]
    assert done == [(2, 1, 0), (3, 2, 2), (4, 3, 3)]
    calls = rank.header["calls"]
    used = {calls[str(op["call"])] for op in rank.records(1)}
    assert used == {"ibv_wr_complete", "ibv_post_send", "ibv_poll_cq"}
    assert rank.end["lost"] == {}


@pytest.mark.parametrize("mode", ["simple", "full"])
def test_extended_completion_queue(run, mode: str) -> None:
    rank = run("driver", "extended_polling", mode=mode).rank()
    arrivals = [op for op in rank.records(1) if op["op"] == 2]
    assert [(op["size_bytes"], op["aux"]) for op in arrivals] == [(30, i) for i in range(4)]
    calls = rank.header["calls"]
    assert [calls[str(op["call"])] for op in arrivals] == ["ibv_start_poll"] + ["ibv_next_poll"] * 3
    if mode == "simple":
        return
    rows = joined(rank)
    assert [(r["wr_id"], c["opcode"]) for r, c in rows] == [
        *((40, 129), (0, 1), (41, 128), (1, 0)),
        *((42, 129), (2, 1), (43, 128), (3, 0)),
    ]
    assert [c["imm"] for _r, c in rows if c["queue"] == 2] == [0xABCD0000 + i for i in range(4)]
    # One that found nothing and one that began a batch; what goes through the batch is no poll.
    queues = [(i["polls"], i["empty_polls"]) for i in rank.objects_of("ib_cq") if "polls" in i]
    assert queues == [(2, 1), (0, 0)]
