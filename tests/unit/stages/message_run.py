"""Drawn messages (``message_pairs``) of a small run, for the stages that read them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES
from sigmatrace.stages.base import Stage
from tests.factories import START_NS, make_run, make_table

Row = dict[str, Any]
PROCS = 4


def _row(drawn: tuple[Any, ...]) -> Row:
    src, dst, layer, size, known, uncertain, send, latency = drawn
    return {
        "src_proc": src,
        "dst_proc": dst,
        "layer": layer,
        "size_bytes": size,
        "received_bytes": size,
        "sizes_known": known,
        "uncertain": uncertain,
        "send_ns": START_NS + send,
        "receive_ns": START_NS + send + latency,
        "latency_ns": latency,
    }


proc = st.integers(0, PROCS - 1)
sizes = st.sampled_from([0, 1, 7, 8, 2**20, 2**64 - 1])
# Few times, so that many are equal.
drawn = st.tuples(
    *(proc, proc, st.sampled_from([1, 1, 4]), sizes, st.booleans(), st.booleans()),
    *(st.integers(0, 60), st.integers(-5, 40)),
)
messages = st.lists(drawn.map(_row), max_size=40)


def message(src: int, dst: int, send: int, receive: int, **more: Any) -> Row:
    """Return a message of 8 bytes at layer 1; times since the start of the run."""
    return {**_row((src, dst, 1, 8, True, False, send, receive - send)), **more}


def run_of(rows: list[Row]) -> Run:
    run = make_run(processes=[{}] * PROCS)
    return run.with_results({"message_pairs": make_table(STAGE_TABLES["message_pairs"], rows)})


def tables(stage: Stage, run: Run) -> tuple[dict[str, list[Row]], Row, list[str]]:
    """Return a stage's tables, of the columns that it declares, its account and its lines."""
    resolved = stage.survey(run)
    made: dict[str, pa.Table] = dict(stage.results(resolved))
    assert made.keys() == stage.produces.keys()
    for name, table in made.items():
        assert table.schema.equals(make_table(STAGE_TABLES[name], []).schema), name
    found = {name: table.to_pylist() for name, table in made.items()}
    lines = list(stage.lines(resolved, run.with_results(made)))
    return found, dict(stage.account(resolved)), lines


def balances(account: Row, count: int) -> bool:
    """Whether equations hold with so many messages."""

    def value(side: Any) -> int:
        if isinstance(side, list):
            return sum(map(value, side))
        return count if side == "stages.messages.messages" else side

    assert account["balance"]
    return all(value(one["left"]) == value(one["right"]) for one in account["balance"])
