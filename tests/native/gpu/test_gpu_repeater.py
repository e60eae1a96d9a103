"""The repeater: what a program posted and rang is forwarded, and is what the trace says."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from gpu_told import (
    NOP,
    Run,
    all_is_there,
    consistent_doorbells,
    same_operations,
    whole_slots,
)

SYNTHESIZED, AGAIN, ALTERNATE, BLUEFLAME, WAITED, LATE, NOT_READ = 1, 2, 4, 8, 16, 32, 64
FIRST, COPY_FIRST, SYNC, OFF = range(4)
KINDS = 22
UNKNOWN = "gpu: doorbell of a queue pair that is not known"
WAITING = ("waitpkg", "mwaitx")  # flags of a CPU


def test_decoding_stays_within_its_memory(repeat) -> None:
    (line,) = repeat("fuzz", 200_000).stdout.splitlines()
    assert 50_000 < int(line.split()[1]) < 190_000


def test_the_cpu_is_asked_how_to_wait_for_a_store(repeat_driver) -> None:
    command = [str(repeat_driver), "monitor"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    pause, umwait, mwaitx = range(3)
    *chosen, has = map(int, told.split()[1:])
    assert chosen == [pause, umwait, mwaitx, umwait]
    assert has == any(f" {flag}" in Path("/proc/cpuinfo").read_text() for flag in WAITING)


@pytest.mark.parametrize("vector", [0, 1, 2])
@pytest.mark.parametrize("dialect", [0, 1])
def test_every_kind_of_wqe(repeat, vector: int, dialect: int) -> None:
    run = repeat("mix", 64, KINDS * 24, vector, dialect, 5)
    assert len({(one.opcode, one.op) for one in run.posted}) == 17
    assert {one.slots for one in run.posted} >= ({1, 2, 3, 6} if vector == 2 else {1, 2, 3, 5})
    all_is_there(run)


def test_channels_lead_to_address_vectors(repeat) -> None:
    run = repeat("mix", 64, KINDS * 12, 2, 0, 1)
    vectors = {item["id"]: item for item in run.trace.objects_of("mlx5_av")}
    assert len(vectors) == 5  # three GIDs, and two LIDs of those without
    (object_,) = run.by_pair()
    for op, one in zip(run.ops()[object_], run.posted, strict=True):
        peer = run.channels[op["channel"]]["peer"]
        if not one.qpn:
            assert peer == object_
            continue
        vector = vectors[peer & 0xFFFFFFFF]
        assert peer >> 32 == one.qpn
        if one.gid < 0:
            assert (vector["dlid"], vector["prefix"]) == (one.lid, bytes([0xFE, 0x80] + [0] * 6))
            assert "dgid" not in vector
        else:
            assert vector["dgid"] == bytes.fromhex("fe80") + bytes(13) + bytes([one.gid])


@pytest.mark.parametrize("order", [FIRST, COPY_FIRST, SYNC])
def test_orders(repeat, order: int) -> None:
    run = repeat("mix", 128, 600, 0, 0, 4, order=order)
    all_is_there(run)
    flags = Counter(d["flags"] & (WAITED | LATE) for d in run.trace.records(9) if d["slots"])
    if order != FIRST:
        assert set(flags) == {WAITED}


def test_off_reads_nothing(repeat) -> None:
    run = repeat("mix", 64, 200, 0, 0, 4, order=OFF)
    consistent_doorbells(run)
    assert not run.trace.records(1) and not run.trace.records(10) and run.lost() == {}
    assert all(d["flags"] & NOT_READ for d in run.trace.records(9) if d["slots"])
    ((_, totals),) = run.totals.items()
    assert totals.uncopied == totals.slots == run.posted[-1].index + run.posted[-1].slots


def test_aggregate_adds_up(repeat) -> None:
    run = repeat("mix", 64, 500, 1, 0, 4, mode="aggregate")
    counted: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in run.trace.records(5):
        channel = run.channels[row["channel"]]
        cell = counted[row["op"], channel["peer"] >> 32]
        cell[0] += row["count"]
        cell[1] += row["size_bytes"]
    expected: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for one in run.posted:
        expected[one.op, one.qpn][0] += 1
        expected[one.op, one.qpn][1] += one.size
    assert counted == expected
    assert not run.trace.records(9) and run.lost() == {}


@pytest.mark.parametrize("apart", [False, True])
def test_doorbells_rung_twice(repeat, apart: bool) -> None:
    """The NIC goes by the record: the driver waits in vain unless a forward comes after it."""
    run = repeat("twice", 300, int(apart))
    all_is_there(run)
    (doorbells,) = run.doorbells().values()
    again = [d for d in doorbells if d["flags"] & AGAIN]
    first = [d for d in doorbells if not d["flags"] & AGAIN]
    assert all(d["slots"] == 0 for d in again) and all(d["slots"] for d in first)
    assert len(first) == 300 and len({d["value"] for d in first}) == 300
    seen = Counter(d["value"] for d in again)
    assert max(seen.values(), default=0) <= 1 and (len(seen) == 300 or not apart)


def test_lives_that_ring_the_same_value(repeat) -> None:
    run = repeat("lives", 50)
    all_is_there(run)
    doorbells = run.trace.records(9)
    assert len(doorbells) == len(run.by_pair()) == 50
    assert {(d["value"], d["flags"]) for d in doorbells} == {(doorbells[0]["value"], 0)}


def test_two_queue_pairs_of_one_register(repeat) -> None:
    run = repeat("shared", 600)
    all_is_there(run)
    assert len(run.by_pair()) == 2


def test_a_shared_register_with_a_queue_pair_without_a_record_is_said(repeat) -> None:
    run = repeat("blind")
    assert "several queue pairs ring on one register, one of them without" in run.stderr
    reason = "gpu: queue pair of a shared register, of which doorbells may not have been seen"
    assert run.lost() == {reason: 1}


def test_a_doorbell_that_was_overwritten_is_made_from_its_record(repeat) -> None:
    run = repeat("overwritten")
    all_is_there(run)
    first = min(run.by_pair())
    assert [d["flags"] for d in run.doorbells()[first]] == [SYNTHESIZED]


def test_the_record_is_read_before_a_queue_pair_ends(repeat) -> None:
    run = repeat("unseen")
    all_is_there(run)
    assert [d["flags"] for d in run.doorbells()[min(run.by_pair())]] == [SYNTHESIZED]


@pytest.mark.parametrize("case", ["guessed", "gap"])
def test_a_doorbell_that_was_overwritten_where_it_was_not_expected(repeat, case: str) -> None:
    run = repeat(case)
    all_is_there(run)
    first = min(run.by_pair())
    assert [d["flags"] for d in run.doorbells()[first]] == [SYNTHESIZED]


def test_a_queue_pair_that_rings_on_several_registers(repeat) -> None:
    run = repeat("roams")
    all_is_there(run)
    flags = [d["flags"] for d in run.doorbells()[min(run.by_pair())]]
    assert flags[-1] == SYNTHESIZED and len(flags) == 4


def test_a_doorbell_that_an_unknown_one_overwrites(repeat) -> None:
    run = repeat("stranger")
    same_operations(run)
    whole_slots(run)
    (known,) = run.by_pair()
    assert [d["flags"] for d in run.doorbells()[known]] == [SYNTHESIZED]
    assert [d["value"] for d in run.doorbells()[0]] == run.nobody
    assert run.lost() == {UNKNOWN: 1}


def test_a_record_that_was_not_read_in_time_is_believed_if_the_ring_proves_it(repeat) -> None:
    late = "gpu: queue pair whose doorbell record was not read before it could ring"
    run = repeat("tardy")
    same_operations(run)
    assert run.lost() == {UNKNOWN: 1, late: 1}


def test_doorbells_of_unknown_ones_are_counted_where_none_is_recorded(repeat) -> None:
    run = repeat("stranger", mode="aggregate")
    assert run.lost() == {UNKNOWN: 1} and not run.trace.records(9)


def test_a_record_of_a_former_life_makes_no_doorbell(repeat) -> None:
    """The NIC would be told of what was not posted: the driver fails."""
    run = repeat("former")
    all_is_there(run)
    assert "made 0 0" in run.stdout
    _, second, _ = sorted(run.by_pair())  # the first one's lives are two
    assert [d["flags"] for d in run.doorbells()[second]] == [SYNTHESIZED]


def test_a_doorbell_that_its_record_has_passed_is_counted(repeat) -> None:
    run = repeat("passed")
    same_operations(run)
    consistent_doorbells(run)
    assert [d["flags"] for d in run.doorbells()[min(run.by_pair())]] == [SYNTHESIZED]
    ((reason, count),) = run.lost().items()
    assert "newer doorbell record" in reason and count == 1


def test_records_that_lie_side_by_side_are_read_at_once(repeat) -> None:
    line = repeat("records", 8).stdout.splitlines()[0].split()
    copies, looks = map(int, line[1:])
    assert line[0] == "copies" and looks >= 20 and looks - 1 <= copies <= looks + 1


def test_doorbells_are_recorded_by_the_copier(repeat) -> None:
    """Whoever records may have to wait for a file, and doorbells must not."""
    run = repeat("mix", 64, 200, 0, 0, 4)
    names = {one["tid"]: one["name"] for one in run.trace.objects_of("thread")}
    assert "st-doorbell" not in names.values()
    used = {chunk["thread"] for chunk in run.trace.chunks if chunk["schema"] == 9}
    assert {names[thread] for thread in used} == {"st-copy"}


def test_a_doorbell_that_waits_delays_its_own_register_alone(repeat) -> None:
    run = repeat("waits")
    all_is_there(run)
    held, same, other = sorted(run.by_pair())
    doorbells = run.doorbells()
    assert doorbells[held][0]["flags"] == WAITED
    assert not any(d["flags"] & WAITED for d in (*doorbells[same], *doorbells[other]))


def test_an_older_doorbell_passes_one_that_waits(repeat) -> None:
    run = repeat("older")
    all_is_there(run)
    passed, waited = run.doorbells()[min(run.by_pair())]
    assert (passed["flags"], waited["flags"]) == (0, WAITED)


def test_doorbells_of_which_the_copier_cannot_be_told_are_counted(repeat) -> None:
    run = repeat("untold", 17_000)
    same_operations(run)
    _, q = sorted(run.totals)
    ((reason, count),) = run.lost().items()
    assert "could not be told" in reason and count > 0
    assert len(run.doorbells()[q]) + count == run.totals[q].doorbells == 17_000
    assert run.totals[q].uncopied == run.totals[q].invalid == 0


def test_both_halves_of_a_register(repeat) -> None:
    run = repeat("alternate", 150)
    all_is_there(run)
    flags = Counter(d["flags"] & ALTERNATE for d in run.trace.records(9))
    assert set(flags) == {0, ALTERNATE}


def test_stores_of_64_bytes(repeat) -> None:
    run = repeat("blueflame", 40)
    all_is_there(run)
    own = [d for d in run.trace.records(9) if not d["flags"] & AGAIN]
    assert [bool(d["flags"] & BLUEFLAME) for d in own] == [n % 2 == 1 for n in range(40)]


def _some_are_there(run: Run) -> None:
    """What the trace has was posted; what it has not is counted."""
    ((object_, totals),) = run.totals.items()
    posted = {one.index: one for one in run.posted}
    ops = run.ops()[object_]
    for op in ops:
        one = posted[op["aux"]]
        assert (op["op"], op["size_bytes"]) == (one.op, one.size)
    assert len({op["aux"] for op in ops}) == len(ops)
    assert len(ops) < len(posted)
    covered = sum(posted[op["aux"]].slots for op in ops)
    assert covered + totals.invalid + totals.uncopied == totals.slots
    assert totals.slots == sum(one.slots for one in run.posted)
    assert sum(run.lost().values()) == totals.invalid + totals.uncopied
    assert sum(1 for slot in run.trace.records(10) if slot["kind"] == 3) == totals.invalid


def test_a_program_that_overwrites_what_was_not_copied(repeat) -> None:
    run = repeat("again")
    consistent_doorbells(run)
    _some_are_there(run)
    ((object_, totals),) = run.totals.items()
    assert totals.invalid == sum(one.slots for one in run.posted if one.index < 16) == 16
    assert min(op["aux"] for op in run.ops()[object_]) == 16


def test_a_copier_that_stands_still_delays_ten_doorbells(repeat) -> None:
    run = repeat("stall", 60)
    consistent_doorbells(run)
    _some_are_there(run)
    own = [d for d in run.trace.records(9) if not d["flags"] & AGAIN]
    waited = [d for d in own if d["flags"] & WAITED and d["flags"] & LATE]
    late = [d for d in own if d["flags"] & LATE]
    assert 10 <= len(waited) < len(late)
    assert not any(d["flags"] & WAITED for d in late[-10:])  # it was given up
    a_millisecond = run.trace.header["tsc_hz"] / 1000
    assert 0.5 * a_millisecond < min(d["delay_tsc"] for d in waited)
    calm = sorted(d["delay_tsc"] for d in late if not d["flags"] & WAITED)
    assert calm[len(calm) // 2] < 0.5 * a_millisecond
    assert max(op["aux"] for op in run.trace.records(1)) == run.posted[-1].index


def test_what_waits_for_the_copier_is_copied_together(repeat) -> None:
    run = repeat("behind", 200)
    all_is_there(run)
    assert not any(d["flags"] & WAITED for d in run.trace.records(9))
    (rounds,) = (int(line.split()[1]) for line in run.stdout.splitlines() if "rounds" in line)
    assert rounds <= 3  # what was taken before, and the rest


def test_a_queue_pair_ends_while_the_copier_stands_still(repeat) -> None:
    run = repeat("leave")
    held, gone = sorted(run.totals)
    slots = sum(one.slots for one in run.by_pair()[gone])
    assert (run.totals[gone].slots, run.totals[gone].uncopied) == (slots, slots)
    assert run.totals[held].uncopied == run.totals[held].invalid == 0
    assert gone not in run.ops() and len(run.ops()[held]) == 1
    assert sum(run.lost().values()) == slots


def test_many_queue_pairs_end_while_the_copier_stands_still(repeat) -> None:
    """It is waited for once, not once for each."""
    run = repeat("stands", 40)
    held, *gone = sorted(run.totals)
    assert len(gone) == 40
    for one in gone:
        slots = sum(wqe.slots for wqe in run.by_pair()[one])
        assert (run.totals[one].slots, run.totals[one].uncopied) == (slots, slots)
    assert run.totals[held].uncopied == 0 and len(run.ops()) == 1
    (ended_ms,) = (int(line.split()[1]) for line in run.stdout.splitlines() if "ended" in line)
    assert ended_ms < 2000  # 40 times 50 ms, and 200 ms for the doorbell record of each


def test_a_queue_pair_ends_within_a_copy(repeat) -> None:
    """What its totals say was not copied is not recorded afterwards."""
    run = repeat("cut")
    ((object_, totals),) = run.totals.items()
    slots = sum(one.slots for one in run.posted)
    assert (totals.slots, totals.uncopied, totals.invalid) == (slots, slots, 0)
    assert object_ not in run.ops() and not run.trace.records(10)
    assert sum(run.lost().values()) == slots


def test_a_queue_pair_ends_before_the_sweeper_saw_its_doorbell(repeat) -> None:
    run = repeat("late")
    held, gone = sorted(run.totals)
    slots = {one: sum(p.slots for p in posted) for one, posted in run.by_pair().items()}
    assert run.totals[gone].slots == slots[gone]
    of_it = [slot for slot in run.trace.records(10) if slot["qp"] == gone]
    assert len(of_it) + run.totals[gone].uncopied == slots[gone]
    assert (run.totals[held].slots, run.totals[held].uncopied) == (slots[held], 0)
    assert 0 not in run.doorbells()
    assert sum(run.lost().values()) == run.totals[gone].uncopied


@pytest.mark.parametrize("mode", ["full", "aggregate"])
def test_a_process_ends_with_the_last_thread_of_the_program(repeat, mode: str) -> None:
    run = repeat("exits", mode=mode)
    assert "ended 0" in run.stdout and run.lost() == {}
    if mode == "full":
        all_is_there(run)
    else:
        assert sum(row["count"] for row in run.trace.records(5)) == len(run.posted) == 10


def test_registers_and_numbers_come_again(repeat) -> None:
    rounds = 6
    run = repeat("reuse", rounds)
    lives = {object_: posted for object_, posted in run.by_pair().items() if len(posted) > 0}
    ops = run.ops()
    assert len(run.totals) == 2 * rounds
    for object_, totals in run.totals.items():
        known = [one for one in lives[object_] if one.op != NOP]  # the last one is nobody's
        assert [op["aux"] for op in ops[object_]] == [one.index for one in known]
        assert totals.slots == known[-1].index + known[-1].slots
    nobody = run.doorbells()[0]
    assert [d["value"] for d in nobody] == run.nobody
    assert {(d["flags"], d["index"], d["uar"]) for d in nobody} == {(NOT_READ, 0, 7)}
    assert run.lost() == {UNKNOWN: len(nobody)}


def test_512_queue_pairs(repeat) -> None:
    run = repeat("many", 512, 20)
    assert len(run.by_pair()) == 512
    all_is_there(run)


def test_the_end_of_the_process_records_what_was_rung(repeat) -> None:
    run = repeat("open", 200)
    all_is_there(run)
    ((_, told),) = ((one["id"], one) for one in run.trace.objects_of("mlx5_qp"))
    (bells,) = run.doorbells().values()
    assert told["slots"] == sum(bell["slots"] for bell in bells) >= 200
    assert (told["doorbells"], told["uncopied_slots"]) == (len(bells), 0)


def test_a_forked_child_has_no_threads(repeat) -> None:
    all_is_there(repeat("forks"))


def test_memory_that_is_gone_is_no_crash(repeat) -> None:
    """By process_vm_readv, and where that is refused by /proc/self/mem."""
    assert repeat("peeks").stdout.splitlines() == ["peek 0 1 1", "peek 1 1 1"]
