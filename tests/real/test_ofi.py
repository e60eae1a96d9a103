"""The libfabric layer under real programs, judged by what the programs themselves print."""

from __future__ import annotations

import errno
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from ofi_run import (
    Pair,
    Rank,
    bundled_libfabric,
    compiled,
    environment,
    read_all,
    run_pair,
    run_pingpong,
)

from sigmatrace import api
from sigmatrace.schema import Fate

pytestmark = pytest.mark.real

SEND, RECV, PUT, GET, ATOMIC, FETCH = range(1, 7)
PUT_DATA = 10
MSG, TAG, RMA = 1, 2, 3
HAS_TAG, HAS_DATA, TAG_UNKNOWN = 1, 2, 16
SIZE_UNKNOWN, ORDER_UNCERTAIN, INLINE, NESTED = 1, 2, 4, 32
NOWHERE = 2**64 - 1
BELOW = RECV, Fate.PEER_UNKNOWN  # one of several connections, which nothing tells
ONE_SIDED = {"P": PUT, "D": PUT_DATA, "G": GET, "A": ATOMIC, "F": FETCH}
CANCELLED = 12  # posting order of the receive that ofi_pair takes back
WITHOUT_CONTEXT = range(6, 12)  # of those that it posts with a NULL context
INJECTED = {"fi_inject", "fi_tinject", "fi_injectdata", "fi_inject_write", "fi_inject_writedata"}

Record = dict[str, Any]


def operations(rank: Rank, depth: int = 0) -> list[Record]:
    """Operation records of a depth with their channel, in channel and ordinal order."""
    channels = {channel["id"]: channel for channel in rank.records(2)}
    calls = {int(number): name for number, name in rank.header["calls"].items()}
    found = [
        op | {"ch": channels[op["channel"]], "api": calls[op["call"]]}
        for op in rank.records(1)
        if op["depth"] == depth
    ]
    return sorted(found, key=lambda op: (op["channel"], op["ordinal"]))


def endpoint(rank: Rank, depth: int = 0) -> Record:
    """The merged items of the only endpoint of a depth."""
    merged: dict[int, Record] = defaultdict(dict)
    for item in rank.objects_of("ofi_endpoint"):
        merged[item["id"]].update(item)
    (found,) = [item for item in merged.values() if item["depth"] == depth]
    return found


def numbers(text: str) -> tuple[bool, int]:
    """A hex field of ofi_pair: is it there, and its value."""
    return text != "-", 0 if text == "-" else int(text, 16)


def expect_dense_ordinals(rank: Rank) -> None:
    taken = defaultdict(list)
    for op in rank.records(1):
        taken[op["channel"]].append(op["ordinal"])
    for ordinals in taken.values():
        assert sorted(ordinals) == list(range(len(ordinals)))


def expect_sends(pair: Pair) -> None:
    """Every S, P, D, G, A and F line is one record, in its place in its channel."""
    told = defaultdict(list)
    for line in pair.first:
        if line[0] == "S":
            kind = TAG if line[1] == "tag" else MSG
            told[kind, numbers(line[2]), numbers(line[3])].append((SEND, int(line[4])))
        elif line[0] in ONE_SIDED:
            op = ONE_SIDED[line[0]]
            data = (True, numbers(line[4])[1]) if op == PUT_DATA else (False, 0)
            told[RMA, (False, 0), data].append((op, int(line[1])))
    seen = defaultdict(list)
    for op in operations(pair.sender()):
        ch = op["ch"]
        assert ch["peer"] == 0 and ch["dir"] == 1 and ch["layer"] == 1
        assert bool(op["flags"] & INLINE) == (op["api"] in INJECTED)
        tag = bool(ch["flags"] & HAS_TAG), ch["tag"]
        data = bool(ch["flags"] & HAS_DATA), ch["data"]
        seen[ch["kind"], tag, data].append((op["op"], op["size_bytes"]))
    assert seen == told


def expect_arrivals(pair: Pair) -> None:
    """Every R line is one record; posting order puts the sizes into the order of sending."""
    told = Counter()
    for line in pair.second:
        if line[0] == "R" and line[4] != "-":
            told[numbers(line[2])[1], int(line[3]), int(line[4])] += 1
    arrivals = [op for op in operations(pair.receiver()) if op["op"] == RECV]
    ordered = [op for op in arrivals if op["ch"]["kind"] == TAG]
    assert Counter((op["ch"]["tag"], op["size_bytes"], op["aux"]) for op in ordered) == told
    unordered = [op for op in arrivals if op["ch"]["kind"] == MSG]
    assert sorted(op["aux"] for op in unordered) == list(WITHOUT_CONTEXT)
    assert all(op["flags"] == ORDER_UNCERTAIN for op in unordered)
    sizes = Counter(op["size_bytes"] for op in unordered)
    assert sizes == Counter(int(line[3]) for line in pair.second if line[:2] == ["R", "msg"])
    assert CANCELLED not in {op["aux"] for op in arrivals}
    for tag in (7, 0x200):
        mine = [op for op in ordered if op["ch"]["tag"] == tag]
        sent = [int(line[4]) for line in pair.first if line[:3] == ["S", "tag", f"{tag:x}"]]
        assert [op["size_bytes"] for op in sorted(mine, key=lambda op: op["aux"])] == sent


def expect_sources(pair: Pair) -> None:
    """The peer of an arrival is told where the program knew it, and never beside data."""
    for op in operations(pair.receiver()):
        directed = op["ch"]["tag"] in (9, 0x200)
        assert op["ch"]["peer"] == (0 if directed else NOWHERE)
        if op["ch"]["kind"] == RMA:
            assert op["flags"] == SIZE_UNKNOWN and op["ch"]["flags"] == HAS_DATA


def expect_objects(pair: Pair, how: str) -> None:
    """Names, addresses and memory: equal bytes at both ends."""
    sender, receiver = pair.sender(), pair.receiver()
    for rank, other in ((sender, receiver), (receiver, sender)):
        (library,) = rank.objects_of("library")
        assert library["name"] == "libfabric" and library["how"] == how
        assert "libfabric" in library["path"] and library["version"][:1] in "12"
        here, there = endpoint(rank), endpoint(other)
        assert here["ep_type"] == "rdm" and "tcp" in here["prov"] and "closed_tsc" in here
        (address,) = rank.objects_of("ofi_address")
        assert address["address"] == there["local"] and address["addr"] == 0
        assert address["av"] == here["av"] == rank.objects_of("ofi_av")[0]["id"]
        (memory,) = rank.objects_of("memory")
        assert (memory["layer"], memory["key"], memory["length_bytes"]) == ("ofi", 17, 4096)


def expect_completions(pair: Pair, mode: str) -> None:
    """In full: one completion and one target for each operation that has one; else none."""
    rank = pair.sender()
    done = [c for c in rank.records(3) if c["depth"] == 0]
    if mode != "full":
        assert not rank.records(3) and not rank.records(6)
        return
    ops = operations(rank)
    with_context = {(op["channel"], op["ordinal"]) for op in ops if op["api"] not in INJECTED}
    assert Counter((c["channel"], c["ordinal"]) for c in done) == Counter(with_context)
    assert all(c["status"] == 0 and c["flags"] == 0 for c in done)
    places = {(op["channel"], op["ordinal"]) for op in ops}
    targets = [t for t in rank.records(6) if (t["channel"], t["ordinal"]) in places]
    lines = [line for line in pair.first if line[0] in ONE_SIDED]
    told = [tuple(numbers(x)[1] for x in line[2:4]) for line in lines]
    assert [(t["raddr"], t["rkey"]) for t in targets] == told
    assert all(op["aux"] > 0 for op in ops)


def expect_pair(pair: Pair, mode: str, how: str) -> None:
    assert len(pair.ranks) == 2
    assert int(pair.first[-1][1]) > 0, "no send would have blocked: that is not tried then"
    for rank in pair.ranks:
        assert rank.end is not None and rank.end["lost"] == {} and rank.bad_bytes == 0
        expect_dense_ordinals(rank)
    expect_sends(pair)
    expect_arrivals(pair)
    expect_sources(pair)
    expect_objects(pair, how)
    expect_completions(pair, mode)


@pytest.mark.parametrize(
    ("entry", "mode"),
    [("hook", "full"), ("hook", "simple"), ("preload", "simple"), ("both", "full")],
)
def test_pair_with_a_queue_that_tells_all(entry: str, mode: str, tmp_path: Path) -> None:
    env = environment(entry, tmp_path / "run", mode)
    pair = run_pair(tmp_path, env, "tcp;ofi_rxm", "tagged")
    expect_pair(pair, mode, "symbol" if entry == "preload" else "hook")


@pytest.mark.parametrize("entry", ["hook", "preload"])
def test_pair_with_the_newer_libfabric(entry: str, tmp_path: Path) -> None:
    folder = bundled_libfabric()
    env = environment(entry, tmp_path / "run", "full") | {"LD_LIBRARY_PATH": str(folder)}
    pair = run_pair(tmp_path, env, "tcp", "tagged")
    expect_pair(pair, "full", "symbol" if entry == "preload" else "hook")
    assert str(folder) in pair.sender().objects_of("library")[0]["path"]


@pytest.mark.parametrize(
    ("entry", "flag"), [("hook", "local"), ("preload", "local"), ("hook", "deepbind")]
)
def test_pair_as_a_plugin(entry: str, flag: str, tmp_path: Path) -> None:
    command = [str(compiled("ofi_load")), flag, str(compiled("ofi_pair", shared=True))]
    env = environment(entry, tmp_path / "run", "simple")
    pair = run_pair(tmp_path, env, "tcp;ofi_rxm", "tagged", command)
    expect_pair(pair, "simple", "symbol" if entry == "preload" else "hook")


@pytest.mark.parametrize(("entry", "mode"), [("hook", "simple"), ("preload", "full")])
def test_pair_with_a_queue_of_contexts_alone(entry: str, mode: str, tmp_path: Path) -> None:
    env = environment(entry, tmp_path / "run", mode)
    pair = run_pair(tmp_path, env, "tcp;ofi_rxm", "context")
    expect_sends(pair)
    expect_completions(pair, mode)
    arrivals = [op for op in operations(pair.receiver()) if op["op"] == RECV]
    told = [int(line[4]) for line in pair.second if line[0] == "R"]
    assert sorted(op["aux"] for op in arrivals) == sorted(told)
    assert all(op["flags"] == SIZE_UNKNOWN and op["size_bytes"] == 0 for op in arrivals)
    wild = [op for op in arrivals if op["ch"]["flags"] & TAG_UNKNOWN]
    assert [op["aux"] for op in wild] == [3, 4]  # the two receives that take any tag
    exact = Counter(op["ch"]["tag"] for op in arrivals if op["ch"]["flags"] & HAS_TAG)
    sent = Counter(int(line[2], 16) for line in pair.first if line[:2] == ["S", "tag"])
    assert exact == Counter({tag: n for tag, n in sent.items() if tag not in (0x100, 0x101)})
    # The write that carried data has a context that nobody posted: counted, not guessed.
    unknown = sum(line[0] == "W" for line in pair.second)
    assert pair.receiver().end["lost"] == {"completion whose operation is unknown": unknown}


@pytest.mark.parametrize("entry", ["hook", "preload"])
def test_aggregate_counts_operations_and_bytes(entry: str, tmp_path: Path) -> None:
    env = environment(entry, tmp_path / "run", "aggregate")
    pair = run_pair(tmp_path, env, "tcp;ofi_rxm", "tagged")

    def totals(rank: Rank) -> Counter[tuple[int, str]]:
        sums: Counter[tuple[int, str]] = Counter()
        for row in rank.records(5):
            if row["count"] and row["depth"] == 0:
                sums[row["op"], "n"] += row["count"]
                sums[row["op"], "bytes"] += row["size_bytes"]
        return sums

    told: Counter[tuple[int, str]] = Counter()
    for line in pair.first:
        if line[0] in "SPDGAF":
            op = SEND if line[0] == "S" else ONE_SIDED[line[0]]
            told[op, "n"] += 1
            told[op, "bytes"] += int(line[4] if line[0] == "S" else line[1])
    assert totals(pair.sender()) == told
    arrived = totals(pair.receiver())
    assert arrived[RECV, "n"] == sum(line[0] in "RW" for line in pair.second)
    assert arrived[RECV, "bytes"] == told[SEND, "bytes"]
    for rank in pair.ranks:
        assert not rank.records(1) and all(ch["tag"] == 0 for ch in rank.records(2))


def test_nested_layers_are_told_apart(tmp_path: Path) -> None:
    env = environment("hook", tmp_path / "run", "simple")
    pair = run_pair(tmp_path, env, "tcp;ofi_rxm", "tagged")
    for rank in pair.ranks:
        inner = [item for item in rank.objects_of("ofi_endpoint") if item.get("depth")]
        assert inner and all(item["prov"] == "tcp" for item in inner)
        ids = {item["id"] for item in inner}
        assert {op["ch"]["object"] for op in operations(rank, depth=1)} <= ids
        assert not ids & {op["ch"]["object"] for op in operations(rank)}
        assert all(bool(op["flags"] & NESTED) == (op["depth"] > 0) for op in rank.records(1))


@pytest.mark.parametrize("depth", [0, 1])
def test_both_ends_of_writes_with_data_are_matched(depth: int, tmp_path: Path) -> None:
    env = environment("hook", tmp_path / "run", "simple")
    pair = run_pair(tmp_path, env, "tcp;ofi_rxm", "tagged")
    result = api.run(tmp_path / "run", export=["parquet"], out=tmp_path / "out")
    parquet = result.out / "parquet"
    flows = duckdb.sql(
        f"""select c.data, o.op, o.flow from '{parquet}/ops/*.parquet' o
        join '{parquet}/channels.parquet' c using (channel)
        where c.kind = {RMA} and o.op in ({PUT_DATA}, {RECV}) and o.depth = {depth}"""
    ).fetchall()
    sent = Counter(line[4] for line in pair.first if line[0] == "D")
    seen = Counter(line[1] for line in pair.second if line[0] == "W")
    assert sent == seen == Counter({"77": 2, "78": 1})
    for op in (PUT_DATA, RECV):
        assert Counter(f"{data:x}" for data, which, _ in flows if which == op) == sent
    matched = Counter(flow for _, _, flow in flows)
    assert 0 not in matched and set(matched.values()) == {2}


def test_messages_of_the_provider_below_have_their_other_end_or_a_reason(tmp_path: Path) -> None:
    command = [str(compiled("ofi_self")), "tcp;ofi_rxm"]
    env = environment("hook", tmp_path / "run", "simple")
    subprocess.run(command, env=env, check=True, timeout=90)
    result = api.run(tmp_path / "run", export=["parquet"], out=tmp_path / "out")
    ops = duckdb.sql(
        f"""select depth, op, fate, flow, size_bytes
        from '{result.out}/parquet/ops/*.parquet' where op in ({SEND}, {RECV})"""
    ).fetchall()
    sizes = [*range(1, 13), *range(50, 54), *range(70, 74)]
    for op in (SEND, RECV):
        assert sorted(row[4] for row in ops if row[:2] == (0, op)) == sizes
        assert sum(row[:2] == (1, op) for row in ops) >= len(sizes)
    pairs = defaultdict(list)
    for depth, op, fate, flow, size in ops:
        if flow:
            pairs[flow].append((depth, op, size))
        else:
            assert depth == 1 and (fate == Fate.TAG_UNKNOWN or (op, fate) == BELOW)
    for first, second in pairs.values():
        assert {first[1], second[1]} == {SEND, RECV}
        assert (first[0], first[2]) == (second[0], second[2])
    assert sum(pair[0][0] == 1 for pair in pairs.values()) >= 4


def test_an_unchosen_layer_writes_nothing(tmp_path: Path) -> None:
    plain = run_pair(tmp_path, environment("none", tmp_path, "full"), "tcp;ofi_rxm", "tagged")
    out = tmp_path / "run"
    out.mkdir()
    env = environment("both", out, "full", layers="ucp,uct")
    traced = run_pair(tmp_path, env, "tcp;ofi_rxm", "tagged")
    assert list(out.iterdir()) == []

    def unhurried(lines: list[list[str]]) -> Iterator[list[str]]:
        return (line for line in lines if line[0] != "E")

    assert list(unhurried(traced.first)) == list(unhurried(plain.first))
    assert sorted(traced.second) == sorted(plain.second)


PINGPONGS = [
    ("tcp", "msg", ["-d", "lo"]),
    ("tcp;ofi_rxm", "rdm", ["-d", "lo"]),
    ("net", "rdm", ["-d", "lo"]),
    ("udp", "dgram", ["-d", "lo"]),
    ("shm", "rdm", []),
]


@pytest.mark.parametrize("entry", ["hook", "preload"])
@pytest.mark.parametrize(("provider", "ep_type", "more"), PINGPONGS)
def test_pingpong(provider: str, ep_type: str, more: list[str], entry: str, tmp_path: Path) -> None:
    env = environment(entry, tmp_path, "full")
    results = run_pingpong(env, provider, ep_type, 20, 1024, *more)
    for code, output in results:
        assert code == 0, output
        assert output.splitlines()[1].split()[:3] == ["1k", "20", "=20"]
    first, second = ranks = read_all(tmp_path)
    for rank, other in ((first, second), (second, first)):
        assert rank.end is not None and rank.end["lost"] == {}
        expect_dense_ordinals(rank)
        sends = [op for op in operations(rank) if op["op"] == SEND]
        arrivals = [op for op in operations(other) if op["op"] == RECV]
        assert sum(op["size_bytes"] == 1024 for op in sends) == 20
        assert len(sends) == len(arrivals)
        here, there = endpoint(rank), endpoint(other)
        assert (here["ep_type"], here["prov"]) == (ep_type, provider)
        if ep_type == "msg":
            assert here["local"] == there["peer"]
        else:
            (address,) = rank.objects_of("ofi_address")
            assert address["address"] == there["local"]
    # On one host a message is seen after its sending began.
    for rank, other in (ranks, ranks[::-1]):
        began = [op["t_tsc"] for op in operations(rank) if op["op"] == SEND]
        seen = [op["t_tsc"] for op in operations(other) if op["op"] == RECV]
        assert all(b < s for b, s in zip(sorted(began), sorted(seen), strict=True))


@pytest.mark.parametrize("entry", ["hook", "preload"])
def test_a_failing_program_fails_as_before(entry: str, tmp_path: Path) -> None:
    told = [
        run_pingpong(environment(how, tmp_path, "simple"), "no such provider", "rdm", 1, 1)
        for how in ("none", entry)
    ]
    assert told[0] == told[1] and told[0][0][0] != 0


@pytest.mark.parametrize("libfabric", ["debian", "bundled"])
@pytest.mark.parametrize("entry", ["hook", "preload"])
def test_an_error_of_an_event_queue_arrives_as_before(
    entry: str, libfabric: str, tmp_path: Path
) -> None:
    """The library reads it with its own event queue's `read`, without a place for the event."""
    more = {"LD_LIBRARY_PATH": str(bundled_libfabric())} if libfabric == "bundled" else {}
    program = [compiled("ofi_refused"), "tcp"]
    env = environment(entry, tmp_path / "run", "full") | more
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{errno.ECONNREFUSED} 1\n"
    (rank,) = read_all(tmp_path / "run")
    assert rank.end["lost"] == {} and endpoint(rank)["prov"] == "tcp"
