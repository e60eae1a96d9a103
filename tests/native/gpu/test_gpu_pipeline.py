"""What the repeater recorded, through the pipeline: stages wqe and doorbell say what was posted."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from gpu_told import Posted, Run

from sigmatrace import api
from sigmatrace.testing.write import map_item
from sigmatrace.trace_format import Item

AGAIN = 2
OFF = 3
VALUES = ("opcode", "op", "size_bytes", "raddr", "rkey", "imm", "sges", "ce", "remote_qpn")


def piped(run: Run, unconnected: bool = False) -> tuple[api.Result, list[dict[str, Any]]]:
    """Name the queue pairs, as the wrappers do, and run the pipeline; slots as rows."""
    (path,) = run.out.glob("*.msgpack")
    with path.open("ab") as file:
        for number, (object_, totals) in enumerate(sorted(run.totals.items())):
            fields = {
                **{"type": "mlx5_qp", "id": object_, "t_tsc": 0, "qpn": 0x4000 + number},
                **{"qp_type": "dci" if unconnected else "rc", "sgid": bytes(range(16))},
                **{"doorbells": totals.doorbells, "slots": totals.slots},
                **{"invalid_slots": totals.invalid, "uncopied_slots": totals.uncopied},
            }
            file.write(map_item(Item.OBJECT, fields))
    result = api.run(run.out, ["parquet"])
    assert result.ledger["balanced"], [x for x in result.ledger["balance"] if not x["ok"]]
    slots = pq.read_table(result.out / "parquet" / "wqes").to_pylist()
    return result, slots


def told(one: Posted) -> tuple[int, ...]:
    what = one.opcode, one.op, one.size, one.raddr, one.rkey, one.imm, one.sges
    return (one.index, one.slots, *what, 2 * one.signaled, one.qpn)


def first_slots(slots: list[dict[str, Any]], object_: int) -> list[tuple[int, ...]]:
    own = [row for row in slots if row["qp"] == object_ and row["slots"]]
    return [(row["index"], row["slots"], *(row[name] for name in VALUES)) for row in own]


@pytest.mark.parametrize(
    ("case", "vector"),
    [
        (("mix", 64, 528, 0, 0, 5), 0),
        (("mix", 64, 528, 2, 1, 5), 2),
        (("shared", 300), 0),
        (("twice", 30), 0),
    ],
)
def test_slots_tell_what_was_posted(repeat, case, vector) -> None:
    run = repeat(*case)
    result, slots = piped(run, unconnected=vector > 0)
    assert all(row["decoded"] == row["kind"] for row in slots)
    table = {row["object"]: row for row in result.tables["doorbells_by_qp"].to_pylist()}
    assert set(table) == set(run.by_pair())
    for object_, posted in run.by_pair().items():
        assert first_slots(slots, object_) == [told(one) for one in posted]
        rows = run.doorbells()[object_]
        own = [row for row in rows if not row["flags"] & AGAIN]
        got, end = table[object_], posted[-1].index + posted[-1].slots
        assert (got["doorbells"], got["again"]) == (len(own), len(rows) - len(own))
        assert got["slots"] == got["read"] == end
        assert got["wqes"] == got["operations"] == len(posted)
        assert got["wqe_bytes"] == got["size_bytes"] == sum(one.size for one in posted)
        assert got["slots_max"] == max(row["slots"] for row in rows)
        assert 0 <= got["delay_min_ns"] <= got["delay_max_ns"] <= got["delay_total_ns"]
    count = result.ledger["stages"]["doorbell"]
    assert count["queue_pairs_compared"] == len(table) and count["queue_pairs_not_compared"] == 0
    assert count["astray"] == count["invalid"] == count["unknown_queue_pair"] == 0
    batches = result.tables["doorbell_batches"]
    assert pc.sum(batches["doorbells"]).as_py() == sum(
        row["slots"] > 0 for rows in run.doorbells().values() for row in rows
    )
    names = [one["name"] for one in result.ledger["balance"]]
    assert any(name.startswith("doorbell: slots that queue pairs counted") for name in names)


def test_doorbells_whose_slots_are_not_read_are_named(repeat) -> None:
    run = repeat("mix", 64, 200, 0, 0, 4, order=OFF)
    result, slots = piped(run)
    assert slots == []
    ((_, totals),) = run.totals.items()
    count = result.ledger["stages"]["doorbell"]
    assert count["slots"] == count["not_read"] == totals.slots
    text = " ".join(result.lines)
    assert f"{totals.slots} slots not read: SIGMATRACE_DOORBELL=off" in text


def test_slots_that_were_overwritten_are_counted(repeat) -> None:
    run = repeat("stall", 60)
    result, slots = piped(run)
    ((_, totals),) = run.totals.items()
    count = result.ledger["stages"]["doorbell"]
    assert count["invalid"] == totals.invalid == sum(row["decoded"] == 3 for row in slots)
    assert count["slots"] - count["read"] == totals.uncopied
