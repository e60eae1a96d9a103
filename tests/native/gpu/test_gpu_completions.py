"""Completions: what the NIC wrote is what the trace says, as far as it could be seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from gpu_told import Run, all_is_there

CQE = 8
AT_MOST, SEND_QUEUE, NOT_KNOWN = 128, 1, 127
SUCCESS, FLUSHED, REMOTE_ACCESS = 0, 5, 10
STATUS = {0: SUCCESS, 0x05: FLUSHED, 0x13: REMOTE_ACCESS}
VENDOR = 0x88
FAILS = 7
OPCODES = {  # of mlx5: enum ibv_wc_opcode
    **dict.fromkeys((0x01, 0x0A, 0x0B), 0),
    **dict.fromkeys((0x08, 0x09), 1),
    **{0x10: 2, 0x11: 3, 0x12: 4, 0x14: 3, 0x15: 4, 0x1B: 6},
}


@dataclass(frozen=True)
class Written:
    """One element that the NIC wrote."""

    object: int
    index: int
    opcode: int
    syndrome: int


def written(run: Run) -> list[Written]:
    lines = [line.split() for line in run.stdout.splitlines()]
    return [Written(*map(int, rest)) for what, *rest in lines if what == "cqe"]


def check(run: Run) -> dict[int, list[dict[str, Any]]]:
    """Returns the trace's completions by queue pair; each is one that the NIC wrote, in order."""
    told = {(one.object, one.index): one for one in written(run)}
    seen: dict[int, list[dict[str, Any]]] = {}
    for cqe in run.trace.records(CQE):
        one = told[cqe["object"], cqe["position"]]
        assert cqe["opcode"] == OPCODES.get(one.opcode, NOT_KNOWN)
        assert cqe["status"] == STATUS[one.syndrome]
        assert cqe["imm"] == (VENDOR << 8 | one.syndrome if one.syndrome else 0)
        assert (cqe["flags"], cqe["queue"], cqe["wr_id"], cqe["size_bytes"]) == (
            *(AT_MOST, SEND_QUEUE, 0),
            0,
        )
        before = seen.setdefault(cqe["object"], [])
        assert cqe["first"] == (before[-1]["position"] + 1 if before else 0)
        assert cqe["first"] <= cqe["position"]
        assert cqe["posted_tsc"] in (0, rung(run, cqe["object"], cqe["position"]))
        assert cqe["posted_tsc"] < cqe["t_tsc"]
        before.append(cqe)
    return seen


def rung(run: Run, object_: int, index: int) -> int:
    """When the doorbell that announced an index was seen."""
    doorbells = run.doorbells()[object_]
    t_tsc: int = next(d["t_tsc"] for d in doorbells if d["index"] > index)
    return t_tsc


def last(run: Run) -> dict[int, int]:
    """The index of the last element of each queue pair."""
    return {one.object: one.index for one in written(run)}


@pytest.mark.parametrize("where", [0, 2], ids=["host", "gpu"])
@pytest.mark.parametrize("long", [0, 2], ids=["64 bytes", "128 bytes"])
@pytest.mark.parametrize("collapsed", [0, 1], ids=["ring", "collapsed"])
def test_each_completion_that_is_waited_for(repeat, collapsed: int, long: int, where: int) -> None:
    run = repeat("complete", 64, 80, 4, collapsed, 1 + long, where)
    all_is_there(run)
    ((object_, cqes),) = check(run).items()
    assert [cqe["position"] for cqe in cqes] == [one.index for one in written(run)]
    assert all(cqe["posted_tsc"] for cqe in cqes)
    assert len(cqes) == 40 and list(run.totals) == [object_]


@pytest.mark.parametrize("where", [0, 2], ids=["host", "gpu"])
@pytest.mark.parametrize("log_size", [5, 7])
@pytest.mark.parametrize("collapsed", [0, 1], ids=["ring", "collapsed"])
def test_the_last_completion_is_seen(repeat, collapsed: int, log_size: int, where: int) -> None:
    run = repeat("complete", 128, 3000, log_size, collapsed, 0, where)
    seen = check(run)
    assert {object_: cqes[-1]["position"] for object_, cqes in seen.items()} == last(run)
    assert run.lost() == {}


def test_the_index_wraps_at_65536(repeat) -> None:
    run = repeat("complete", 1024, 56_000, 6, 1, 0)
    ((object_, cqes),) = check(run).items()
    assert cqes[-1]["position"] == last(run)[object_] > 66_000


@pytest.mark.parametrize("collapsed", [0, 1], ids=["ring", "collapsed"])
def test_errors(repeat, collapsed: int) -> None:
    run = repeat("failing", collapsed)
    ((object_, cqes),) = check(run).items()
    status = {cqe["position"]: cqe["status"] for cqe in cqes}
    fails_at = run.posted[FAILS].index
    assert status[fails_at] == REMOTE_ACCESS
    assert cqes[-1]["position"] == last(run)[object_] == run.posted[-1].index
    assert {s for position, s in status.items() if position > fails_at} == {FLUSHED}
    assert {s for position, s in status.items() if position < fails_at} <= {SUCCESS}
    assert run.lost() == {}


@pytest.mark.parametrize("collapsed", [0, 1], ids=["ring", "collapsed"])
def test_an_error_of_a_request_that_asks_for_no_completion(repeat, collapsed: int) -> None:
    run = repeat("silent", collapsed)
    ((_, cqes),) = check(run).items()
    assert [one.signaled for one in run.posted] == [1, 0]
    assert [cqe["status"] for cqe in cqes] == [SUCCESS, REMOTE_ACCESS]


def test_two_queue_pairs_of_one_ring(repeat) -> None:
    run = repeat("together", 0)
    seen = check(run)
    assert {object_: cqes[-1]["position"] for object_, cqes in seen.items()} == last(run)
    assert run.lost() == {}


def test_two_queue_pairs_of_one_element(repeat) -> None:
    """What the other one has overwritten cannot be seen, and is not made up."""
    run = repeat("together", 1)
    seen = check(run)
    _, second = sorted(run.totals)
    assert seen[second][-1]["position"] == last(run)[second]


@pytest.mark.parametrize(("collapsed", "cleaned"), [(0, 0), (1, 1)])
def test_lives_of_a_queue_pair(repeat, collapsed: int, cleaned: int) -> None:
    """The last life completes nothing, though what the one before it left has its index."""
    run = repeat("cq-again", collapsed, cleaned, 8)
    seen = check(run)
    assert len(run.by_pair()) == 9
    assert sorted(seen) == sorted(run.by_pair())[:8]
    assert [[cqe["position"] for cqe in cqes] for cqes in seen.values()] == [[0]] * 8
    assert run.lost() == {}


def test_what_a_former_life_left_is_not_taken(repeat) -> None:
    run = repeat("cq-again", 1, 0, 8)
    assert len(run.by_pair()) == 9
    assert sorted(check(run)) == sorted(run.by_pair())[:1]


@pytest.mark.parametrize("collapsed", [0, 1], ids=["ring", "collapsed"])
def test_elements_that_fit_nothing(repeat, collapsed: int) -> None:
    run = repeat("strays", collapsed)
    ((_, cqes),) = check(run).items()
    assert [cqe["position"] for cqe in cqes] == [1]
    stray = "gpu: completion that fits no request"
    assert run.lost() == ({} if collapsed else {stray: 4})


def test_what_stands_is_looked_at_once_a_millisecond(repeat) -> None:
    run = repeat("cq-stands")
    ((took_ms, rounds),) = (
        map(int, line.split()[1:]) for line in run.stdout.splitlines() if line.startswith("stood")
    )
    assert took_ms >= 39 and 39 <= rounds <= 42
    assert check(run) == {}


def test_queues_that_lie_side_by_side_are_read_in_one_copy(repeat) -> None:
    run = repeat("beside")
    (copies,) = (int(line.split()[1]) for line in run.stdout.splitlines() if "copied" in line)
    assert 19 <= copies <= 22
    seen = check(run)
    assert {object_: cqes[-1]["position"] for object_, cqes in seen.items()} == last(run)
    assert len(seen) == 8


def test_a_queue_that_goes_is_not_read(repeat) -> None:
    run = repeat("gone")
    assert not run.trace.records(CQE)
    assert run.lost() == {}


def test_the_end_of_the_process(repeat) -> None:
    run = repeat("stays")
    ((object_, cqes),) = check(run).items()
    assert cqes[-1]["position"] == last(run)[object_] == 8


@pytest.mark.parametrize("mode", ["simple", "aggregate"])
def test_other_modes_look_at_none(repeat, mode: str) -> None:
    run = repeat("complete", 64, 100, 4, 1, 0, mode=mode)
    assert not run.trace.records(CQE) and run.lost() == {}
