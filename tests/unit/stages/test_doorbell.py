"""Stage doorbell: what is compared, and what is not."""

from __future__ import annotations

import functools
import struct

import numpy as np
import pyarrow as pa
import pytest

from sigmatrace.stages.doorbell import Doorbell
from sigmatrace.stages.wqe import Wqe
from sigmatrace.trace_format import Dir, DoorbellFlag, Kind, Layer, Op, WqeKind
from tests.factories import make_partition, make_run

QP, QPN, GPU = 7, 0x55, 3
SIZE = 4096


def write_wqe(index: int, size: int = SIZE) -> list[int]:
    """The words of an RDMA_WRITE of one slot."""
    control = struct.pack(">II8x", index % 65536 << 8 | 0x08, QPN << 8 | 3)
    raw = control + struct.pack(">QIIIIQ", 64, 5, 0, size, 1, 4096)
    return list(struct.unpack("<8Q", raw + bytes(16)))


def slot(index: int, kind: int = WqeKind.FIRST, words=None):
    words = words or write_wqe(index)
    named = {f"w{k}": word for k, word in enumerate(words)}
    return {"t_tsc": index, "index": index, "qp": QP, "kind": kind, **named}


def operation(index: int, size: int = SIZE):
    row = {"channel": 0, "layer": Layer.MLX5DV, "op": Op.PUT, "size_bytes": size}
    return {**row, "aux": index, "ordinal": index, "t_tsc": index}


def ring(index: int, slots: int, **more):
    words = struct.pack(">II", index % 65536 << 8, QPN << 8)
    row = {"t_tsc": index, "value": int.from_bytes(words, "little"), "index": index, "qp": QP}
    return {**row, "slots": slots, "delay_ns": 10 + slots, **more}


def the_run(mode: str = "full", end: str = "exit", damaged: bool = False, **numbers):
    how = {name: numbers.pop(name) for name in ("absent", "lost") if name in numbers}
    totals = numbers
    return make_run(
        damage=[{"what": "damaged"}] if damaged else [],
        processes=[{"mode": mode, "end": end, **how}],
        channels=[{"object": QP, "layer": Layer.MLX5DV, "kind": Kind.RMA, "dir": Dir.OUT}],
        endpoints=[{"object": QP, "layer": Layer.MLX5DV, "qpn": QPN}],
        gpu_queues=[{"object": QP, "gpu": GPU, "has_totals": bool(totals), **totals}],
    )


def judged(run, *parts):
    stage, slots = Doorbell(), Wqe()
    known = slots.survey(run)
    summaries = []
    for number, (doorbells, wqes, ops) in enumerate(parts):
        part = make_partition(number, wqes=wqes)
        given = {
            "doorbells": (doorbells, {"delay_ns": np.int64}),
            "ops": (ops, {"layer": np.uint8}),
        }
        tables = dict(part.tables)
        for name, (rows, more) in given.items():
            base = make_partition(
                **{name: [{k: v for k, v in r.items() if k not in more} for r in rows]}
            )
            table = base.tables[name]
            for column, kind in more.items():
                table = table.append_column(
                    column, pa.array(np.array([r[column] for r in rows], kind))
                )
            tables[name] = table
        part = type(part)(number, tables, run=run)
        summaries.append(stage.summarize(slots.apply(part, known)))
    merged = functools.reduce(stage.combine, summaries)
    resolved = stage.resolve(merged, run)
    account = stage.account(resolved)
    wrong = [
        one["name"]
        for one in account["balance"]
        if isinstance(one["right"], int) and one["left"] != one["right"]
    ]
    return stage, resolved, account, wrong


def test_all_is_compared_across_partitions():
    wqes, ops = [slot(k) for k in range(6)], [operation(k) for k in range(6)]
    first = [ring(2, 2), ring(2, 0, flags=DoorbellFlag.AGAIN)], wqes[:3], ops[:1]
    second = [ring(6, 4, flags=DoorbellFlag.SYNTHESIZED)], wqes[3:], ops[1:]
    stage, resolved, account, wrong = judged(the_run(slots=6), first, second)
    assert wrong == []
    assert (account["queue_pairs_compared"], account["queue_pairs_not_compared"]) == (1, 0)
    [row] = stage.results(resolved)["doorbells_by_qp"].to_pylist()
    assert row == {
        **{
            "proc": 0,
            "object": QP,
            "qpn": QPN,
            "peer_proc": -1,
            "gpu": GPU,
            "doorbells": 2,
            "again": 1,
            "synthesized": 1,
            "late": 0,
        },
        **{"slots": 6, "not_read": 0, "read": 6, "invalid": 0, "wqes": 6, "wqe_bytes": 6 * SIZE},
        **{"operations": 6, "size_bytes": 6 * SIZE, "slots_max": 4},
        **{"delay_total_ns": 12 + 10 + 14, "delay_min_ns": 10, "delay_max_ns": 14},
    }
    assert [tuple(r.values()) for r in stage.results(resolved)["doorbell_batches"].to_pylist()] == [
        (0, QP, QPN, -1, GPU, 1, 1),
        (0, QP, QPN, -1, GPU, 2, 1),
    ]
    assert stage.lines(resolved, the_run()) == [
        "doorbells  2 seen (stores between two looks are merged), 6 slots announced",
        "           6 work requests in 6 recorded slots",
        "           1 doorbell made from a doorbell record",
    ]


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_wrong_operation_is_an_equation_that_does_not_hold(at):
    ops = [operation(k, SIZE + (k == at)) for k in range(5)]
    _, _, _, wrong = judged(the_run(), ([ring(5, 5)], [slot(k) for k in range(5)], ops))
    assert [name.split(" ")[0] for name in wrong] == ["bytes"]


@pytest.mark.parametrize("at", [0, 2, 4])
def test_what_is_missing_though_nothing_was_lost_is_an_equation_that_does_not_hold(at):
    """The first and the last one, too: both sides then begin, or end, differently."""
    wqes, ops = [slot(k) for k in range(5)], [operation(k) for k in range(5)]
    for lost in ((wqes[:at] + wqes[at + 1 :], ops), (wqes, ops[:at] + ops[at + 1 :])):
        _, _, account, wrong = judged(the_run(), ([ring(5, 5)], *lost))
        assert [name.split(" ")[0] for name in wrong] == ["operations", "bytes"]
        assert (account["queue_pairs_compared"], account["queue_pairs_not_compared"]) == (1, 0)
    for all_lost in (([], ops), (wqes, [])):
        _, _, _, wrong = judged(the_run(), ([ring(5, 5)], *all_lost))
        assert [name.split(" ")[0] for name in wrong] == ["operations", "bytes"]


@pytest.mark.parametrize("at", [0, 2, 4])
@pytest.mark.parametrize("lossy", [{"absent": 1}, {"lost": 1}, {"end": ""}, {"damaged": True}])
def test_queue_pairs_of_processes_that_lack_records_are_not_compared_and_said(at, lossy):
    run = the_run(**lossy)
    wqes, ops = [slot(k) for k in range(5)], [operation(k) for k in range(5)]
    for lost in ((wqes[:at] + wqes[at + 1 :], ops), (wqes, ops[:at] + ops[at + 1 :])):
        stage, resolved, account, wrong = judged(run, ([ring(5, 5)], *lost))
        assert wrong == [] and account["queue_pairs_not_compared"] == 1
        assert "1 QP not compared, as records are missing" in " ".join(stage.lines(resolved, run))
    whole = [ring(5, 5)], wqes, [*ops[:-1], operation(4, SIZE + 1)]
    _, _, account, wrong = judged(run, whole)  # nothing of this one seems to be missing
    assert account["queue_pairs_compared"] == 1 and [name[:5] for name in wrong] == ["bytes"]


def test_another_kind_than_recorded_is_an_equation_that_does_not_hold():
    wqes = [slot(0), slot(1, WqeKind.INVALID), slot(2, WqeKind.FIRST, [0] * 8)]
    for rows, right in ((wqes, 1), (wqes[:1], 1), (wqes[1:2], 0), (wqes[2:], 0)):
        _, _, account, _ = judged(the_run(), ([ring(3, 3)], rows, []))
        [equation] = [one for one in account["balance"] if one["name"].startswith("slots decoded")]
        assert (equation["left"], equation["right"]) == (len(rows), right)


COUNTED = "slots that queue pairs counted = recorded + uncopied, by process"
PART = [ring(9, 9)], [slot(k) for k in range(5)], [operation(k) for k in range(5)]


def sides(account, name=COUNTED):
    [equation] = [one for one in account["balance"] if one["name"] == name]
    return equation["left"], equation["right"]


def test_slots_that_queue_pairs_counted_are_an_equation():
    totals = {"slots": 9, "uncopied_slots": 4}
    run = the_run(lost=4, **totals)
    stage, resolved, account, _ = judged(run, PART)
    assert sides(account) == (9, [5, 4])
    assert sides(account, "slots counted here = recorded") == (5, "records.wqe")
    text = " ".join(stage.lines(resolved, run))
    assert "4 slots not in the trace" in text and "not compared" not in text


@pytest.mark.parametrize("how", [{}, {"end": ""}, {"absent": 1}, {"damaged": True}])
def test_processes_that_lack_totals_or_records_are_not_compared_and_said(how):
    run = the_run(**how, **({"slots": 9, "uncopied_slots": 4} if how else {}))
    stage, resolved, account, _ = judged(run, PART)
    assert sides(account) == (0, [0, 0])
    assert (account["processes_compared"], account["processes_not_compared"]) == (0, 1)
    text = " ".join(stage.lines(resolved, run))
    assert "1 process not compared with what the QPs counted" in text


def test_mode_simple_has_no_slots_to_compare():
    run = the_run(mode="simple", slots=9, uncopied_slots=4)
    _, _, account, _ = judged(run, ([ring(9, 9)], [], [operation(0)]))
    assert (account["processes_compared"], account["processes_not_compared"]) == (0, 0)


def test_a_queue_pair_without_totals_excludes_its_own_process_alone():
    totals = {"has_totals": True, "slots": 5}
    queues = [
        {"proc": 0, "object": QP, **totals},
        {"proc": 1, "object": QP, **totals},
        {"proc": 1, "object": QP + 1},
    ]
    run = make_run(processes=[{"mode": "full", "end": "exit"}] * 2, gpu_queues=queues)
    wqes = [{"proc": proc, **slot(k)} for proc in (0, 1) for k in range(5)]
    _, _, account, _ = judged(run, ([], wqes, []))
    assert sides(account) == (5, [5, 0])
    assert (account["processes_compared"], account["processes_not_compared"]) == (1, 1)


def test_slots_that_nobody_kept_are_said_with_the_reason():
    text = "doorbells  1 seen (stores between two looks are merged), 4 slots announced"
    simple, full = the_run(mode="simple"), the_run(slots=4, uncopied_slots=4)
    stage, resolved, _, _ = judged(simple, ([ring(4, 4)], [], [operation(0)]))
    assert stage.lines(resolved, simple) == [text, "           slots are kept in mode full alone"]
    part = [ring(4, 4, flags=DoorbellFlag.NOT_READ)], [], []
    stage, resolved, _, _ = judged(full, part)
    first, why = stage.lines(resolved, full)
    assert first == text
    assert why.endswith("4 slots not read: SIGMATRACE_DOORBELL=off, or a ring that cannot be read")


def test_doorbells_that_fit_no_queue_pair_or_index_are_counted():
    stray = {**ring(4, 4), "index": 5}
    rows = [ring(4, 4, flags=DoorbellFlag.NOT_READ), stray, {**ring(4, 4), "qp": 0}]
    stage, resolved, account, _ = judged(the_run(), (rows, [], []))
    assert (account["unknown_queue_pair"], account["astray"], account["not_read"]) == (1, 1, 4)
    text = " ".join(stage.lines(resolved, the_run()))
    assert "1 doorbell of no known queue pair" in text
    assert "1 doorbell that does not lead to its index" in text
