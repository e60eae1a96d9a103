"""The wrappers of libmlx5: what the program gets, and what is told of it."""

from __future__ import annotations

import pytest
from firmware import (
    CREATE_CQ,
    CREATE_QP,
    RST2INIT,
    TO_ERROR,
    TO_RESET,
    command,
    doorbell,
    write_wqe,
)
from hooks_script import (
    DEDICATED,
    ERRNO_OF_SUCCESS,
    FIRST_PAGE,
    FIRST_QPN,
    FIRST_UMEM,
    MEMORY,
    NC,
    WAYS,
    Hooks,
    connect,
    create,
    merged,
    modify,
)

LIFE = [
    *("init", "uar 0", *MEMORY, create()),
    *connect(0, remote_qpn=0x999, rlid=0x42),
    f"put 0 0 {(write_wqe(0, FIRST_QPN, 100) + write_wqe(1, FIRST_QPN, 28)).hex()}",
    f"ring 0 {doorbell(2, FIRST_QPN)}",
    *("destroy 0", "dereg 0", "dereg 1", "free 0"),
]


@pytest.mark.parametrize(("how", "nodes"), WAYS)
def test_life_of_a_queue_pair_is_told_by_every_way(hooks: Hooks, how: str, nodes: bool) -> None:
    result = hooks(LIFE, how=how, nodes=nodes)
    rank = result.rank()
    (uar,), (pair,) = merged(rank, "mlx5_uar"), merged(rank, "mlx5_qp")
    given = result.answers[1]
    assert result.answers[LIFE.index("destroy 0") - 1] == 1, "the doorbell arrived"
    assert uar["shadow"] == given["reg"] != uar["real"]
    assert uar["real"] == given["base"] + 0x800 and given["reg"] % 4096 == 0x800
    assert (uar["page_id"], uar["kind"]) == (FIRST_PAGE, "bf") and "passed_through" not in uar
    assert given["errno"] == ERRNO_OF_SUCCESS
    rings, records = merged(rank, "mlx5_umem")
    assert (rings["umem_id"], rings["size_bytes"], rings["access"]) == (FIRST_UMEM, 8192, 7)
    assert rings["address"] == result.answers[2]["at"] and "gpu" not in rings
    assert (pair["qpn"], pair["qp_type"], pair["uar"]) == (FIRST_QPN, "rc", uar["id"])
    assert (pair["umem"], pair["dbr_umem"]) == (rings["id"], records["id"])
    assert (pair["cqn_snd"], pair["cqn_rcv"], pair["log_sq_size"]) == (0xABCDE, 0x54321, 6)
    assert (pair["port"], pair["slid"], pair["dlid"]) == (1, 0x31, 0x42)
    assert pair["prefix"] == b"\xfe" + bytes(6) + b"\1" and pair["dest_qpn"] == 0x999
    assert pair["state"] == "rts" and all("closed_tsc" in item for item in (uar, pair, rings))
    told = ("doorbells", "slots", "invalid_slots", "uncopied_slots")
    assert [pair[key] for key in told][1:] == [2, 0, 0] and pair["doorbells"] >= 1
    assert [op["size_bytes"] for op in rank.records(1)] == [100, 28]
    assert {op["call"] for op in rank.records(1)} != {0}
    assert {item["layer"] for item in rank.objects_of("library")} == {"mlx5dv", "cuda"}


@pytest.mark.parametrize("shims", [("verbs", "gpu"), ("gpu", "verbs")], ids="-".join)
@pytest.mark.parametrize("how", ["link", "dlsym", "dlvsym"])
def test_two_shims_look_names_up_together(hooks: Hooks, how: str, shims: tuple[str, ...]) -> None:
    rank = hooks(LIFE, how=how, shims=shims, SIGMATRACE_LAYERS="gpu,verbs").rank()
    assert [op["size_bytes"] for op in rank.records(1)] == [100, 28]


def test_ring_of_offsets_and_a_receive_queue(hooks: Hooks) -> None:
    """The send queue lies behind the offset and the receive queue (2^3 entries of 2^2 x 16)."""
    at = 1024 + (16 << (3 + 2))
    script = ["init", "uar 1", "umem 16384 1", "umem 4096 0"]
    script += [create(rq_type=0, log_rq_size=3, log_rq_stride=2, wq_umem_offset=1024, dbr_addr=64)]
    script += connect(0, port=2, remote_qpn=7, rgid=0xAA << 120 | 5, src_addr_index=3)
    script += [f"put 0 {at} {write_wqe(0, FIRST_QPN, 9).hex()}"]
    script += [f"ring 0 {doorbell(1, FIRST_QPN)}", "destroy 0"]
    rank = hooks(script).rank()
    (pair,), (gpu,) = merged(rank, "mlx5_qp"), merged(rank, "gpu")
    assert (pair["umem_offset"], pair["dbr_offset"], pair["invalid_slots"]) == (1024, 64, 0)
    assert pair["sgid"] == b"\xfe" + bytes(6) + b"\2" + bytes(7) + b"\3"
    assert pair["dgid"] == b"\xaa" + bytes(14) + b"\5" and "dlid" not in pair
    assert [op["size_bytes"] for op in rank.records(1)] == [9]
    assert merged(rank, "mlx5_umem")[0]["gpu"] == gpu["id"]
    assert (gpu["ordinal"], gpu["name"], gpu["uuid"]) == (0, "Fake 0", b"\x40" * 16)
    assert gpu["pci"] == "0000:00:00.0"


def test_completion_queue(hooks: Hooks) -> None:
    fields = {"cq_umem_id": FIRST_UMEM, "cq_umem_valid": 1, "cq_umem_offset": 192}
    made = command(CREATE_CQ, cc=1, log_cq_size=11, **fields)
    rank = hooks(["init", *MEMORY, f"create 0 0 {made}", "destroy 0"]).rank()
    (queue,) = merged(rank, "mlx5_cq")
    assert (queue["cqn"], queue["log_size"], queue["collapsed"]) == (FIRST_QPN, 11, 1)
    assert (queue["umem"], queue["umem_offset"]) == (merged(rank, "mlx5_umem")[0]["id"], 192)
    assert "closed_tsc" in queue


def test_probe_starts_nothing_a_call(hooks: Hooks) -> None:
    result = hooks(["init", "probe 1000"])
    told = result.answers[1]
    assert told["after"] <= told["before"] and told["freed"] == 1000
    assert told["flags"] == 3, "IOMEMORY is taken away"
    uars = merged(result.rank(), "mlx5_uar")
    assert len(uars) == 1000 and all("closed_tsc" in uar and "shadow" in uar for uar in uars)


def test_io_memory_stays_where_no_shadow_is(hooks: Hooks) -> None:
    result = hooks(["init", "uar 0", "register 0 7", "register -1 7", "register 0 3"])
    assert [told["flags"] for told in result.answers[2:]] == [3, 7, 3]


def test_one_register_for_all_is_one_shadow(hooks: Hooks) -> None:
    script = ["init", f"uar {NC}", f"uar {NC}", *MEMORY, create(), *connect(0, rlid=1)]
    first, second = doorbell(1, FIRST_QPN), doorbell(2, FIRST_QPN)
    script += [f"ring 0 {first}", "free 0", f"ring 1 {second}", "destroy 0", "free 1"]
    result = hooks(script)
    assert result.answers[1]["reg"] == result.answers[2]["reg"]
    assert [
        result.answers[script.index(f"ring {n} {v}")] for n, v in ((0, first), (1, second))
    ] == [
        1,
        1,
    ]
    (uar,) = merged(result.rank(), "mlx5_uar")
    assert uar["kind"] == "nc" and "closed_tsc" in uar
    assert result.answers[-1] == 2, "both were given back"


def test_registers_of_one_page_get_their_own_queue_pairs(hooks: Hooks) -> None:
    script = ["init", *(f"uar {DEDICATED}" for _ in range(4)), *MEMORY]
    for pair in range(4):
        script += [create(wq_umem_offset=pair * 2048 % 4096), *connect(pair, rlid=pair + 1)]
    script += [f"ring {n} {doorbell(1, FIRST_QPN + n)}" for n in range(4)]
    result = hooks(script)
    registers = [told["reg"] for told in result.answers[1:5]]
    assert [register % 4096 for register in registers] == [0x800, 0x900, 0xA00, 0xB00]
    assert len({register >> 12 for register in registers}) == 4
    assert result.answers[-4:] == [1, 1, 1, 1]
    rank = result.rank()
    assert len({pair["uar"] for pair in merged(rank, "mlx5_qp")}) == 4
    bells = {bell["qp"] for bell in rank.records(9)}
    assert bells == {pair["id"] for pair in merged(rank, "mlx5_qp")}


@pytest.mark.parametrize(
    ("script", "layers", "reason"),
    [
        (["uar 0"], "gpu", "the CUDA driver is not called"),
        (["init", "uar 0"], "mlx5dv", "layer cuda is not chosen"),
    ],
)
def test_real_register_where_it_cannot_be_repeated(
    hooks: Hooks, script: list[str], layers: str, reason: str
) -> None:
    script = [*script, "register 0 7", *MEMORY, create(), *connect(0, rlid=3)]
    result = hooks(
        [*script, f"ring 0 {doorbell(1, FIRST_QPN)}", "destroy 0", "free 0"],
        SIGMATRACE_LAYERS=layers,
    )
    given = next(told for told in result.answers if isinstance(told, dict) and "base" in told)
    assert given["reg"] == given["base"] + 0x800
    (uar,) = merged(result.rank(), "mlx5_uar")
    assert reason in uar["passed_through"] and "shadow" not in uar and "closed_tsc" in uar
    assert merged(result.rank(), "mlx5_qp")[0]["uar"] == uar["id"]
    assert result.answers[script.index("register 0 7")]["flags"] == 7


UNSEEN = "gpu: register whose doorbells are not seen"


@pytest.mark.parametrize(
    ("script", "layers", "text"),
    [
        (["uar 0"], "gpu", "the CUDA driver is not called through the wrappers before they are"),
        (["init", "uar 0"], "mlx5dv", "layer cuda is not chosen (--layers gpu is both)"),
    ],
)
def test_what_is_passed_through_is_said_once_and_counted(
    hooks: Hooks, script: list[str], layers: str, text: str
) -> None:
    result = hooks([*script, "uar 0", "uar 0"], SIGMATRACE_LAYERS=layers)
    assert result.stderr.count("their doorbells are not seen") == 1
    assert f"registers of the NIC are passed through, their doorbells are not seen: {text}" in (
        result.stderr
    )
    assert result.rank().end["lost"][UNSEEN] == 3


def test_an_exported_register_is_said_and_counted(hooks: Hooks) -> None:
    script = ["init", "uar 0", "uar 0", "fail 5", "export 0", "export 1", "export 1"]
    result = hooks(script)
    assert result.answers[4] == {"fd": -1, "errno": 5}
    assert all(told["fd"] >= 0 for told in result.answers[5:])
    assert all(told["errno"] == ERRNO_OF_SUCCESS for told in result.answers[5:])
    assert result.stderr.count("is exported as dmabuf") == 1
    first, second = merged(result.rank(), "mlx5_uar")
    assert "exposed" not in first and second["exposed"] == "exported as dmabuf"
    assert result.rank().end["lost"][UNSEEN] == 1


def test_doorbells_without_a_record_are_said_and_counted(hooks: Hooks) -> None:
    """The page of the real register is given to the GPU: what is stored there is not seen."""
    script = ["init", "uar 0", "uar 0", *MEMORY, create(send_dbr_mode=1), create(FIRST_PAGE + 1)]
    result = hooks([*script, "register 0 7 base", "register 0 7 base", "register 1 7"])
    assert [told["flags"] for told in result.answers[-3:]] == [7, 7, 3]
    assert result.stderr.count("without doorbell records (send_dbr_mode)") == 1
    assert result.stderr.count("registered with CUDA by its base_addr") == 1
    first, second = merged(result.rank(), "mlx5_uar")
    assert first["exposed"] == "registered with CUDA" and "exposed" not in second
    lost = result.rank().end["lost"]
    without = "gpu: queue pair whose doorbells are not seen: they need no doorbell record"
    assert (lost[UNSEEN], lost[without]) == (1, 1)


def test_nothing_is_wrapped_without_the_layers(hooks: Hooks) -> None:
    result = hooks(LIFE, SIGMATRACE_LAYERS="verbs")
    given = result.answers[1]
    assert given["reg"] == given["base"] + 0x800 and not result.out.exists()


def test_address_behind_a_dmabuf_and_its_number_again(hooks: Hooks) -> None:
    result = hooks(["init", "dmabuf 0 0", "dmabuf 8192 512", "dmabuf -1 0", "dmabuf 4096 0"])
    told = result.answers[1:]
    assert len({each["fd"] for each in told}) <= 2, "numbers came again"
    umems = merged(result.rank(), "mlx5_umem")
    wanted = [told[0]["at"], told[1]["at"] + 512, 0, told[3]["at"]]
    assert [umem["address"] for umem in umems] == wanted
    assert [umem["dmabuf_fd"] for umem in umems] == [each["fd"] for each in told]


def test_connection_made_again_is_a_new_object(hooks: Hooks) -> None:
    ring = "put 0 0 " + write_wqe(0, FIRST_QPN, 5).hex()
    bell = doorbell(1, FIRST_QPN)
    script = ["init", "uar 0", *MEMORY, create(), *connect(0, remote_qpn=1, rlid=1)]
    script += [ring, f"ring 0 {bell}", modify(0, TO_ERROR), modify(0, TO_RESET)]
    # Both connections ring the same value first.
    script += [*connect(0, remote_qpn=2, rlid=2), ring, f"ring 0 {bell}"]
    script += [f"put 0 64 {write_wqe(1, FIRST_QPN, 6).hex()}"]
    script += [f"ring 0 {doorbell(2, FIRST_QPN)}", "destroy 0", "free 0"]
    rank = hooks(script).rank()
    first, second = merged(rank, "mlx5_qp")
    assert (first["dest_qpn"], second["dest_qpn"]) == (1, 2)
    assert (first["state"], second["state"]) == ("reset", "rts")
    assert (first["slots"], second["slots"]) == (1, 2)
    assert first["closed_tsc"] <= second["t_tsc"] and "closed_tsc" in second
    assert first["umem"] == second["umem"] and first["qpn"] == second["qpn"]
    sizes: dict[int, list[int]] = {c["object"]: [] for c in rank.records(2)}
    by_id = {c["id"]: c["object"] for c in rank.records(2)}
    for op in rank.records(1):
        sizes[by_id[op["channel"]]].append(op["size_bytes"])
    assert sizes == {first["id"]: [5], second["id"]: [5, 6]}


def test_reset_before_the_end_is_no_new_object(hooks: Hooks) -> None:
    script = ["init", "uar 0", *MEMORY, create(), *connect(0, rlid=1), modify(0, TO_RESET)]
    (pair,) = merged(hooks([*script, "destroy 0"]).rank(), "mlx5_qp")
    assert pair["state"] == "reset" and "closed_tsc" in pair


def test_dci_is_named_by_its_port(hooks: Hooks) -> None:
    script = ["init", "uar 0", *MEMORY, create(st=5), *connect(0)]
    (pair,) = merged(hooks(script).rank(), "mlx5_qp")
    assert pair["qp_type"] == "dci" and "dest_qpn" not in pair
    assert pair["slid"] == 0x31 and pair["prefix"] == b"\xfe" + bytes(6) + b"\1"


def test_destroyed_in_flight_is_copied_before(hooks: Hooks) -> None:
    wqes = b"".join(write_wqe(index, FIRST_QPN, index + 1) for index in range(16)).hex()
    script = ["init", "uar 0", *MEMORY, create(), *connect(0, rlid=1), f"put 0 0 {wqes[:1024]}"]
    script += [f"put 0 512 {wqes[1024:]}", f"store 0 {doorbell(16, FIRST_QPN)}", "destroy 0"]
    rank = hooks(script).rank()
    (pair,) = merged(rank, "mlx5_qp")
    assert (pair["slots"], pair["invalid_slots"], pair["uncopied_slots"]) == (16, 0, 0)
    assert [op["size_bytes"] for op in rank.records(1)] == list(range(1, 17))


def test_errors_of_the_library_are_the_programs(hooks: Hooks) -> None:
    script = ["init", "fail 12", "uar 0", "uar 0", "fail 13", "umem 4096 0", *MEMORY]
    script += ["fail 14", create(wq_umem_id=FIRST_UMEM), create(), "fail 15"]
    script += [f"modify 1 0 {command(RST2INIT, number=FIRST_QPN)}", "fail 16", "destroy 1"]
    script += ["destroy 1", "fail 17", "dereg 1", "dereg 1"]
    result = hooks(script)
    told = [result.answers[at + 1] for at, line in enumerate(script) if line.startswith("fail")]
    assert [each["errno"] for each in told] == [12, 13, 14, 15, 16, 17]
    assert (told[0]["reg"], told[1]["made"], told[2]["made"]) == (0, 0, 0)
    assert [each["result"] for each in told[3:]] == [15, 16, 17]
    assert [result.answers[at]["result"] for at in (script.index("destroy 1") + 1, -1)] == [0, 0]
    rank = result.rank()
    (pair,) = merged(rank, "mlx5_qp")
    assert pair["state"] == "reset" and "closed_tsc" in pair
    assert len(merged(rank, "mlx5_umem")) == 2 and len(merged(rank, "mlx5_uar")) == 1


@pytest.mark.parametrize(("how", "nodes"), WAYS)
def test_register_of_a_queue_pair_that_libmlx5_made(hooks: Hooks, how: str, nodes: bool) -> None:
    result = hooks(["init", "init_obj 0 33", "init_obj 0 33"], how=how, nodes=nodes)
    for told in result.answers[1:]:
        assert (told["result"], told["shadow"], told["low"], told["arrived"]) == (0, 1, 0xA00, 1)
    rank = result.rank()
    (uar,) = merged(rank, "mlx5_uar")
    assert uar["kind"] == "qp" and "page_id" not in uar
    pairs = merged(rank, "mlx5_qp")
    assert {(pair["qpn"], pair["uar"], pair["log_sq_size"]) for pair in pairs} == {
        (33, uar["id"], 7)
    }


def test_old_version_of_init_obj_is_met_too(hooks: Hooks) -> None:
    result = hooks(["init", "init_obj 1 33"])
    told = result.answers[1]
    assert (told["shadow"], told["arrived"], told["old"]) == (1, 1, 1)


def test_forked_child_waits_for_nobody(hooks: Hooks) -> None:
    bell = doorbell(1, FIRST_QPN)
    script = ["init", "uar 0", *MEMORY, create(), *connect(0, rlid=1), "fork", f"ring 0 {bell}"]
    result = hooks([*script, "destroy 0", "free 0"])
    assert result.answers[script.index("fork")] == 0, "the real register, within seconds"
    assert result.answers[len(script) - 1] == 1, "the parent's are repeated as before"
    (parent,) = [rank for rank in result.ranks() if rank.records(9)]
    assert merged(parent, "mlx5_qp")[0]["slots"] == 1


def test_threads_with_registers_of_their_own(hooks: Hooks) -> None:
    made, init = command(CREATE_QP, rq_type=3), command(RST2INIT, port=1)
    script = ["init", f"template 0 0 {made}", f"template 1 0 {init}", "threads 4 50"]
    result = hooks(script)
    assert result.answers[-1] == 200
    rank = result.rank()
    assert len(merged(rank, "mlx5_uar")) == len(merged(rank, "mlx5_qp")) == 200
    assert all(pair["slots"] == 1 for pair in merged(rank, "mlx5_qp"))
    assert len({bell["qp"] for bell in rank.records(9)}) == 200
