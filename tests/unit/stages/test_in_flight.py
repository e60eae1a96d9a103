"""Messages in flight, against a plain walk over time."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given

from sigmatrace.stages.in_flight import InFlight
from tests.unit.stages.message_run import Row, balances, message, messages, run_of, tables


@given(messages)
def test_in_flight_is_what_a_walk_over_time_counts(rows: list[Row]) -> None:
    found, account, _ = tables(InFlight(), run_of(rows))
    of_sender: dict[tuple[int, int], list[range]] = defaultdict(list)
    for row in rows:
        if row["latency_ns"] >= 0:
            own = of_sender[row["src_proc"], row["layer"]]
            own.append(range(row["send_ns"], row["receive_ns"]))
    want = []
    for key, own in sorted(of_sender.items()):
        time = range(min(x.start for x in own), max(x.stop for x in own))
        flying = [sum(t in one for one in own) for t in time]
        mean = sum(flying) / len(flying) if flying else 0
        want.append((*key, len(own), max(flying, default=0), pytest.approx(mean)))
    assert [tuple(row.values()) for row in found["in_flight"]] == want
    assert balances(account, len(rows))


def test_what_comes_as_the_next_one_goes_is_not_in_flight_with_it() -> None:
    rows = [message(0, 1, 10 * k, 10 * k + 10) for k in range(5)]
    (row,) = tables(InFlight(), run_of(rows))[0]["in_flight"]
    assert (row["messages"], row["max"], row["mean"]) == (5, 1, 1.0)
