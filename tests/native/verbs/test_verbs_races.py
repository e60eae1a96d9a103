"""Threads that meet in the shim, and objects that it did not see made or that are not destroyed."""

from __future__ import annotations

import pytest
from plain_reader import merged

PUT = 3


@pytest.mark.parametrize("mode", ["simple", "full"])
def test_threads_that_meet_a_hidden_context(run, mode: str) -> None:
    times = 100
    rank = run("driver", "behind", times, mode=mode).rank()
    assert len(merged(rank, "ib_device")) == 1
    # One object of each thing, beside the driver's own.
    assert len(merged(rank, "ib_pd")) == len(merged(rank, "ib_cq")) == 1 + times
    assert len(merged(rank, "memory")) == 1 + 2 * times
    pairs = merged(rank, "ib_qp")
    assert len(pairs) == times and all(qp["closed_tsc"] for qp in pairs)
    channels = {c["id"]: c["object"] for c in rank.records(2)}
    positions: dict[int, list[int]] = {qp["id"]: [] for qp in pairs}
    for op in rank.records(1):
        assert op["op"] == PUT
        positions[channels[op["channel"]]].append(op["aux"])
    assert [sorted(found) for found in positions.values()] == [[0, 1]] * times
    assert rank.end["lost"] == {}


def test_threads_that_open_a_device_at_once(run) -> None:
    rank = run("driver", "opened_at_once", mode="simple").rank()
    assert len(rank.objects_of("ib_device")) == len(rank.objects_of("ib_port")) == 1
    assert len(rank.objects_of("library")) == 1


def test_a_position_that_is_taken_and_not_yet_written_down(run) -> None:
    rank = run("driver", "late").rank()
    requests = {r["wr_id"]: r["position"] for r in rank.records(7)}
    assert requests == {100: 0, 101: 1}
    done = [(c["wr_id"], c["position"], c["first"], c["status"]) for c in rank.records(8)]
    assert done == [(101, 1, 1, 0), (100, 0, 0, 0)]
    assert rank.end["lost"] == {}


@pytest.mark.parametrize("mode", ["simple", "full"])
def test_what_is_not_destroyed_is_still_traced(run, mode: str) -> None:
    rank = run("driver", "refusals", mode=mode).rank()
    assert [(op["op"], op["aux"]) for op in rank.records(1)] == [(PUT, k) for k in range(4)]
    if mode == "full":
        assert [c["position"] for c in rank.records(8)] == list(range(4))
    ended = [o for t in ("ib_qp", "ib_cq") for o in rank.objects_of(t) if "closed_tsc" in o]
    assert len(ended) == 1 + 2
    assert rank.end["lost"] == {}


def test_structures_of_older_and_newer_headers(run) -> None:
    rank = run("driver", "structures").rank()
    assert len(merged(rank, "ib_cq")) == 1 + 2
    # What only the newer program knows cannot be repeated with more: it is left as it is.
    assert rank.end["lost"] == {"verbs: completion queue that does not name queue pairs": 1}


def test_requests_of_a_kind_that_came_later(run) -> None:
    rank = run("driver", "unknown_ops").rank()
    assert not rank.records(1)
    reason = "verbs: queue pair that offers requests of a kind that is not known"
    assert rank.end["lost"] == {reason: 1}
