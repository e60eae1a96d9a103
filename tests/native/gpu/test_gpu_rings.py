"""Rings of every size, and an index that wraps in them."""

from __future__ import annotations

import pytest
from gpu_told import all_is_there, consistent_doorbells, same_operations

FIRST, COPY_FIRST, SYNC = range(3)


@pytest.mark.parametrize("slots", [16, 32, 128, 256, 512, 1024])
def test_rings_of_every_size_wrap(repeat, slots: int) -> None:
    run = repeat("mix", slots, max(600, 3 * slots), 0, 0, 9)
    assert run.posted[-1].index > 3 * slots
    all_is_there(run)


@pytest.mark.parametrize("log_slots", [*range(4), *range(11, 16)])
def test_rings_of_every_other_size_wrap(repeat, log_slots: int) -> None:
    """The smallest ones hold no WQE of several slots."""
    slots = 1 << log_slots
    run = repeat("wraps", slots, 2 * slots + 20)
    assert [one.index for one in run.posted] == list(range(2 * slots + 20))
    all_is_there(run)


def test_the_index_wraps_at_65536(repeat) -> None:
    run = repeat("mix", 1024, 56_000, 0, 1, 64, mode="simple")
    assert run.posted[-1].index > 66_000
    same_operations(run)
    consistent_doorbells(run)
    assert run.lost() == {} and not run.trace.records(7) and not run.trace.records(10)


@pytest.mark.parametrize("order", [FIRST, COPY_FIRST, SYNC])
def test_rings_in_the_memory_of_a_gpu(repeat, order: int) -> None:
    # Copies that were enqueued before the forward are made much later here than by a GPU: in that
    # order, a ring which does not wrap.
    slots = 2048 if order == COPY_FIRST else 64
    run = repeat("mix", slots, 600, 1, 0, 5, 1, order=order)
    all_is_there(run)
