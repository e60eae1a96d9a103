"""The UCX layer on real communicating programs, over tcp and shared memory, without a NIC.

The own program (ucx_pair.c) and ucx_perftest say what they did; the trace must say the same.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from ucx_run import (
    HERE,
    UCP,
    UCT,
    UNKNOWN,
    Rank,
    Setting,
    Traced,
    Ucx,
    compiled,
    pair,
    perftest,
    read_all,
)

pytestmark = pytest.mark.real
N, SIZE = 40, 64
BIG = 3 << 20
# One iteration of warm-up: more of them are cut short by a time limit. It is a run of its own.
ITERATIONS, RUNS = N + 1, 2
OPTIONS = ("-n", str(N), "-w", "1")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    return compiled("ucx_pair", folder, "-Wno-deprecated-declarations", "-lucp")


def told(rank: Rank, full: bool) -> dict[object, tuple[int, int]]:
    """What the program says; probes and cancels are recorded in mode full only."""
    return {k: v for k, v in rank.told.items() if full or k[0] not in ("PROBE", "CANCEL")}


# --- the own program ----------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["ucp", "ucp,uct"])
@pytest.mark.parametrize("mode", ["simple", "full"])
@pytest.mark.parametrize("tls", ["tcp,self", "posix,self"])
def test_every_kind_of_operation(
    shim: Path, program: Path, version: Ucx, tls: str, mode: str, layers: str, tmp_path: Path
) -> None:
    setting = Setting(shim, version, mode, layers, tls)
    ranks = pair(setting, program, tmp_path)
    sent: Counter[object] = Counter()
    received: Counter[object] = Counter()
    for rank in ranks.values():
        traced = Traced(rank)
        assert traced.sums() == told(rank, mode == "full")
        traced.check_ordinals()
        assert {op["depth"] for op in traced.ops} == {0}
        assert rank.end and rank.end["reason"] == "exit" and rank.end["lost"] == {}
        out, back = traced.tag_messages()
        sent.update(out)
        received.update(back)
    assert sum(sent.values()) > 50
    assert sent == received


def test_posting_order_survives_overtaking(
    shim: Path, program: Path, version: Ucx, tmp_path: Path
) -> None:
    ranks = pair(Setting(shim, version), program, tmp_path, "inversion")
    ops = [op for op in Traced(ranks[1]).ops if op["on"]["tag"] == 0x30 and op["op"] == 2]
    assert [op["size_bytes"] for op in sorted(ops, key=lambda op: op["aux"])] == [BIG, 8]
    assert [op["size_bytes"] for op in sorted(ops, key=lambda op: op["ordinal"])] == [8, BIG]


def test_flags_and_peers(shim: Path, program: Path, version: Ucx, tmp_path: Path) -> None:
    ranks = pair(Setting(shim, version), program, tmp_path, "sync", "truncated", "am", "cancel")
    zero, one = Traced(ranks[0]), Traced(ranks[1])
    assert all(op["flags"] & 16 for op in zero.ops if op["on"]["tag"] == 0x40)
    failed = [op for op in one.ops if op["flags"] & 8]
    assert [op["on"]["tag"] for op in failed] == [0xA0, 0xA0]
    for op in one.ops:
        on = op["on"]
        if on["kind"] == 4 and on["dir"] == 2:
            reply = bool(on["flags"] & 8)
            assert reply == (on["tag"] == 6)
            assert (on["peer"] != UNKNOWN) == reply
    (uid,) = {o["uid"] for o in one.objects.values() if o["type"] == "ucp_worker"}
    assert uid in {o.get("remote_uid") for o in zero.objects.values()}


def test_shared_worker_is_said_to_be_shared(
    shim: Path, program: Path, version: Ucx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_PAIR_MULTI", "1")
    for rank in pair(Setting(shim, version, "full"), program, tmp_path).values():
        traced = Traced(rank)
        assert traced.sums() == told(rank, True)
        assert all(op["on"]["thread_shared"] == 1 for op in traced.ops)


def test_one_sided_targets_lie_in_the_peers_memory(
    shim: Path, program: Path, version: Ucx, tmp_path: Path
) -> None:
    ranks = pair(Setting(shim, version, "full"), program, tmp_path, "rma")
    window = [
        o for o in Traced(ranks[1]).objects.values() if o["type"] == "memory" and "address" in o
    ]
    targets = ranks[0].records(6)
    one_sided = [op for op in Traced(ranks[0]).ops if op["op"] in (3, 4, 5, 6)]
    assert len(targets) == len(one_sided)
    assert {t["raddr"] for t in targets} <= {o["address"] for o in window}
    rkeys = {o["id"] for o in Traced(ranks[0]).objects.values() if o["type"] == "ucp_rkey"}
    assert {t["rkey"] for t in targets} <= rkeys


def test_every_send_completes_once_in_full(
    shim: Path, program: Path, version: Ucx, tmp_path: Path
) -> None:
    """A send is complete in its call, or a completion record says when.

    Blocking and implicit ones have no request.
    """
    no_request = {"ucp_put_nbi", "ucp_put", "ucp_get_nbi", "ucp_get", "ucp_atomic_post"}
    for rank in pair(Setting(shim, version, "full"), program, tmp_path).values():
        calls = {int(number): name for number, name in rank.header["calls"].items()}
        done = Counter((c["channel"], c["ordinal"]) for c in rank.records(3) if c["op"] != 2)
        assert set(done.values()) <= {1}
        for op in Traced(rank).ops:
            if op["on"]["dir"] == 1 and not op["flags"] & 4 and calls[op["call"]] not in no_request:
                assert done.pop((op["channel"], op["ordinal"])) == 1, calls[op["call"]]


def test_aggregate_sums_equal_the_programs(
    shim: Path, program: Path, version: Ucx, tmp_path: Path
) -> None:
    for rank in pair(Setting(shim, version, "aggregate"), program, tmp_path).values():
        channels = {c["id"]: c for c in rank.records(2)}
        found: Counter[object] = Counter()
        for row in rank.records(5):
            if row["count"]:
                on = channels[row["channel"]]
                assert on["tag"] == 0
                key = row["op"], on["kind"], on["dir"]
                found[key, "count"] += row["count"]
                found[key, "bytes"] += row["size_bytes"]
        wanted: Counter[object] = Counter()
        names = ("", "SEND", "RECV", "PUT", "GET", "ATOMIC", "ATOMIC_FETCH", "FLUSH")
        kinds = ("", "MSG", "TAG", "RMA", "AM", "STREAM")
        for (op, kind, direction, _), (count, size) in told(rank, False).items():
            key = names.index(op), kinds.index(kind), 1 + (direction == "IN")
            wanted[key, "count"] += count
            wanted[key, "bytes"] += size
        assert not rank.records(1)
        assert +found == +wanted


# --- UCT below UCP ------------------------------------------------------------------------


@pytest.mark.parametrize("tls", ["tcp,self", "posix,self"])
def test_uct_bytes_agree_both_ways(
    shim: Path, program: Path, version: Ucx, tls: str, tmp_path: Path
) -> None:
    setting = Setting(shim, version, "simple", "ucp,uct", tls)
    ranks = pair(setting, program, tmp_path, "posted", "am", "stream")
    below = [Traced(ranks[i], UCT) for i in (0, 1)]
    for source, target in (below, below[::-1]):
        sent = {k[3]: v for k, v in source.sums().items() if k[:3] == ("SEND", "AM", "OUT")}
        got = {k[3]: v for k, v in target.sums().items() if k[:3] == ("RECV", "AM", "IN")}
        assert sent == got and sent
    for traced in below:
        traced.check_ordinals()
        assert min(op["depth"] for op in traced.ops) >= 1


def test_depth_in_and_below_uct(shim: Path, version: Ucx, tmp_path: Path) -> None:
    """Each piece of a message is one deeper than the operation of UCT that asks for it."""
    program = tmp_path / "ucx_pack"
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, HERE / "ucx_pack.c", "-o", program, "-lucp", "-ldl"], check=True)
    setting = Setting(shim, version, "simple", "ucp,uct", "tcp")
    done = subprocess.run(
        [program, "3", "200000"],
        env=setting.environment(tmp_path / "run") | {"UCX_RNDV_THRESH": "inf"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = [line.split() for line in done.stdout.splitlines()]
    assert {where for where, _ in told} == {"send", "progress"}
    assert {nesting for _, nesting in told} == {"2"}
    (rank,) = read_all(tmp_path / "run")
    assert {op["depth"] for op in Traced(rank, UCT).ops} == {1}
    assert {op["depth"] for op in Traced(rank, UCP).ops} == {0}


def test_uct_alone(shim: Path, program: Path, version: Ucx, tmp_path: Path) -> None:
    ranks = pair(Setting(shim, version, "simple", "uct"), program, tmp_path, "posted")
    for rank in ranks.values():
        assert not Traced(rank, UCP).ops
        assert 0 in {op["depth"] for op in Traced(rank, UCT).ops}


# --- ucx_perftest: what -n and -w say -----------------------------------------------------


def both(op: str, back: str, kind: str) -> list[dict[object, tuple[int, int]]]:
    """Each side sends and receives in every iteration."""
    return [
        {
            (op, kind, "OUT"): (ITERATIONS, ITERATIONS * SIZE),
            (back, kind, "IN"): (ITERATIONS, ITERATIONS * SIZE),
        }
    ] * 2


def one_way(version: Ucx, test: str) -> list[dict[object, tuple[int, int]]]:
    """The client works; a run of puts or atomics ends with one more, and since 1.22 each run
    with an answer (libperf's ucp_tests.cc: send_last_iter, send_ack, recv_ack)."""
    op = {"ucp_put_bw": "PUT", "ucp_get": "GET", "ucp_fadd": "ATOMIC_FETCH"}[test]
    size = 8 if test == "ucp_fadd" else SIZE
    count = ITERATIONS + (0 if test == "ucp_get" else RUNS)
    work = {(op, "RMA", "OUT"): (count, count * size)}
    if version.old:
        return [{}, work]
    answer = {(op, "RMA", "OUT"): (RUNS, RUNS * (8 if test == "ucp_fadd" else 1))}
    if test == "ucp_get":
        work |= {("PUT", "RMA", "OUT"): (RUNS, RUNS)}
    return [answer, work]


def by_kind(traced: Traced) -> dict[object, tuple[int, int]]:
    """Sums over tags, without flushes."""
    found: dict[object, tuple[int, int]] = {}
    for (op, kind, direction, _), (count, size) in traced.sums().items():
        if op != "FLUSH":
            before = found.get((op, kind, direction), (0, 0))
            found[op, kind, direction] = (before[0] + count, before[1] + size)
    return found


@pytest.mark.parametrize("tls", ["tcp,self", "posix,self"])
@pytest.mark.parametrize(
    "test", ["tag_lat", "ucp_am_lat", "stream_lat", "ucp_put_bw", "ucp_get", "ucp_fadd"]
)
def test_perftest(shim: Path, version: Ucx, test: str, tls: str, tmp_path: Path) -> None:
    size = 8 if test == "ucp_fadd" else SIZE
    setting = Setting(shim, version, tls=tls)
    ranks = perftest(setting, tmp_path, test, *OPTIONS, "-s", str(size))
    kinds = {"tag_lat": "TAG", "ucp_am_lat": "AM", "stream_lat": "STREAM"}
    wanted = both("SEND", "RECV", kinds[test]) if test in kinds else one_way(version, test)
    traced = [Traced(rank) for rank in ranks]
    assert [by_kind(t) for t in traced] == wanted
    for t in traced:
        t.check_ordinals()
    sent = traced[0].tag_messages()[0] + traced[1].tag_messages()[0]
    assert sent == traced[0].tag_messages()[1] + traced[1].tag_messages()[1]


@pytest.mark.parametrize(
    ("test", "where"),
    [("am_lat", ("-d", "lo", "-x", "tcp")), ("put_lat", ("-d", "memory", "-x", "posix"))],
)
def test_perftest_of_uct(
    shim: Path, version: Ucx, test: str, where: tuple[str, ...], tmp_path: Path
) -> None:
    setting = Setting(shim, version, layers="uct", tls="all")
    ranks = perftest(setting, tmp_path, test, *OPTIONS, "-s", str(SIZE), *where)
    put = {("PUT", "RMA", "OUT"): (ITERATIONS, ITERATIONS * SIZE)}
    wanted = both("SEND", "RECV", "AM") if test == "am_lat" else [put, put]
    assert [by_kind(Traced(rank, UCT)) for rank in ranks] == wanted


# --- no harm ------------------------------------------------------------------------------


def test_unchosen_layer_writes_nothing(
    shim: Path, program: Path, version: Ucx, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    pair(Setting(shim, version, "full", "ofi"), program, out)
    assert not out.exists() or not list(out.iterdir())


def test_plugin_loaded_locally(shim: Path, version: Ucx, tmp_path: Path) -> None:
    """UCX reached only through a library loaded RTLD_LOCAL; the exit code comes through."""
    source, plugin, main = HERE / "ucx_load.c", tmp_path / "plugin.so", tmp_path / "main"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", plugin, "-lucp"], check=True)
    subprocess.run(["cc", "-DMAIN", source, "-o", main], check=True)
    out = tmp_path / "run"
    env = Setting(shim, version, tls="self").environment(out)
    done = subprocess.run([main, plugin], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert "sigmatrace" not in done.stderr
    (rank,) = read_all(out)
    total = sum(10 + i for i in range(7))
    wanted = {("SEND", "TAG", "OUT", 3): (7, total), ("RECV", "TAG", "IN", 3): (7, total)}
    assert Traced(rank).sums() == wanted
