"""Operations of the verbs layer: what the program did, counted exactly, in every mode."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from plain_reader import Rank

SEND, RECV, PUT, GET, FETCH, PUT_DATA, INVALIDATE = 1, 2, 3, 4, 6, 10, 12
MSG, RMA = 1, 3
OUT, IN = 1, 2
ROUND = (  # of the program "traffic": operation, kind, is an atomic, carries data
    (SEND, MSG),
    (SEND, MSG),
    (PUT, RMA),
    (GET, RMA),
    (PUT_DATA, MSG),
    (FETCH, RMA),
    (INVALIDATE, RMA),
    (SEND, MSG),
    (FETCH, RMA),
)


def expected_out(rounds: int) -> list[tuple[int, int, int]]:
    """(operation, kind, bytes) of the first queue pair, in the order of posting."""
    rows = []
    for number in range(rounds):
        data = (1 + number % 3) * (10 + number)
        sizes = {FETCH: 8, INVALIDATE: 0}
        rows += [(op, kind, sizes.get(op, data)) for op, kind in ROUND]
    return rows


def queue_pairs(rank: Rank) -> list[int]:
    return list(dict.fromkeys(item["id"] for item in rank.objects_of("ib_qp")))


def by_channel(rank: Rank) -> dict[tuple[int, int, int], list[dict]]:
    channels = {c["id"]: c for c in rank.records(2)}
    found = defaultdict(list)
    for op in rank.records(1):
        c = channels[op["channel"]]
        found[c["object"], c["kind"], c["dir"]].append(op)
    return found


@pytest.mark.parametrize("mode", ["simple", "full"])
def test_every_opcode(run, mode: str) -> None:
    rounds = 40
    rank = run("driver", "traffic", rounds, mode=mode).rank()
    first, second = queue_pairs(rank)
    found = by_channel(rank)
    expected = expected_out(rounds)
    for kind in (MSG, RMA):
        rows = found[first, kind, OUT]
        places = [i for i, row in enumerate(expected) if row[1] == kind]
        assert [(op["op"], kind, op["size_bytes"]) for op in rows] == [expected[i] for i in places]
        assert [op["ordinal"] for op in rows] == list(range(len(places)))
        assert [op["aux"] for op in rows] == places
        assert {op["flags"] for op in rows} == {64}
    arrivals = found[second, MSG, IN]
    sent = [row[2] for row in expected if row[1] == MSG]
    assert [op["size_bytes"] for op in arrivals] == sent
    assert [op["ordinal"] for op in arrivals] == list(range(len(sent)))
    assert [op["aux"] for op in arrivals] == list(range(len(sent)))
    assert {(op["op"], op["flags"]) for op in arrivals} == {(RECV, 0)}
    (last,) = found[second, RMA, OUT]
    assert (last["op"], last["size_bytes"], last["flags"]) == (PUT, 5, 64)
    assert len(rank.records(1)) == len(expected) + len(sent) + 1
    assert rank.end is not None and rank.end["lost"] == {}
    if mode == "simple":
        assert not rank.records(7) and not rank.records(8)


def test_aggregate_adds_up(run) -> None:
    rounds = 40
    rank = run("driver", "traffic", rounds, mode="aggregate").rank()
    channels = {c["id"]: c for c in rank.records(2)}
    first, second = queue_pairs(rank)
    expected: dict[tuple, list[int]] = defaultdict(list)
    for op, kind, size in expected_out(rounds):
        expected[first, kind, OUT, op].append(size)
        if kind == MSG:
            expected[second, MSG, IN, RECV].append(size)
    expected[second, RMA, OUT, PUT].append(5)
    classes = {
        (*key, bits): [size for size in sizes if size.bit_length() == bits]
        for key, sizes in expected.items()
        for bits in {size.bit_length() for size in sizes}
    }
    rows = {}
    for row in rank.records(5):
        c = channels[row["channel"]]
        key = c["object"], c["kind"], c["dir"], row["op"], row["size_bits"]
        rows[key] = (row["count"], row["size_bytes"])
    assert rows == {key: (len(sizes), sum(sizes)) for key, sizes in classes.items()}
    assert not rank.records(1)


def test_shared_receive_queue(run) -> None:
    rank = run("driver", "srq", mode="full").rank()
    a, b, c, d = queue_pairs(rank)
    found = by_channel(rank)
    assert [op["size_bytes"] for op in found[b, MSG, IN]] == [101, 102, 104, 105]
    assert [op["size_bytes"] for op in found[d, MSG, IN]] == [100, 103]
    assert len(found[a, MSG, OUT]) == 4 and len(found[c, MSG, OUT]) == 2
    (srq,) = {item["id"] for item in rank.objects_of("ib_srq")}
    posted = [r for r in rank.records(7) if r["queue"] == 3]
    assert [(r["object"], r["position"], r["wr_id"]) for r in posted] == [
        (srq, i, 500 + i) for i in range(6)
    ]
    taken = [r for r in rank.records(8) if r["queue"] == 3]
    assert [(r["object"], r["wr_id"], r["position"]) for r in taken] == [
        (d, 500, 2**32 - 1),
        (b, 501, 2**32 - 1),
        (b, 502, 2**32 - 1),
        (d, 503, 2**32 - 1),
        (b, 504, 2**32 - 1),
        (b, 505, 2**32 - 1),
    ]
    assert {r["posted_tsc"] for r in taken} == {0}


def test_datagrams(run) -> None:
    rank = run("driver", "datagrams", mode="simple").rank()
    numbers = {i["id"]: i["qpn"] for i in rank.objects_of("ib_qp") if "qpn" in i}
    a, b, c = numbers
    (ah, *_closed) = rank.objects_of("ib_ah")
    channels = rank.records(2)
    key = {
        (ch["object"], ch["dir"]): (ch["peer"], ch["tag"], ch["flags"])
        for ch in channels
        if ch["dir"] == OUT
    }
    peer = ah["id"] | numbers[c] << 32
    assert key == {(a, OUT): (peer, numbers[a], 1), (b, OUT): (peer, numbers[b], 1)}
    incoming = {ch["tag"]: ch["id"] for ch in channels if ch["dir"] == IN}
    counts = Counter(op["channel"] for op in rank.records(1))
    assert counts[incoming[numbers[a]]] == 4 and counts[incoming[numbers[b]]] == 2
    assert {op["size_bytes"] for op in rank.records(1)} == {33}  # without the 40 of the GRH
    assert ah["dgid"] == bytes(15) + b"\x02"


@pytest.mark.parametrize("program", ["threads", "extended_threads"])
@pytest.mark.parametrize("mode", ["simple", "full"])
def test_threads_on_one_queue_pair(run, mode: str, program: str) -> None:
    n = 1200
    rank = run("driver", program, n, mode=mode, SIGMATRACE_SEGMENT_KIB="16").rank()
    call = {"threads": "ibv_post_send", "extended_threads": "ibv_wr_complete"}[program]
    sent = [op for op in rank.records(1) if op["op"] != RECV]
    assert {rank.header["calls"][str(op["call"])] for op in sent} == {call}
    first, second = queue_pairs(rank)
    found = by_channel(rank)
    for kind in (MSG, RMA):
        assert sorted(op["ordinal"] for op in found[first, kind, OUT]) == list(range(n))
    positions = [op["aux"] for kind in (MSG, RMA) for op in found[first, kind, OUT]]
    given_back = rank.end["lost"].get("verbs: position of a refused request", 0)
    assert len(set(positions)) == 2 * n
    assert max(positions) < 2 * n + given_back
    assert sorted(op["ordinal"] for op in found[second, MSG, IN]) == list(range(n))
    # Of a thread that the system keeps from running between poll and record.
    late = rank.end["lost"].get("verbs: completion whose request is not known", 0)
    assert late < n / 10
    assert sum(rank.end["lost"].values()) == late + given_back
    if mode == "full":
        requests = {r["position"]: r["wr_id"] for r in rank.records(7) if r["queue"] == 1}
        done = [r for r in rank.records(8) if r["queue"] == 1]
        joined = [r for r in done if r["position"] != 2**32 - 1]
        assert len(requests) == len(done) == 2 * n
        assert len(joined) + late >= 2 * n and len({r["position"] for r in joined}) == len(joined)
        assert all(requests[r["position"]] == r["wr_id"] for r in joined)


def test_a_child_counts_from_zero(run) -> None:
    parent, child = run("driver", "fork", mode="full").ranks()
    for rank, count in ((parent, 8), (child, 2)):
        ops = rank.records(1)
        assert [op["ordinal"] for op in ops] == list(range(count))
        assert [op["aux"] for op in ops] == list(range(count))
        assert [r["position"] for r in rank.records(8)] == list(range(count))
        shared = [r["position"] for r in rank.records(7) if r["queue"] == 3]
        assert shared == list(range(3 if rank is parent else 1))
        polls = [(o["polls"], o["empty_polls"]) for o in rank.objects_of("ib_cq") if "polls" in o]
        assert polls == [(4, 2) if rank is parent else (2, 1)]
