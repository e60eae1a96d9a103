"""Memory is given to one at a time, and again when no part of it is in use."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sigmatrace.export import rooms


@pytest.fixture(autouse=True)
def none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_rooms", [])


def address(room: np.ndarray) -> int:
    return int(room.ctypes.data)


def test_what_is_in_use_is_given_to_nobody_else():
    first = rooms.take(100)
    second = rooms.take(100)
    assert address(first) != address(second) and min(first.size, second.size) >= 100


@pytest.mark.parametrize("part", [lambda room: room[10:20], lambda room: room[10:20][2:].data])
def test_a_part_keeps_it_and_its_end_frees_it(part):
    room = rooms.take(100)
    place = address(room)
    kept = part(room)
    del room
    assert address(rooms.take(50)) != place
    del kept
    places = [address(one) for one in (rooms.take(50), rooms.take(50))]
    assert place in places


def test_a_larger_one_takes_the_place_of_one_that_is_free():
    rooms.take(10)
    assert rooms.take(1000).size >= 1000 and len(rooms._rooms) == 1


def test_threads_never_share():
    failed = []

    def use(number: int) -> None:
        for _ in range(2000):
            room = rooms.take(64)
            room[:] = number
            if (room != number).any():
                failed.append(number)
            del room  # or a thread would hold it while it takes the next one

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed and len(rooms._rooms) <= 4
