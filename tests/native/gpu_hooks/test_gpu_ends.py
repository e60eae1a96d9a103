"""Queue pairs that go on where their end was expected, or end where it was not asked for."""

from __future__ import annotations

import pytest
from firmware import doorbell, write_wqe
from hooks_script import (
    DEDICATED,
    ERRNO_OF_SUCCESS,
    FIRST_QPN,
    FIRST_UMEM,
    MEMORY,
    NC,
    Hooks,
    connect,
    create,
    merged,
)


def test_a_forked_child_tells_no_totals_of_its_parents(hooks: Hooks) -> None:
    script = ["init", "uar 0", *MEMORY, create(), *connect(0, rlid=1)]
    script += [f"put 0 0 {write_wqe(0, FIRST_QPN, 9).hex()}", f"ring 0 {doorbell(1, FIRST_QPN)}"]
    ranks = hooks([*script, "fork", "destroy 0"]).ranks()
    told = [pair["slots"] for rank in ranks for pair in merged(rank, "mlx5_qp") if "slots" in pair]
    assert len(ranks) == 2 and told == [1]


def test_a_queue_pair_that_was_not_destroyed_is_followed_again(hooks: Hooks) -> None:
    script = ["init", "uar 0", *MEMORY, create(), *connect(0, rlid=1)]
    script += [f"put 0 0 {(write_wqe(0, FIRST_QPN, 1) + write_wqe(1, FIRST_QPN, 2)).hex()}"]
    script += [f"ring 0 {doorbell(2, FIRST_QPN)}", "fail 16", "destroy 0"]
    script += [f"put 0 128 {write_wqe(2, FIRST_QPN, 3).hex()}", f"ring 0 {doorbell(3, FIRST_QPN)}"]
    script += ["destroy 0"]
    result = hooks(script)
    ends = [result.answers[at] for at, line in enumerate(script) if line == "destroy 0"]
    assert [each["result"] for each in ends] == [16, 0]
    rank = result.rank()
    (pair,) = merged(rank, "mlx5_qp")
    told = ("slots", "invalid_slots", "uncopied_slots")
    assert [pair[key] for key in told] == [3, 0, 0] and "closed_tsc" in pair
    assert [op["size_bytes"] for op in rank.records(1)] == [1, 2, 3]
    assert [bell["index"] for bell in rank.records(9)] == [2, 3] and rank.end["lost"] == {}


def test_a_register_that_goes_before_its_queue_pair_begins(hooks: Hooks) -> None:
    """Of two registers of a page the last one is the likelier; the other one is rung."""
    script = ["init", f"uar {DEDICATED}", f"uar {DEDICATED}", *MEMORY, create(), "free 1"]
    script += [*connect(0, rlid=1), f"put 0 0 {write_wqe(0, FIRST_QPN, 9).hex()}"]
    rank = hooks([*script, f"ring 0 {doorbell(1, FIRST_QPN)}", "destroy 0"]).rank()
    (pair,) = merged(rank, "mlx5_qp")
    assert pair["slots"] == 1 and rank.end["lost"] == {}
    assert [op["size_bytes"] for op in rank.records(1)] == [9]


@pytest.mark.parametrize("mode", [0, 1])
def test_a_record_that_is_not_needed_says_nothing(hooks: Hooks, mode: int) -> None:
    """The one queue pair's doorbell is overwritten by the other's: its record tells of it."""
    script = ["init", f"uar {NC}", *MEMORY, *MEMORY, create(send_dbr_mode=mode)]
    script += [create(wq_umem_id=FIRST_UMEM + 2, dbr_umem_id=FIRST_UMEM + 3)]
    script += [*connect(0, rlid=1), *connect(1, rlid=1)]
    script += [f"put 0 0 {write_wqe(0, FIRST_QPN, 5).hex()}", "put 1 4 00000001"]
    script += [f"put 2 0 {write_wqe(0, FIRST_QPN + 1, 6).hex()}", "put 3 4 00000001"]
    script += [f"ring 0 {doorbell(1, FIRST_QPN + 1)}", "destroy 0", "destroy 1"]
    first, second = merged(hooks(script).rank(), "mlx5_qp")
    assert (first["slots"], second["slots"]) == (1 - mode, 1)


def test_nothing_is_stored_to_a_device_that_is_closed(hooks: Hooks) -> None:
    """Its registers are no more: the process would end."""
    script = ["init", "uar 0", *MEMORY, create(), *connect(0, rlid=1), "pair 2 33"]
    script += [f"put 0 0 {write_wqe(0, FIRST_QPN, 9).hex()}", f"store 0 {doorbell(1, FIRST_QPN)}"]
    closed = len(script)
    script += ["close", f"store 0 {doorbell(2, FIRST_QPN)}", f"pair_store 0 {doorbell(1, 33)}"]
    result = hooks([*script, "sleep 20"])
    assert result.answers[closed] == {"result": 0, "errno": ERRNO_OF_SUCCESS}
    rank = result.rank()
    assert [op["size_bytes"] for op in rank.records(1)] == [9]
    for kind, count in (("mlx5_uar", 2), ("mlx5_qp", 2), ("mlx5_umem", 2)):
        found = merged(rank, kind)
        assert len(found) == count and all("closed_tsc" in item for item in found)
    assert [pair["slots"] for pair in merged(rank, "mlx5_qp")] == [1, 0]
