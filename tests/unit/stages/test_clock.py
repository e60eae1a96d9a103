from __future__ import annotations

import numpy as np
import pytest

from sigmatrace.errors import PipelineError
from sigmatrace.stages.clock import Clock
from sigmatrace.trace_format import Layer, Op, Schema
from tests.factories import START_NS, make_partition, make_run

HZ = 2_000_000_000
BOOT_TSC = 10**15


def tsc_at(seconds: float, drift: float = 0.0) -> int:
    """TSC of a host whose counter runs ``drift`` faster than its header says."""
    return BOOT_TSC + round(seconds * HZ * (1 + drift))


def pair(proc: int, seconds: float, off_ns: int = 0, width: int = 100, **more):
    drift = more.pop("drift", 0.0)
    wall = START_NS + round(seconds * 1e9) + off_ns
    tsc = tsc_at(seconds, drift)
    return {"proc": proc, "tsc": tsc, "wall_ns": wall, "width_tsc": width, "source": "realtime"}


def times(run, *rows):
    """t_ns of (proc, tsc) rows, and the stage's other products."""
    stage = Clock()
    resolved = stage.resolve(stage.survey(run), run)
    proc, tsc = zip(*rows, strict=True)
    part = make_partition(ops={"proc": proc, "t_tsc": tsc}, marks={"proc": proc, "t_tsc": tsc})
    out = stage.apply(part, resolved)
    assert (out.column("ops", "t_ns") == out.column("marks", "t_ns")).all()
    quality = stage.results(resolved)["clock_quality"].to_pylist()
    return (
        out.column("ops", "t_ns") - START_NS,
        quality,
        stage.account(resolved),
        stage.facts(resolved),
    )


def test_two_pairs_give_the_rate_and_both_ends_are_continued():
    drift = 40e-6
    run = make_run(processes=[{}], clocks=[pair(0, 0, drift=drift), pair(0, 10, drift=drift)])
    rows = [(0, tsc_at(s, drift)) for s in (-1, 0, 2.5, 10, 12)]
    t, quality, account, facts = times(run, *rows)
    assert t.tolist() == [-(10**9), 0, 2_500_000_000, 10**10, 12 * 10**9]
    assert quality[0]["calibrated"] and quality[0]["bad_pairs"] == 0
    assert quality[0]["drift_ppm"] == pytest.approx(-40, abs=0.01)
    assert quality[0]["error_ns"] == pytest.approx(25, rel=0.01)
    assert account["steps"]["count"] == 0
    assert facts == {"base_ns": START_NS, "last_ns": START_NS + 10**10}


def test_requests_and_completions_of_verbs_get_the_times_of_posting_and_of_polling():
    run = make_run(processes=[{}, {}], clocks=[pair(p, s) for p in range(2) for s in (0, 10)])
    stage = Clock()
    posted = [tsc_at(1), 0, tsc_at(3)]
    part = make_partition(
        requests={"proc": [0, 1], "t_tsc": [tsc_at(1), tsc_at(3)]},
        cqes={"proc": [0, 0, 1], "t_tsc": [tsc_at(s) for s in (2, 4, 5)], "posted_tsc": posted},
    )
    out = stage.apply(part, stage.resolve(stage.survey(run), run))
    after = {"requests": [1, 3], "cqes": [2, 4, 5]}
    for table, seconds in after.items():
        assert out.column(table, "t_ns").tolist() == [START_NS + s * 10**9 for s in seconds]
    assert out.column("cqes", "posted_ns").tolist() == [START_NS + 10**9, 0, START_NS + 3 * 10**9]


def test_doorbells_slots_and_kernels_get_times_and_lengths():
    run = make_run(processes=[{}], clocks=[pair(0, 0), pair(0, 10)])
    stage = Clock()
    when = {"proc": [0, 0], "t_tsc": [tsc_at(1), tsc_at(3)]}
    part = make_partition(
        doorbells={**when, "delay_tsc": [3000, 0]},
        wqes=when,
        kernels={**when, "duration_tsc": [5 * HZ, 2**64 - 1]},
    )
    out = stage.apply(part, stage.resolve(stage.survey(run), run))
    for table in ("doorbells", "wqes", "kernels"):
        assert out.column(table, "t_ns").tolist() == [START_NS + s * 10**9 for s in (1, 3)]
    assert out.column("doorbells", "delay_ns").tolist() == [1500, 0]
    assert out.column("kernels", "duration_ns").tolist() == [5 * 10**9, 2**61]


@pytest.mark.parametrize("layer", [Layer.VERBS, Layer.MLX5DV])
def test_the_position_of_a_post_is_no_time(layer):
    """Queue pairs keep the position on the queue where others keep how long the call took."""
    channels = [{"proc": 0, "layer": one} for one in (Layer.UCP, layer)]
    run = make_run(processes=[{}], clocks=[pair(0, 0), pair(0, 10)], channels=channels)
    stage = Clock()
    ops = {"proc": [0] * 4, "channel": [0, 1, 1, 2], "op": [Op.SEND] * 4, "aux": [200] * 4}
    out = stage.apply(make_partition(ops=ops), stage.resolve(stage.survey(run), run))
    assert out.column("ops", "call_ns").tolist() == [100, 0, 0, 100]


def test_days_are_exact_to_a_nanosecond():
    day = 86_400
    run = make_run(processes=[{}], clocks=[pair(0, 0), pair(0, 5 * day)])
    t, *_ = times(run, (0, tsc_at(0) + 2 * day * HZ + 14), (0, tsc_at(12 * day)))
    assert t.tolist() == [2 * day * 10**9 + 7, 12 * day * 10**9]


def test_one_pair_takes_the_rate_of_the_header():
    run = make_run(processes=[{}], clocks=[pair(0, 1)])
    t, quality, account, _ = times(run, (0, tsc_at(3)))
    assert t.tolist() == [3 * 10**9]
    assert quality[0]["calibrated"] and account["unsure_rate"]["count"] == 1


@pytest.mark.parametrize("wrong", [0.6, 0.99, 1.033, 1.61])
@pytest.mark.parametrize("at", [(0, 0.6), (0, 0.6, 1.3)])
def test_pairs_are_right_and_a_frequency_that_was_measured_badly_is_not(wrong, at):
    """Three pairs prove it; with two the clock may as well have been set, and that is said."""
    run = make_run(processes=[{"tsc_hz": round(HZ * wrong)}], clocks=[pair(0, s) for s in at])
    t, quality, account, _ = times(run, *[(0, tsc_at(s)) for s in (0, 0.25, 2)])
    assert t.tolist() == [0, 250_000_000, 2 * 10**9]
    assert quality[0]["bad_pairs"] == 0 and account["steps"]["count"] == 0
    assert account["unsure_rate"]["first"] == (["rank 0"] if len(at) == 2 else [])
    line = Clock().lines(Clock().survey(run), run)[1:]
    assert line == (
        ["             1 process with too few readings of the clock: their rates are uncertain"]
        if len(at) == 2
        else []
    )


def test_a_clock_set_by_more_than_any_frequency_is_wrong_was_set():
    run = make_run(processes=[{}], clocks=[pair(0, 0), pair(0, 1, off_ns=3_600_000_000_000)])
    _, _, account, _ = times(run, (0, tsc_at(0)))
    assert account["steps"]["count"] == 1 and "+3600.000000 s" in account["steps"]["first"][0]
    assert account["unsure_rate"] == {"count": 1, "first": ["rank 0"]}


def test_one_pair_takes_the_rate_of_its_host():
    drift = 50e-6
    clocks = [pair(0, 0, drift=drift), pair(0, 10, drift=drift), pair(1, 4, drift=drift)]
    run = make_run(processes=[{}, {}, {}], clocks=clocks)
    t, quality, account, _ = times(run, (1, tsc_at(8, drift)), (2, tsc_at(8, drift)))
    assert np.abs(t - 8 * 10**9).max() <= 1
    assert [row["pairs"] for row in quality] == [2, 1, 0]
    assert all(row["calibrated"] for row in quality)
    assert account["by_host"] == {"count": 1, "first": ["rank 2"]}


def test_without_any_pair_a_process_is_named_and_starts_at_its_start():
    run = make_run(processes=[{"boot_id": ""}, {}], clocks=[pair(1, 0), pair(1, 1)])
    t, quality, account, _ = times(run, (0, HZ), (1, tsc_at(1)))
    assert t.tolist() == [10**9, 10**9]
    assert [row["calibrated"] for row in quality] == [False, True]
    assert account["uncalibrated"] == {"count": 1, "first": ["rank 0"]}


def chunk(proc: int, first: float, last: float, count: int = 1) -> dict[str, int]:
    ends = {"first_tsc": tsc_at(first), "last_tsc": tsc_at(last)}
    return {"proc": proc, "schema": Schema.OP, "count": count, **ends}


@pytest.mark.parametrize("last", [5, 12])
def test_the_run_reaches_to_the_last_event_of_any_process(last):
    chunks = [chunk(0, 1, 3), chunk(1, 2, last), chunk(0, -(10**5), 10**5, count=0)]
    clocks = [pair(0, 0), pair(0, 10), pair(1, 0.5)]
    run = make_run(processes=[{}, {}], clocks=clocks, chunks=chunks)
    facts = times(run, (0, BOOT_TSC))[3]
    assert facts == {"base_ns": START_NS, "last_ns": START_NS + max(last, 10) * 10**9}


def test_the_run_reaches_back_to_an_event_before_the_first_reading_of_a_clock():
    run = make_run(processes=[{"start_ns": 0}], clocks=[pair(0, 0)], chunks=[chunk(0, -2, 1)])
    facts = times(run, (0, BOOT_TSC))[3]
    assert facts == {"base_ns": START_NS - 2 * 10**9, "last_ns": START_NS + 10**9}


def test_events_of_a_process_without_a_clock_are_no_part_of_the_time_of_others():
    chunks = [chunk(0, 1, 3), chunk(1, 1, 3)]
    run = make_run(processes=[{"boot_id": ""}, {}], clocks=[pair(1, 0)], chunks=chunks)
    facts = times(run, (0, BOOT_TSC))[3]
    assert facts == {"base_ns": START_NS, "last_ns": START_NS + 3 * 10**9}


def test_where_no_process_has_a_clock_events_alone_tell_how_long_the_run_was():
    run = make_run(processes=[{"boot_id": ""}], chunks=[chunk(0, 1, 3)])
    t, *_, facts = times(run, (0, tsc_at(1)), (0, tsc_at(3)))
    assert facts == dict(zip(("base_ns", "last_ns"), (t + START_NS).tolist(), strict=True))


def test_hosts_keep_their_own_counters():
    other = {**pair(1, 0), "tsc": 5}, {**pair(1, 1), "tsc": 5 + HZ}
    run = make_run(
        processes=[{}, {"boot_id": "other", "host": "b"}], clocks=[pair(0, 0), pair(0, 1), *other]
    )
    t, _, account, _ = times(run, (0, tsc_at(2)), (1, 5 + 2 * HZ))
    assert t.tolist() == [2 * 10**9, 2 * 10**9]
    assert account["maps"] == 2


def test_a_wide_reading_does_not_bend_time():
    clocks = [pair(0, s) for s in range(10)]
    clocks[5] = pair(0, 5, off_ns=400_000, width=1_600_000)
    t, quality, account, _ = times(make_run(processes=[{}], clocks=clocks), (0, tsc_at(5)))
    assert t.tolist() == [5 * 10**9]
    assert quality[0]["bad_pairs"] == 1
    assert account["bad_pairs"] == 1
    assert account["worst_width_ns"] == 50


@pytest.mark.parametrize("at", [[4], [0], [9], [4, 5], [2, 7]])
def test_a_wrong_pair_is_left_out(at):
    clocks = [
        pair(0, s, off_ns=3_000_000_000 * (1 + at.index(s)) if s in at else 0) for s in range(10)
    ]
    run = make_run(processes=[{}], clocks=clocks)
    t, quality, account, _ = times(run, *[(0, tsc_at(s)) for s in range(-1, 12)])
    assert np.abs(t - np.arange(-1, 12) * 10**9).max() <= 1
    assert account["steps"]["count"] == 0
    assert quality[0]["bad_pairs"] == len(at)


@pytest.mark.parametrize("jump", [-3_600_000_000_000, -20_000_000, 20_000_000, 3_600_000_000_000])
def test_a_step_of_the_wall_clock_is_taken_out_and_named(jump):
    """Set after 3 of 10 s: times stay on the clock of the longer, later part."""
    clocks = [pair(0, s, off_ns=jump if s > 3 else 0) for s in range(11)]
    run = make_run(processes=[{}], clocks=clocks)
    seconds = np.arange(0, 10.5, 0.25)
    t, quality, account, _ = times(run, *[(0, tsc_at(s)) for s in seconds])
    assert np.abs(t - jump - seconds * 1e9).max() <= 1
    assert quality[0]["bad_pairs"] == 0
    assert account["steps"]["count"] == 1
    assert f"{jump / 1e9:+.6f} s" in account["steps"]["first"][0]


def test_slewing_is_followed():
    """The wall clock gains 400 ppm for 5 s, then loses it."""
    clocks = [pair(0, s, off_ns=round(400_000 * min(s, 10 - s))) for s in range(11)]
    t, quality, account, _ = times(make_run(processes=[{}], clocks=clocks), (0, tsc_at(5)))
    assert t.tolist() == [5 * 10**9 + 2_000_000]
    assert quality[0]["bad_pairs"] == 0 and account["steps"]["count"] == 0


def test_many_processes_of_a_host_with_noise_stay_monotonic_and_close():
    rng = np.random.default_rng(1)
    clocks = []
    for proc in range(16):
        for s in range(20):
            width = int(rng.integers(60, 300))
            noise = round(rng.uniform(-0.5, 0.5) * width / 2)
            clocks.append(pair(proc, s + proc * 1e-5, off_ns=noise, width=width))
    run = make_run(processes=[{}] * 16, clocks=clocks)
    ticks = np.sort(rng.integers(tsc_at(0), tsc_at(19), 5000)).astype(np.uint64)
    t, quality, *_ = times(run, *[(k % 16, int(x)) for k, x in enumerate(ticks)])
    assert (np.diff(t) >= 0).all()
    assert np.abs(t - (ticks - np.uint64(BOOT_TSC)).astype(np.int64) // 2).max() <= 76
    assert sum(row["bad_pairs"] for row in quality) == 0


def test_a_process_that_contradicts_its_host_is_fitted_alone_and_named():
    clocks = [pair(p, s) for p in (0, 1) for s in range(6)]
    clocks += [{**pair(2, s), "tsc": 77 + s * HZ} for s in range(3)]
    run = make_run(processes=[{}, {}, {}], clocks=clocks)
    t, _, account, _ = times(run, (0, tsc_at(4)), (2, 77 + 4 * HZ))
    assert t.tolist() == [4 * 10**9, 4 * 10**9]
    assert account["fitted_alone"] == {"count": 1, "first": ["rank 2"]}


def test_a_counter_that_wraps_and_nonsense_pairs_do_not_crash():
    near = 2**64 - HZ  # one second before the wrap
    clocks = [
        {**pair(0, 0), "tsc": near},
        {**pair(0, 2), "tsc": HZ},
        {**pair(0, 3), "tsc": 2 * HZ, "wall_ns": -5},
        {**pair(0, 3), "tsc": 2**63, "width_tsc": 2**63},
    ]
    t, quality, *_ = times(make_run(processes=[{}], clocks=clocks), (0, near), (0, 2 * HZ))
    assert t.tolist() == [0, 3 * 10**9]
    assert quality[0]["bad_pairs"] == 2


def test_call_ns_is_the_call_and_not_a_receive():
    run = make_run(processes=[{}], clocks=[pair(0, 0), pair(0, 1)])
    stage = Clock()
    resolved = stage.resolve(stage.survey(run), run)
    ops = [{"op": Op.SEND, "aux": 2000}, {"op": Op.RECV, "aux": 2000}]
    part = stage.apply(make_partition(ops=ops), resolved)
    assert part.column("ops", "call_ns").tolist() == [1000, 0]


def test_an_unknown_process_is_an_error_that_names_the_column():
    run = make_run(processes=[{}], clocks=[pair(0, 0)])
    with pytest.raises(PipelineError, match=r"ops\.proc"):
        times(run, (3, 5))
