"""What a choice leaves, row by row, judged by plain Python."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from sigmatrace.errors import ConfigError
from sigmatrace.export.perfetto_budget import MB, cumulated, plan
from sigmatrace.export.perfetto_choice import Choice
from sigmatrace.export.perfetto_chosen import Chosen, overlaps
from sigmatrace.export.perfetto_queues import thin
from sigmatrace.export.perfetto_tracks import Tracks
from sigmatrace.schema import STAGE_TABLES, TIMELINE_BINS, TIMELINE_CELLS
from sigmatrace.trace_format import Layer, Op, Schema
from tests.perfetto_inputs import BASE, partition, run, send, table


def parse(**options):
    names = ("window", "ranks", "qps", "ops")
    return Choice.parse("export.perfetto", **{**dict.fromkeys(names), **options})


def test_choices_are_read():
    made = parse(ranks="0-15, 64", qps="0x11,18 - 0x20,0", ops="Send,write,receive")
    assert made.ranks == ((0, 15), (64, 64))
    assert made.qps == ((17, 17), (18, 32), (0, 0))
    assert made.ops == {Op.SEND, Op.PUT, Op.PUT_DATA, Op.RECV}
    assert parse() == Choice()
    bare, listed = (
        {"ranks": f"{a}0-1,4{b}", "qps": f"{a}3{b}", "ops": f" {a}send, read{b}"}
        for a, b in (("", ""), ("[", "]"))
    )
    assert parse(**bare) == parse(**listed) != Choice()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"ranks": "a"}, "export.perfetto.ranks: 'a' is no number"),
        ({"ranks": "1,,2"}, "export.perfetto.ranks: '' is no number"),
        ({"ranks": "[0,1"}, "'[0' is no number"),
        ({"ranks": "[]"}, "'' is no number"),
        ({"ranks": "-1"}, "'-1' is no number"),
        ({"ranks": "5-3"}, "'5-3' is empty"),
        ({"qps": "0xg"}, "export.perfetto.qps: '0xg' is no number"),
        ({"qps": "012"}, "'012' is no number"),
        ({"ops": "sent"}, "export.perfetto.ops: unknown operation 'sent'"),
        ({"ops": ""}, "unknown operation ''"),
        ({"window": "1"}, "export.perfetto.window=1 is no window"),
    ],
)
def test_what_is_no_choice_is_refused_in_one_line(options, why):
    with pytest.raises(ConfigError) as error:
        parse(**options)
    assert why in str(error.value) and "\n" not in str(error.value)


def test_what_is_not_in_the_run_is_named():
    chosen = Chosen.of(parse(ranks="0,5,7-9", qps="0x11,18-20"), Tracks.of(run()), BASE)
    assert chosen.unknown == (
        "no rank 5",
        "no rank 7 to rank 9",
        "no QP 0x11 (17)",
        "no QP 0x12 (18) to QP 0x14 (20)",
    )


@pytest.mark.parametrize("seed", range(5))
def test_operations_are_chosen_by_all_that_is_asked_for(seed):
    chance = random.Random(seed)
    rows = [
        send(
            chance.randrange(100),
            chance.choice([0, 0, chance.randrange(60)]),
            proc=chance.randrange(2),
            op=chance.choice([Op.SEND, Op.RECV, Op.PUT]),
            ordinal=k,
        )
        for k in range(400)
    ]
    of = run(channels=[{"channel": 0}], routes=[{}])
    tracks = Tracks.of(of)
    chosen = Chosen.of(parse(window="30ns..60ns", ranks="1", ops="send,put"), tracks, BASE)
    kept = chosen.only(partition(0, rows), "ops", tracks)
    wanted = [
        row["ordinal"]
        for row in rows
        if row["proc"] == 1
        and row["op"] in (Op.SEND, Op.PUT)
        and row["t"] < 60
        and (row["t"] >= 30 or row["t"] + row["call_ns"] > 30)
    ]
    assert kept.column("ops", "ordinal").tolist() == wanted and wanted


def test_spans_and_instants_at_the_edges_of_a_window():
    begin, end = np.array([5, 5, 10, 19, 20, 0, 3]), np.array([9, 10, 10, 30, 20, 99, 11])
    assert overlaps(begin, end, 10, 20).tolist() == [False, False, True, True, False, True, True]


def test_amounts_are_spread_evenly_between_first_and_last():
    chance = random.Random(1)
    base = 1_700_000_000_000_000_000
    spans = [(b := base + chance.randrange(1000), b + chance.randrange(200)) for _ in range(50)]
    amount = np.array([chance.randrange(1, 99) for _ in spans])
    first, last = (np.array(x, np.int64) for x in zip(*spans, strict=True))
    points, total = cumulated(first, last, amount)
    assert (np.diff(points) > 0).all() and points[0] == first.min() and total[0] == 0
    for at in range(0, 1300, 37):
        exact = sum(
            n * min(1.0, max(0.0, (base + at - b) / (e + 1 - b)))
            for (b, e), n in zip(spans, amount.tolist(), strict=True)
        )
        assert np.interp(at, points - base, total) == pytest.approx(exact, abs=1e-6)


def planned(processes, operations, budget_mb, **options):
    """Return the plan of a second in which each process has so many operations."""
    chunk = {"schema": Schema.OP, "count": operations, "first_ns": BASE, "last_ns": BASE + 10**9}
    made = run(
        processes=[{"proc": k, "rank": k, "mode": "simple"} for k in range(processes)],
        channels=[{"proc": 0, "layer": Layer.OFI}],
        routes=[{}],
    )
    chunks = [{"proc": k, **chunk} for k in range(processes)]
    made = made.with_results({"chunk_times": table(STAGE_TABLES["chunk_times"], chunks)})
    tracks = Tracks.of(made)
    return plan(Chosen.of(parse(**options), tracks, BASE), budget_mb * MB, made, tracks)


def notes(made, **counts):
    names = ("not_chosen", "beyond_budget", "slices", "instants", "kernels_absent")
    return "\n".join(made.notes({**dict.fromkeys(names, 0), **counts}))


def test_a_budget_below_the_counters_shows_these_alone_and_says_what_they_take():
    made = planned(4096, 20_000, 50)
    assert made.is_cut and made.chosen.is_nothing
    text = notes(made, not_chosen=7, beyond_budget=7)
    assert "counters alone take about 55 MB, the budget is 50 MB: no slices fit" in text
    assert "7 records are left out, for the budget" in text
    assert "is shown" not in text and "as chosen" not in text and "nothing matches" not in text
    (some,) = re.findall(r"budget_mb=(\d+) or more shows some", text)
    (everything,) = re.findall(r"budget_mb=(\d+) all", text)
    assert not planned(4096, 20_000, int(some)).chosen.is_nothing
    assert planned(4096, 20_000, int(some) - 1).chosen.is_nothing
    assert not planned(4096, 20_000, int(everything)).is_cut


@pytest.mark.parametrize("budget_mb", [50, 55, 56, 60, 100, 400])
def test_a_cut_lies_in_the_window_that_was_asked_for(budget_mb):
    made = planned(4096, 20_000, budget_mb, window="100ms..250ms")
    assert made.is_cut
    room = (budget_mb * MB - 2 * TIMELINE_CELLS * 26) / (4096 * 20_000 * 45)
    if room < 0:
        assert made.chosen.is_nothing
    else:
        assert (made.chosen.begin_ns, made.asked_end_ns) == (BASE + 10**8, BASE + 250 * 10**6)
        assert (made.chosen.end_ns - BASE) / 10**9 == pytest.approx(0.1 + room, rel=1e-6)


@pytest.mark.parametrize("operations", [1, 30, 400, 3000, 50_000])
def test_counters_are_estimated_as_of_operations_that_lie_anywhere(operations):
    chance = random.Random(operations)
    values = 0
    for _direction in range(2):
        used = {chance.randrange(TIMELINE_BINS) for _ in range(operations)}
        values += len(used) + len({at + 1 for at in used} - used)
    of_slices = planned(1, 2 * operations, 1000).needed_bytes - 2 * operations * 45
    assert of_slices == pytest.approx(values * 26, rel=0.1, abs=52)


def test_counters_of_thousands_of_processes_leave_room_for_slices():
    made = planned(4096, 20_000, 1000)
    counters = made.needed_bytes - 4096 * 20_000 * 45
    assert counters == pytest.approx(2 * TIMELINE_CELLS * 26, abs=2)
    assert (made.chosen.end_ns - BASE) / 10**9 == pytest.approx(
        (1000 * MB - 2 * TIMELINE_CELLS * 26) / (4096 * 20_000 * 45), rel=1e-3
    )


@pytest.mark.parametrize("seed", range(5))
def test_counters_keep_the_window_and_of_other_bins_the_largest_and_the_last(seed):
    chance = random.Random(seed)
    t = np.array(sorted(chance.sample(range(2000), 300)))
    value = np.array([chance.randrange(20) for _ in t])
    kept = thin(t, value, 700, 900, 100).tolist()
    wanted = {k for k in range(t.size) if 700 <= t[k] < 900}
    wanted |= {max(k for k in range(t.size) if t[k] < 700)}
    for begin in range(0, 2000, 100):
        mine = [k for k in range(t.size) if begin <= t[k] < begin + 100]
        if mine:
            wanted |= {mine[-1], max(mine, key=lambda k: (value[k], -k))}
    assert kept == sorted(wanted)
    assert thin(t, value, 0, 2000, 100).tolist() == list(range(t.size))
