"""Doorbell records that are not true, and queue pairs that outlive their registers."""

from __future__ import annotations

from gpu_told import Run, all_is_there, same_operations

SYNTHESIZED, NOT_READ = 1, 64


def _made(run: Run) -> list[int]:
    return [int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("made")]


def test_a_record_that_the_ring_does_not_prove_makes_no_doorbell(repeat) -> None:
    """Of slots without WQEs, of half a WQE, and of WQEs of an earlier lap."""
    run = repeat("untrue")
    assert _made(run) == [0, 0, 0] and run.posted[0].slots == 2
    all_is_there(run)


def test_records_that_are_never_written_make_no_doorbell(repeat) -> None:
    """At 65528, one of 0 seems to be 8 ahead."""
    run = repeat("unwritten", mode="simple")
    assert _made(run) == [0] and run.posted[-1].index == 65535
    same_operations(run)
    assert run.lost() == {} and not any(d["flags"] & SYNTHESIZED for d in run.trace.records(9))


def test_a_record_whose_ring_is_not_known_is_believed_and_counted(repeat) -> None:
    run = repeat("unknown_ring")
    (doorbell,) = run.trace.records(9)
    assert doorbell["flags"] == SYNTHESIZED | NOT_READ
    assert run.lost() == {"gpu: doorbell made of a record which no ring could prove": 1}


def test_a_queue_pair_that_is_reset_outlives_its_register(repeat) -> None:
    run = repeat("homeless")
    all_is_there(run)
    assert len(run.by_pair()) == 2


def test_a_queue_pair_is_followed_to_another_register_of_its_page(repeat) -> None:
    run = repeat("moved")
    all_is_there(run)
    assert [d["flags"] for d in run.doorbells()[min(run.by_pair())]] == [SYNTHESIZED]


def test_the_end_of_a_queue_pair_reads_its_record_alone(repeat) -> None:
    """They are all read once a millisecond; and not twice for each that ends."""
    (line,) = (one for one in repeat("many_end", 400).stdout.splitlines() if "rounds" in one)
    assert int(line.split()[1]) < 800


def test_what_could_not_be_read_is_counted_once(repeat) -> None:
    run = repeat("torn")
    assert run.lost() == {"gpu: slots not copied in time, or whose copy failed": 1}
