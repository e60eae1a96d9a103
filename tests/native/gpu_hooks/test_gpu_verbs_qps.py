"""Queue pairs that libmlx5 makes: their rings are read, and those of DC are known."""

from __future__ import annotations

from typing import Any

import pytest
from firmware import doorbell, send_wqe, write_wqe
from hooks_script import FIRST_QPN, MEMORY, WAYS, Hooks, connect, create, merged

RC, UC, UD, XRC_SEND = 2, 3, 4, 9
DCT, DCI = 1, 2
RTR = 2
OPERATION, CHANNEL, DOORBELL, SLOT = 1, 2, 9, 10
SYNTHESIZED, NOT_READ = 1, 64
NO_NUMBER = "gpu: DC target whose number was never seen"


def sizes_by_queue_pair(rank: Any) -> dict[int, list[int]]:
    """Sizes of the operations of each `mlx5_qp` object."""
    by_channel = {item["id"]: item["object"] for item in rank.records(CHANNEL)}
    found: dict[int, list[int]] = {pair["id"]: [] for pair in merged(rank, "mlx5_qp")}
    for op in rank.records(OPERATION):
        found[by_channel[op["channel"]]].append(op["size_bytes"])
    return found


@pytest.mark.parametrize("kind", [RC, UC])
@pytest.mark.parametrize(("how", "nodes"), WAYS)
def test_ring_is_read(hooks: Hooks, how: str, nodes: bool, kind: int) -> None:
    wqes = write_wqe(0, 33, 100) + write_wqe(1, 33, 28)
    bell = doorbell(2, 33)
    script = ["init", f"pair {kind} 33", f"pair_put 0 0 {wqes.hex()}", f"pair_ring 0 {bell}"]
    result = hooks(script, how=how, nodes=nodes)
    assert result.answers[-1] == 1, "the doorbell arrived"
    rank = result.rank()
    (pair,) = merged(rank, "mlx5_qp")
    assert sizes_by_queue_pair(rank) == {pair["id"]: [100, 28]}
    assert (pair["qpn"], pair["log_sq_size"]) == (33, 7)
    assert [slot["index"] for slot in rank.records(SLOT)] == [0, 1]


def test_datagrams_name_their_peers(hooks: Hooks) -> None:
    script = ["init", f"pair {UD} 34", f"pair_put 0 0 {send_wqe(0, 34, 77, 0x999, 0x42).hex()}"]
    rank = hooks([*script, f"pair_ring 0 {doorbell(2, 34)}"]).rank()
    (pair,), (vector,) = merged(rank, "mlx5_qp"), merged(rank, "mlx5_av")
    assert (pair["qp_type"], pair["slid"]) == ("ud", 0x31)
    assert vector["dlid"] == 0x42 and vector["prefix"] == pair["prefix"]
    (channel,) = rank.records(CHANNEL)
    assert channel["peer"] == vector["id"] | 0x999 << 32
    assert sizes_by_queue_pair(rank) == {pair["id"]: [77]}


def test_a_queue_pair_whose_wqes_are_others_has_doorbells_alone(hooks: Hooks) -> None:
    script = ["init", f"pair {XRC_SEND} 35", f"pair_put 0 0 {write_wqe(0, 35, 9).hex()}"]
    rank = hooks([*script, f"pair_ring 0 {doorbell(1, 35)}"]).rank()
    (bell,) = rank.records(DOORBELL)
    assert bell["flags"] & NOT_READ and bell["slots"] == 1
    assert not rank.records(OPERATION) and not rank.records(SLOT)


def test_two_on_one_register_are_told_apart(hooks: Hooks) -> None:
    """The first one's doorbell is overwritten by the other's: its record alone tells of it."""
    first, second = doorbell(3, 40), doorbell(1, 41)
    wqes = b"".join(write_wqe(index, 40, 10 + index) for index in range(3))
    script = ["init", f"pair {RC} 40", f"pair {RC} 41"]
    script += [f"pair_put 0 0 {wqes.hex()}", f"pair_put 1 0 {write_wqe(0, 41, 500).hex()}"]
    script += ["pair_record 0 3", "pair_record 1 1"]
    # What is waited for is what the tracer makes of the record, in the real register.
    script += [f"pair_store 1 {second}", f"pair_ring 0 {first} none"]
    result = hooks(script)
    assert result.answers[1]["reg"] == result.answers[2]["reg"]
    assert result.answers[-1] == 1, "the lost doorbell arrived"
    rank = result.rank()
    one, other = merged(rank, "mlx5_qp")
    assert (one["qpn"], other["qpn"], one["uar"]) == (40, 41, other["uar"])
    assert sizes_by_queue_pair(rank) == {one["id"]: [10, 11, 12], other["id"]: [500]}
    bells = {bell["qp"]: bell for bell in rank.records(DOORBELL)}
    assert bells[one["id"]]["flags"] & SYNTHESIZED and bells[one["id"]]["slots"] == 3
    assert bells[other["id"]]["slots"] == 1


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        ([], "gpu: slots not copied in time, or whose copy failed"),
        # What took its place has no slot that is this queue pair's.
        ([f"pair {RC} 37"], "gpu: slots overwritten before the copy, or never written"),
    ],
)
def test_a_ring_that_is_gone_is_counted(hooks: Hooks, between: list[str], reason: str) -> None:
    """Destroyed by a function that is not seen."""
    script = ["init", f"pair {RC} 36", f"pair_put 0 0 {write_wqe(0, 36, 5).hex()}", "pair_end 0"]
    rank = hooks([*script, *between, f"pair_ring 0 {doorbell(1, 36)}"]).rank()
    assert not rank.records(OPERATION)
    assert rank.end["lost"][reason] == 1, rank.end["lost"]


def test_a_ring_is_read_before_it_is_freed(hooks: Hooks) -> None:
    wqes = b"".join(write_wqe(index, 36, index + 1) for index in range(16)).hex()
    script = ["init", f"pair {RC} 36", f"pair_put 0 0 {wqes[:1024]}", f"pair_put 0 8 {wqes[1024:]}"]
    result = hooks([*script, f"pair_store 0 {doorbell(16, 36)}", "destroy_qp 0"])
    assert result.answers[-1] == {"result": 0, "errno": 77}
    (pair,) = merged(result.rank(), "mlx5_qp")
    told = ("slots", "invalid_slots", "uncopied_slots")
    assert [pair[key] for key in told] == [16, 0, 0] and "closed_tsc" in pair
    assert sizes_by_queue_pair(result.rank()) == {pair["id"]: list(range(1, 17))}


def test_errors_of_libibverbs_are_the_programs(hooks: Hooks) -> None:
    script = ["init", f"pair {RC} 36", "fail 16", "destroy_qp 0", "fail 22", f"modify_qp 0 {RTR}"]
    result = hooks(script)
    assert [result.answers[at] for at in (3, 5)] == [
        {"result": 16, "errno": 16},
        {"result": 22, "errno": 22},
    ]
    (pair,) = merged(result.rank(), "mlx5_qp")
    assert "closed_tsc" not in pair and result.rank().end["lost"] == {}


def test_one_that_was_not_destroyed_is_followed_again(hooks: Hooks) -> None:
    script = ["init", f"pair {RC} 36", f"pair_put 0 0 {write_wqe(0, 36, 5).hex()}"]
    script += [f"pair_ring 0 {doorbell(1, 36)}", "fail 16", "destroy_qp 0"]
    script += [f"pair_put 0 1 {write_wqe(1, 36, 6).hex()}", f"pair_ring 0 {doorbell(2, 36)}"]
    rank = hooks([*script, "destroy_qp 0"]).rank()
    (pair,) = merged(rank, "mlx5_qp")
    assert sizes_by_queue_pair(rank) == {pair["id"]: [5, 6]}
    assert (pair["slots"], pair["uncopied_slots"]) == (2, 0) and "closed_tsc" in pair
    assert rank.end["lost"] == {}


def test_a_number_that_is_given_again_is_a_new_object(hooks: Hooks) -> None:
    script = ["init", f"pair {RC} 38", "look 0"]
    script += [f"pair_put 0 0 {write_wqe(0, 38, 5).hex()}", "pair_record 0 1"]
    script += [f"pair_ring 0 {doorbell(1, 38)}", "look 0", "pair_end 0"]
    wqes = write_wqe(0, 38, 6) + write_wqe(1, 38, 7)
    script += [f"pair {RC} 38", f"pair_put 1 0 {wqes.hex()}", f"pair_ring 1 {doorbell(2, 38)}"]
    rank = hooks(script).rank()
    first, second = merged(rank, "mlx5_qp")
    assert first["slots"] == 1 and "closed_tsc" in first and "closed_tsc" not in second
    assert sizes_by_queue_pair(rank)[second["id"]] == [6, 7]


def test_a_target_is_named_when_it_is_ready(hooks: Hooks) -> None:
    script = ["init", f"dc {DCT} 0x1122334455667788", *MEMORY, "uar 0"]
    result = hooks([*script, "ready 0 0x777", create(st=5), *connect(0)])
    targets, initiators = [], []
    for pair in merged(result.rank(), "mlx5_qp"):
        (targets if pair["qp_type"] == "dct" else initiators).append(pair)
    (target,), (initiator,) = targets, initiators
    assert result.answers[1] == {"errno": 77, "made": 1}
    assert (target["qpn"], target["dc_access_key"]) == (0x777, 0x1122334455667788)
    assert target["slid"] == initiator["slid"] == 0x31 and target["prefix"] == initiator["prefix"]
    assert (target["slots"], target["doorbells"], target["state"]) == (0, 0, "rtr")
    assert NO_NUMBER not in result.rank().end["lost"]


def test_a_targets_life(hooks: Hooks) -> None:
    script = ["init", f"dc {DCT} 9", f"modify_qp 0 {RTR}", "destroy_qp 0"]
    result = hooks(script)
    assert [told["result"] for told in result.answers[2:]] == [0, 0]
    (target,) = merged(result.rank(), "mlx5_qp")
    assert (target["qpn"], target["state"]) == (FIRST_QPN, "rtr") and "closed_tsc" in target
    assert NO_NUMBER not in result.rank().end["lost"]


@pytest.mark.parametrize(("how", "nodes"), WAYS)
def test_a_target_is_named_at_the_end_at_last(hooks: Hooks, how: str, nodes: bool) -> None:
    script = ["init", "fail 12", *(f"dc {DCT} {key}" for key in range(1, 5))]
    result = hooks([*script, "ready 1 0x55", "ready 3 0x66"], how=how, nodes=nodes)
    assert result.answers[2] == {"errno": 12, "made": 0}
    targets = merged(result.rank(), "mlx5_qp")
    told = [(target["dc_access_key"], target.get("qpn")) for target in targets]
    assert told == [(2, 0x55), (3, None), (4, 0x66)]
    assert NO_NUMBER not in result.rank().end["lost"], "one that is not ready has none"


def test_a_target_that_was_gone_before_is_counted(hooks: Hooks) -> None:
    result = hooks(["init", f"dc {DCT} 1", "ready 0 0x55", "pair_end 0"])
    (target,) = merged(result.rank(), "mlx5_qp")
    assert "qpn" not in target and result.rank().end["lost"][NO_NUMBER] == 1


def test_of_several_ports_none_is_guessed(hooks: Hooks) -> None:
    rank = hooks(["init", "ports 2", f"dc {DCT} 1", "ready 0 0x77"]).rank()
    (target,) = merged(rank, "mlx5_qp")
    assert target["qpn"] == 0x77 and not {"slid", "sgid", "prefix"} & set(target)


def test_an_initiator_of_libmlx5_names_its_peers(hooks: Hooks) -> None:
    wqe = send_wqe(0, FIRST_QPN, 60, 0x777, 0x31)
    script = ["init", f"dc {DCI} 0", "look 0", f"pair_put 0 0 {wqe.hex()}"]
    rank = hooks([*script, f"pair_ring 0 {doorbell(2, FIRST_QPN)}"]).rank()
    (pair,), (vector,) = merged(rank, "mlx5_qp"), merged(rank, "mlx5_av")
    assert (pair["qp_type"], pair["qpn"], pair["slid"]) == ("dci", FIRST_QPN, 0x31)
    (channel,) = rank.records(CHANNEL)
    assert channel["peer"] == vector["id"] | 0x777 << 32
    assert sizes_by_queue_pair(rank) == {pair["id"]: [60]}
