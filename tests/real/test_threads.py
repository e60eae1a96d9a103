"""Endpoints and workers for several threads: the order is uncertain once two use them, not before.

The programs (ucx_threads.c, ofi_threads.c) exchange messages with themselves: ROUNDS that one
thread alone exchanges, then ROUNDS of the same thread in the company of another, which exchanges
as many of its own (`two`) or only drives progress and reads completions (`one`).
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import ofi_run
import pytest
import ucx_run

pytestmark = pytest.mark.real

ORDER_UNCERTAIN = 2
SEND, RECV = 1, 2
ROUNDS = 50


def marked(ops: list[tuple[int, int, int]]) -> Counter[Any]:
    """Operations by which (1 alone, 2 in company, 3 the other thread), op, and uncertain or not."""
    return Counter((which, op, bool(flags & ORDER_UNCERTAIN)) for which, op, flags in ops)


def wanted(company: str) -> Counter[Any]:
    told = {1: False, 2: False} if company == "one" else {1: False, 2: True, 3: True}
    return Counter(
        {(which, op, sure): ROUNDS for which, sure in told.items() for op in (SEND, RECV)}
    )


@pytest.mark.parametrize("mode", ["simple", "full"])
@pytest.mark.parametrize("company", ["one", "two"])
def test_ucx_worker(
    shim: Path, company: str, version: ucx_run.Ucx, mode: str, tmp_path: Path
) -> None:
    program = ucx_run.compiled("ucx_threads", tmp_path, "-pthread", "-lucp")
    out = tmp_path / "run"
    env = ucx_run.Setting(shim, version, mode, tls="self").environment(out)
    subprocess.run([program, company], env=env, check=True, timeout=60)
    (rank,) = ucx_run.read_all(out)
    traced = ucx_run.Traced(rank)
    traced.check_ordinals()
    assert all(op["on"]["thread_shared"] for op in traced.ops)
    ops = [(op["on"]["tag"], op["op"], op["flags"]) for op in traced.ops if op["on"]["kind"] == 2]
    assert marked(ops) == wanted(company)


@pytest.mark.parametrize("entry", ["hook", "preload"])
@pytest.mark.parametrize("company", ["one", "two"])
def test_ofi_endpoint(company: str, entry: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    program = ofi_run.compiled("ofi_threads")
    env = ofi_run.environment(entry, out, "full")
    subprocess.run([program, "tcp;ofi_rxm", company], env=env, check=True, timeout=60)
    (rank,) = ofi_run.read_all(out)
    channels = {channel["id"]: channel for channel in rank.records(2)}
    ops = [op for op in rank.records(1) if op["depth"] == 0 and op["op"] in (SEND, RECV)]
    assert all(channels[op["channel"]]["thread_shared"] for op in ops)
    assert marked([(op["size_bytes"], op["op"], op["flags"]) for op in ops]) == wanted(company)
