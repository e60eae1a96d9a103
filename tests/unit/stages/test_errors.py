"""What did not go well, against plain counters."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.errors import ErrorSummary
from sigmatrace.trace_format import Layer, OpFlag
from tests.factories import make_partition, make_run, make_table, queue_pair

RUN = make_run(
    processes=[{}, {}],
    channels=[
        {"proc": 0, "object": 1, "layer": Layer.OFI},
        {"proc": 1, "object": 4, "layer": Layer.UCP},
    ],
    endpoints=[
        {"proc": 0, "object": 1, "layer": Layer.OFI},
        queue_pair(1, 7, "aa:11"),
        queue_pair(0, 7, "bb:22", layer=Layer.MLX5DV),
    ],
)
LAYERS = {(1, 7): Layer.VERBS, (0, 7): Layer.MLX5DV, (0, 1): Layer.OFI}
CHANNELS = [(1, Layer.OFI), (4, Layer.UCP), (0, 0)]
"""Object and layer; the last one is not known."""

ops = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 127))
completions = st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from([0, 0, -5, 265]))
cqes = st.tuples(st.integers(0, 1), st.sampled_from([1, 7, 9]), st.sampled_from([0, 0, 4, 5]))
parts = st.tuples(*(st.lists(rows, max_size=12) for rows in (ops, completions, cqes)))


def columns(names: str, rows: list[tuple[int, ...]], last: str) -> dict[str, Any]:
    given = zip(*rows, strict=True) if rows else ((), (), ())
    return dict(zip(names.split(), (np.array(x, last) for x in given), strict=True))


def errors(drawn: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any], list[str]]:
    stage = ErrorSummary()
    made = [
        make_partition(
            number,
            ops=columns("proc channel flags", one[0], "i4"),
            completions=columns("proc channel status", one[1], "i4"),
            cqes=columns("proc object status", one[2], "i4"),
        )
        for number, one in enumerate(drawn)
    ]
    used = [stage.summarize(replace(part, run=RUN)) for part in made]
    resolved = stage.resolve(functools.reduce(stage.combine, used), RUN)
    table = stage.results(resolved)["errors"]
    assert table.schema.equals(make_table(STAGE_TABLES["errors"], []).schema)
    return table.to_pylist(), dict(stage.account(resolved)), list(stage.lines(resolved, RUN))


@given(st.lists(parts, min_size=1, max_size=3))
def test_counts_are_those_of_a_plain_counter(drawn: list[Any]) -> None:
    want: Counter[tuple[Any, ...]] = Counter()
    for operations, ends, work in drawn:
        for proc, channel, flags in operations:
            if flags & OpFlag.FAILED:
                want[proc, *CHANNELS[channel], "failed operation", 0] += 1
        for proc, channel, status in ends:
            if status:
                want[proc, *CHANNELS[channel], "completion", status] += 1
        for proc, thing, status in work:
            if status:
                layer = LAYERS.get((proc, thing), 0)
                want[proc, thing, layer, "work completion", status] += 1
    table, account, _ = errors(drawn)
    keys = [tuple(row.values())[:-1] for row in table]
    assert keys == sorted(want)
    assert [row["count"] for row in table] == [want[key] for key in keys]
    work = sum(n for key, n in want.items() if key[3] == "work completion")
    assert account["work_completions"] == account["balance"][0]["left"] == work


def test_the_summary_tells_of_each_kind() -> None:
    one = ([(0, 0, OpFlag.FAILED)], [(1, 1, -5)] * 2, [(1, 7, 5), (0, 7, 4)])
    assert errors([one])[2] == [
        "errors     2 work completions with an error in 2 processes",
        "errors     2 completions with an error in 1 process",
        "errors     1 failed operation in 1 process",
    ]
    assert errors([([], [], [])])[0::2] == ([], [])
