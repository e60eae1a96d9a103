"""Waits, against a plain walk over what each process did."""

from __future__ import annotations

import itertools
from collections import defaultdict

from hypothesis import given

from sigmatrace.stages.waits import Waits
from tests.unit.stages.message_run import Row, balances, message, messages, run_of, tables

Event = tuple[int, int, int, int]
"""Time; 0 a send, 1 a receive; when the message was sent; its number."""


def events_of(rows: list[Row]) -> dict[tuple[int, int], list[Event]]:
    """What each process did at each layer, in order."""
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for number, row in enumerate(rows):
        send, receive = row["send_ns"], row["receive_ns"]
        found[row["src_proc"], row["layer"]].append((send, 0, 0, number))
        found[row["dst_proc"], row["layer"]].append((receive, 1, send, number))
    return {key: sorted(own) for key, own in found.items()}


def pair(row: Row) -> tuple[int, int, int]:
    return row["src_proc"], row["dst_proc"], row["layer"]


def least_of(rows: list[Row]) -> dict[tuple[int, ...], int]:
    """The least latency by pair, layer and class of sizes."""
    found: dict[tuple[int, ...], int] = {}
    for row in rows:
        if row["latency_ns"] >= 0:
            key = (*pair(row), bits(row))
            found[key] = min(row["latency_ns"], found.get(key, row["latency_ns"]))
    return found


def bits(row: Row) -> int:
    return row["size_bytes"].bit_length() if row["sizes_known"] else -1


@given(messages)
def test_waits_are_those_of_a_walk_over_each_process(rows: list[Row]) -> None:
    found, account, _ = tables(Waits(), run_of(rows))
    want = {pair(row): [0] * 6 for row in rows}
    least = least_of(rows)
    for row in rows:
        want[pair(row)][0] += 1
    for own in events_of(rows).values():
        for before, (receive, is_receive, send, number) in itertools.pairwise(own):
            row = rows[number]
            if not is_receive or receive < send:
                continue
            sums, quick = want[pair(row)], least[*pair(row), bits(row)]
            if send > before[0]:
                sums[1] += 1
                sums[2] += send - before[0]
            if send + quick < before[0]:
                sums[3] += 1
                sums[4] += receive - send - quick
            sums[5] += receive - max(send, before[0])
    assert {pair(row): list(row.values())[3:] for row in found["waits"]} == want
    assert balances(account, len(rows))


def test_each_kind_alone() -> None:
    """Process 1 does something at 0; a message comes that was sent late, then one that waits."""
    rows = [
        message(1, 2, 0, 5),
        message(0, 1, 100, 130),  # late sender: 1 waits from 0 until 100, then for 30
        message(1, 3, 500, 505),
        message(0, 1, 200, 600),  # 30 would have been enough: 370 for the receiver
    ]
    found = {pair(row): row for row in tables(Waits(), run_of(rows))[0]["waits"]}
    row = found[0, 1, 1]
    assert (row["late_sender"], row["late_sender_ns"]) == (1, 100)
    assert (row["late_receiver"], row["late_receiver_ns"]) == (1, 370)
    assert row["transfer_ns"] == 30 + 100
    assert sum(found[1, peer, 1]["late_sender_ns"] for peer in (2, 3)) == 0


def test_of_completions_seen_together_only_the_first_is_waited_for() -> None:
    rows = [message(1, 0, 0, 1)] + [message(0, 1, sent, 50) for sent in (30, 10, 20)]
    (row,) = (x for x in tables(Waits(), run_of(rows))[0]["waits"] if x["src_proc"] == 0)
    assert (row["late_sender"], row["late_sender_ns"], row["transfer_ns"]) == (1, 10, 40)
