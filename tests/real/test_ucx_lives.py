"""Lives of UCX endpoints and workers, signal handlers, and a file that may not grow.

The programs (ucx_lives.c, ucx_signals.c) say what they sent; trace and pipeline must say the same.
"""

from __future__ import annotations

import resource
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ucx_run import UNKNOWN, Setting, Traced, Ucx, compiled, read_all

from sigmatrace import api

pytestmark = pytest.mark.real
ORDER_UNCERTAIN = 2
SEND, RECV = 1, 2
PEERS, ROUNDS, MESSAGES = 5, 3, 4
OPTIONS = ("-pthread", "-lucp", "-lucs")


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("ucx_lives", tmp_path_factory.mktemp("lives"), *OPTIONS)


def run(setting: Setting, out: Path, *command: object, **options: Any) -> str:
    """Runs a program; what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        env=setting.environment(out),
        capture_output=True,
        text=True,
        timeout=100,
        **options,
    )
    assert done.returncode == 0, done.stderr
    printed: str = done.stdout
    return printed


def told(printed: str) -> dict[int, int]:
    """Messages by process."""
    lines = [line.split() for line in printed.splitlines()]
    return {int(line[0]): int(line[1]) for line in lines if len(line) == 2 and line[0].isdigit()}


def sent_by(result: api.Result) -> dict[int, int]:
    """Messages matched by sending process; every send and receive must be."""
    match = result.ledger["stages"]["match"]
    assert match["sends"] == match["receives"] == match["sends_matched"]
    assert result.ledger["balanced"]
    pids = result.tables["processes"].column("pid").to_pylist()
    found: Counter[int] = Counter()
    for row in result.tables["messages"].to_pylist():
        assert row["sent"] == row["received"] == row["matched"]
        found[pids[row["src_proc"]]] += row["matched"]
    return dict(found)


def matched(out: Path) -> dict[int, int]:
    result = api.run(out, export=["json"], out=out.parent / "out", strict=True)
    return sent_by(result)


def sends(out: Path) -> list[dict[str, Any]]:
    """Sends of the only process, by channel and ordinal."""
    (rank,) = read_all(out)
    assert rank.end and rank.end["lost"] == {}
    traced = Traced(rank)
    traced.check_ordinals()
    ops = [op for op in traced.ops if op["op"] == SEND]
    return sorted(ops, key=lambda op: (op["channel"], op["ordinal"]))


# --- endpoints ----------------------------------------------------------------------------


@pytest.mark.parametrize("tls", ["tcp,self", "posix,self"])
def test_endpoint_made_again_goes_on(
    shim: Path, lives: Path, version: Ucx, tls: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = told(run(Setting(shim, version, tls=tls), out, lives, "again"))
    assert said == matched(out)
    ops = sends(out)
    assert len(ops) == sum(said.values()) == PEERS * ROUNDS * MESSAGES
    assert len({op["channel"] for op in ops}) == PEERS
    assert not any(op["flags"] & ORDER_UNCERTAIN for op in ops)


def test_endpoints_open_at_once_are_marked(
    shim: Path, lives: Path, version: Ucx, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert told(run(Setting(shim, version), out, lives, "at_once")) == matched(out)
    marked = [(op["size_bytes"], bool(op["flags"] & ORDER_UNCERTAIN)) for op in sends(out)]
    assert marked == [(1, False)] + [(2, True)] * MESSAGES


def test_after_a_close_by_force_nothing_is_sure(
    shim: Path, lives: Path, version: Ucx, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert told(run(Setting(shim, version), out, lives, "force")) == matched(out)
    for op in sends(out):
        assert bool(op["flags"] & ORDER_UNCERTAIN) == (op["ordinal"] >= MESSAGES)


def test_endpoint_whose_close_is_refused_goes_on(
    shim: Path, lives: Path, version: Ucx, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert told(run(Setting(shim, version), out, lives, "refused")) == matched(out)
    ops = sends(out)
    assert len({op["channel"] for op in ops}) == 1
    assert not any(op["flags"] & ORDER_UNCERTAIN for op in ops)


def test_active_messages_of_an_endpoint_made_again(
    shim: Path, lives: Path, version: Ucx, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert told(run(Setting(shim, version), out, lives, "reply")) == matched(out)
    assert len({op["channel"] for op in sends(out)}) == 1


def test_endpoint_left_open_is_not_taken_for_the_next_workers(
    shim: Path, lives: Path, version: Ucx, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    said = told(run(Setting(shim, version), out, lives, "left"))
    assert sorted(said.values()) == [5, 7]
    assert said == matched(out)
    (server,) = [rank for rank in read_all(out) if rank.header["pid"] not in said]
    objects = Traced(server).objects
    for op in Traced(server).ops:
        peer = op["on"]["peer"]
        assert peer == UNKNOWN or objects[peer]["worker"] == op["on"]["object"]
    assert all("closed_tsc" in one for one in objects.values() if one["type"] == "ucp_ep")


def test_workers_of_many_threads(shim: Path, lives: Path, version: Ucx, tmp_path: Path) -> None:
    """An address that one thread gives back is another thread's at once."""
    out = tmp_path / "run"
    assert told(run(Setting(shim, version), out, lives, "workers")) == matched(out)
    assert len({op["on"]["object"] for op in sends(out)}) == 4 * ROUNDS


# --- what may not be lost unsaid ----------------------------------------------------------


@pytest.mark.parametrize("mode", ["simple", "full"])
def test_operations_after_a_failure_are_counted(
    shim: Path, lives: Path, version: Ucx, mode: str, tmp_path: Path
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))

    out = tmp_path / "run"
    setting = Setting(shim, version, mode, tls="self")
    said = told(run(setting, out, lives, "many", preexec_fn=limit))
    result = api.run(out, export=["json"], out=tmp_path / "out")
    ((_, count),) = said.items()
    ops = result.ledger["records"]["op"]
    lost = sum(result.ledger["capture"]["lost_at_capture"].values())
    assert ops["surplus"] == ops["missing"] == 0 < ops["recovered"] < ops["read"]
    assert ops["read"] + ops["dropped"] + lost == 2 * count
    assert result.ledger["balanced"] and not result.ledger["lossless"]
    assert f"recovered  {ops['recovered']:,} op records".replace(",", " ") in result.text()


@pytest.mark.parametrize("mode", ["simple", "full"])
def test_signal_handlers_may_use_ucx(shim: Path, version: Ucx, mode: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    program = compiled("ucx_signals", tmp_path, *OPTIONS)
    printed = run(Setting(shim, version, mode, tls="self"), out, program, 100000)
    main, handler, wrong = map(int, printed.split())
    assert handler > 50 and not wrong
    (rank,) = read_all(out)
    assert rank.end
    dropped = rank.end["schemas"]["1"]["dropped"]
    ops = Traced(rank).ops
    assert len(ops) + dropped == 2 * (main + handler)
    assert {op["depth"] for op in ops} == {0}
    by_tag = Counter(op["on"]["tag"] for op in ops)
    assert by_tag[5] == 2 * main and by_tag[6] == 2 * handler - dropped
