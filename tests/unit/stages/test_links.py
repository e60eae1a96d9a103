"""Idle links, against plain sets of slots."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.partition import Partition, Run
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.links import SLOTS, Links, slots_of
from sigmatrace.trace_format import Layer, Op, OpFlag
from tests.factories import START_NS, make_partition, make_run, make_table

Row = dict[str, Any]
CHANNELS = list(itertools.product((-1, 0, 1, 2), (-1, 0, 1), (Layer.OFI, Layer.VERBS)))
"""Source, destination, layer."""
SPAN_NS = 40_000_000
INITIATORS = (Op.SEND, Op.PUT, Op.GET, Op.ATOMIC, Op.ATOMIC_FETCH, Op.PUT_DATA)


@functools.cache
def run_of(**facts: object) -> Run:
    channels = [{"proc": 0, "layer": layer} for _, _, layer in CHANNELS]
    routes = [{"src_proc": src, "dst_proc": dst} for src, dst, _ in CHANNELS]
    times = {"base_ns": START_NS, "last_ns": START_NS + SPAN_NS - 1}
    run = make_run({**times, **facts}, processes=[{}] * 3, channels=channels)
    return run.with_results({"routes": make_table(STAGE_TABLES["routes"], routes)})


def part(run: Run, rows: list[tuple[int, int, Op, int]], number: int = 0) -> Partition:
    """Rows: time since the start, channel, operation, flags."""
    t, channel, op, flags = zip(*rows, strict=True) if rows else ((), (), (), ())
    ops = {
        "t_ns": np.array(t, np.int64) + START_NS,
        "channel": np.array(channel, np.uint32),
        "op": np.array(op, np.uint8),
        "flags": np.array(flags, np.uint8),
    }
    return replace(make_partition(number, ops=ops), run=run)


def links(run: Run, *parts: list[tuple[int, int, Op, int]]) -> tuple[list[Row], Row]:
    stage = Links()
    used = [stage.summarize(part(run, rows, k)) for k, rows in enumerate(parts)]
    traffic = [
        {
            **dict(zip(("src_proc", "dst_proc"), ends_of(channel, op), strict=True)),
            **{"layer": layer_of(channel), "op": op, "count": 1, "size_bytes": 2**40},
            "nested": int(flags & OpFlag.NESTED > 0),
        }
        for _, channel, op, flags in itertools.chain(*parts)
    ]
    whole = run.with_results({"traffic": make_table(STAGE_TABLES["traffic"], traffic)})
    resolved = stage.resolve(functools.reduce(stage.combine, used), whole)
    table = stage.results(resolved)["links"]
    assert table.schema.equals(make_table(STAGE_TABLES["links"], []).schema)
    return table.to_pylist(), dict(stage.account(resolved))


def ends_of(channel: int, op: Op) -> tuple[int, int]:
    src, dst = CHANNELS[channel][:2] if channel < len(CHANNELS) else (-1, -1)
    return (dst, src) if op == Op.GET else (src, dst)


def layer_of(channel: int) -> int:
    return CHANNELS[channel][2] if channel < len(CHANNELS) else 0


rows = st.tuples(
    st.integers(0, SPAN_NS - 1),
    st.integers(0, len(CHANNELS) + 1),
    st.sampled_from([*INITIATORS, Op.RECV, Op.FLUSH, Op.NOP]),
    st.sampled_from([0, 0, OpFlag.NESTED, OpFlag.NESTED | OpFlag.INLINE, OpFlag.SIZE_UNKNOWN]),
)


@given(st.lists(st.lists(rows, max_size=30), min_size=1, max_size=4))
def test_idle_is_what_plain_sets_say(parts: list[list[Any]]) -> None:
    run = run_of()
    table, account = links(run, *parts)
    begin_ns, shift = slots_of(run)
    slots: dict[tuple[int, int, int], list[int]] = {}
    for t, channel, op, flags in itertools.chain(*parts):
        if op in INITIATORS and not flags & OpFlag.NESTED:
            slots.setdefault((*ends_of(channel, op), layer_of(channel)), []).append(t >> shift)
    found = {(row["src_proc"], row["dst_proc"], row["layer"]): row for row in table}
    assert found.keys() == slots.keys() and len(found) == len(table)
    for key, used in slots.items():
        row, places = found[key], sorted(set(used))
        gaps = [later - one - 1 for one, later in itertools.pairwise(places)]
        assert row["idle_ns"] == sum(gaps) << shift
        assert row["longest_idle_ns"] == max(gaps, default=0) << shift
        assert row["first_ns"] == begin_ns + (places[0] << shift)
        assert row["last_ns"] == begin_ns + (places[-1] + 1 << shift)
        assert (row["operations"], row["size_bytes"]) == (len(used), len(used) * 2**40)
        assert row["slot_ns"] == 1 << shift
    counted = sum(map(len, slots.values()))
    assert (account["operations"], account["outside_of_the_time"]) == (counted, 0)
    assert sum(account["balance"][0]["left"]) == sum(map(len, parts))


@given(st.integers(0, 2**62), st.integers(0, 2**61))
def test_slots_cover_the_run(base_ns: int, span_ns: int) -> None:
    begin_ns, shift = slots_of(run_of(base_ns=base_ns, last_ns=base_ns + span_ns))
    assert begin_ns == base_ns and span_ns >> shift < SLOTS
    assert shift == 10 or span_ns >> shift >= SLOTS // 2 - 1


def test_slots_are_those_of_a_window() -> None:
    window = START_NS + 1_000_000, START_NS + 3_000_000
    begin_ns, shift = slots_of(run_of(window_ns=window))
    assert (begin_ns, shift) == (window[0], 11)
    assert slots_of(run_of(window_ns=(0, 2**62))) == slots_of(run_of())


def test_what_lies_outside_of_the_time_counts_at_its_edge_and_is_told() -> None:
    run = run_of()
    sends = [(t, 7, Op.SEND, 0) for t in (-5_000, 20_000_000, SPAN_NS << 10)]
    ((row,), account) = links(run, [*sends, (-7, 7, Op.RECV, 0)])
    _, shift = slots_of(run)
    assert account["outside_of_the_time"] == 2 and row["operations"] == 3
    assert row["first_ns"] == START_NS and row["last_ns"] == START_NS + (SLOTS << shift)
    assert row["idle_ns"] == SLOTS - 3 << shift


def test_more_operations_than_a_block_of_the_kernel() -> None:
    run, count = run_of(), 5000
    every = [(k * 8000, 3, Op.SEND if k % 2 else Op.RECV, 0) for k in range(count)]
    ((row,), account) = links(run, every)
    assert (account["operations"], account["not_counted"]) == (count // 2, count // 2)
    assert row["idle_ns"] == 0 and row["first_ns"] == START_NS


def test_nothing_took_place() -> None:
    assert links(run_of(), [])[0] == []
    assert links(run_of(), [(5, 1, Op.RECV, 0)], [])[0] == []


def test_bytes_beyond_64_bits_are_at_most_the_largest_number() -> None:
    run, stage = run_of(), Links()
    row = {"src_proc": -1, "dst_proc": -1, "layer": 1, "op": Op.SEND, "count": 1}
    traffic = [{**row, "size_bytes": 2**63}, {**row, "op": Op.PUT, "size_bytes": 2**63}]
    used = stage.summarize(part(run, [(5, 0, Op.SEND, 0)]))
    whole = run.with_results({"traffic": make_table(STAGE_TABLES["traffic"], traffic)})
    found = stage.results(stage.resolve(used, whole))["links"]
    assert found["size_bytes"].to_pylist() == [2**64 - 1]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_partitions_does_not_matter(order: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    run, stage = run_of(), Links()
    parts = [
        [(int(t), int(c), Op.SEND, 0) for t, c in zip(*drawn, strict=True)]
        for drawn in rng.integers(0, len(CHANNELS), (3, 2, 50)) * np.array([[1000], [1]])
    ]
    used = [stage.summarize(part(run, rows)) for rows in parts]
    one, other = (
        functools.reduce(stage.combine, [used[k] for k in ks]) for ks in (range(3), order)
    )
    assert np.array_equal(one.key, other.key) and np.array_equal(one.bits, other.bits)
