from __future__ import annotations

import pytest

from sigmatrace import ledger
from sigmatrace.capture.account import Account, FileAccount, SchemaAccount
from sigmatrace.export.base import Exported
from sigmatrace.schema import Schema

NAMES = [schema.name.lower() for schema in Schema]


IN_CHUNKS = ("read", "damaged", "bad_channel", "unused")


def a_schema(**counts):
    one = SchemaAccount(**counts)
    if "found" not in counts:
        kinds = [kind + end for kind in IN_CHUNKS for end in ("", "_open")]
        one.found = sum(getattr(one, kind) for kind in kinds)
    return one


def an_account(**op):
    schemas = {name: SchemaAccount() for name in NAMES}
    schemas["op"] = a_schema(**{"written": 10, "read": 10, **op})
    return Account([FileAccount("a", 0, 100, whole=100)], schemas, [])


def a_match(**changed):
    unmatched = {"not_seen_received": 1}
    return {
        "ops": 10,
        "sends": 5,
        "sends_matched": 4,
        "sends_unmatched": unmatched,
        "receives": 4,
        "receives_matched": 4,
        "receives_unmatched": {"duplicate": 0},
        "one_sided": 1,
        "not_a_message": 0,
        **changed,
    }


def test_a_run_without_loss_balances():
    book = ledger.build(an_account(), {"match": a_match()}, {})
    assert book["balanced"] and book["lossless"]
    assert ledger.losses(book) == [] == ledger.violated(book)


@pytest.mark.parametrize(
    ("match", "left", "right"),
    [
        ({"sends": 6}, 10, 11),
        ({"sends_matched": 3}, 5, 4),
        ({"receives_unmatched": {"duplicate": 2}}, 4, 6),
        ({"one_sided": 2}, 10, 11),
    ],
)
def test_a_stage_that_loses_operations_is_found(match, left, right):
    book = ledger.build(an_account(), {"match": a_match(**match)}, {})
    assert not book["balanced"]
    assert any(f"{left} is not {right}" in line for line in ledger.violated(book))


def test_records_that_vanish_are_found():
    book = ledger.build(an_account(read=9), {}, {})
    assert ledger.violated(book) == [
        "op: written + surplus = read + damaged + bad_channel + unused + missing: 10 is not 9"
    ]


@pytest.mark.parametrize("kind", IN_CHUNKS)
def test_records_of_a_file_without_an_end_cannot_vanish(kind):
    account = an_account()
    counts = {"read_open": 4, f"{kind}_open": 3}
    account.schemas["aggregate"] = a_schema(**counts)
    assert ledger.violated(ledger.build(account, {}, {})) == []
    account.schemas["aggregate"].found = 8
    there = sum(counts.values())
    assert ledger.violated(ledger.build(account, {}, {})) == [
        f"aggregate: found in chunks = read + damaged + bad_channel + unused: 8 is not {there}"
    ]


def test_bytes_that_vanish_are_found():
    account = an_account()
    account.files.append(FileAccount("b", 1, 50, whole=20, damaged=10, cut=10, foreign=5))
    book = ledger.build(account, {}, {})
    assert not book["balanced"]
    assert ledger.losses(book) == ["10 bytes damaged", "10 bytes cut", "5 bytes foreign"]


def test_an_exporter_that_leaves_out_records_is_found():
    exported = {"parquet": Exported(("parquet",), {"op_records": 9, "rows": 1})}
    book = ledger.build(an_account(), {}, exported)
    assert ledger.violated(book) == ["parquet: op records = op records: 9 is not 10"]


def test_an_exporter_may_leave_out_records_if_it_says_so():
    counts = {"op_records": 7, "op_left_out": 3, "aggregate_left_out": 1}
    book = ledger.build(an_account(), {}, {"mine": Exported((), counts)})
    assert ledger.violated(book) == ["mine: aggregate left out = aggregate records: 1 is not 0"]


def a_traffic(**changed):
    return {
        "operations": 10,
        "aggregated_operations": 0,
        "aggregated_bytes": 0,
        "size_bytes": 500,
        "byte_sums_beyond_u64": 0,
        **changed,
    }


@pytest.mark.parametrize(
    ("changed", "violated"),
    [
        ({}, []),
        (
            {"aggregated_operations": 1},
            [
                "aggregated operations = those that aggregate records stand for: 1 is not 5",
            ],
        ),
        (
            {"aggregated_bytes": 101},
            ["aggregated bytes = those that aggregate records stand for: 101 is not 100"],
        ),
    ],
)
def test_aggregates_are_summed_up_wholly(changed, violated):
    account = an_account()
    account.schemas["aggregate"] = a_schema(written=2, read=2)
    account.aggregated_operations, account.aggregated_bytes = 5, 100
    traffic = a_traffic(**{"aggregated_operations": 5, "aggregated_bytes": 100, **changed})
    book = ledger.build(account, {"traffic": traffic}, {})
    assert ledger.violated(book) == [f"traffic: {line}" for line in violated]


@pytest.mark.parametrize(
    ("key", "text"), [("traffic_operations", "operations"), ("traffic_bytes", "bytes")]
)
def test_an_exporter_that_leaves_out_traffic_is_found(key, text):
    counts = {"traffic_operations": 15, "traffic_bytes": 500}
    stages = {"traffic": a_traffic(aggregated_operations=5)}
    account = an_account()
    account.aggregated_operations = 5
    assert ledger.violated(ledger.build(account, stages, {"json": Exported((), counts)})) == []
    exported = {"json": Exported((), {**counts, key: 3})}
    assert ledger.violated(ledger.build(account, stages, exported)) == [
        f"json: {text} of the traffic: 3 is not {counts[key]}"
    ]


def perfetto(**changed):
    return {
        "slices": 8, "instants": 14, "op_records": 10, "completion_records": 6, "flows": 3,
        "flows_backwards": 1, "mark_records": 17, "regions_closed": 3, "regions_open": 2,
        "regions_stray_ends": 1, "mark_instants": 1, "mark_counters": 4, "mark_unknown": 3,
        "traffic_counters": 9, "object_counters": 0, "counters": 13, "request_records": 0,
        "cqe_records": 0, **changed,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "text", "left", "right"),
    [
        ({"slices": 7}, "slices + instants", 21, 22),
        ({"cqe_records": 2}, "slices + instants", 22, 24),
        ({"request_records": 2}, "request records = request records", 2, 0),
        ({"regions_open": 1}, "slices + instants", 22, 21),
        ({"mark_unknown": 2}, "marks = 2 closed", 17, 16),
        ({"counters": 12}, "counters = ", 12, 13),
        ({"object_counters": 5}, "counters = ", 13, 18),
        ({"flows": 4}, "matched = flows", 4, 5),
    ],
)
def test_what_perfetto_does_not_show_is_found(changed, text, left, right):
    account = an_account()
    account.schemas["completion"] = a_schema(written=6, read=6)
    account.schemas["mark"] = a_schema(written=17, read=17)
    good = {"perfetto": Exported((), perfetto())}
    assert ledger.violated(ledger.build(account, {"match": a_match()}, good)) == []
    bad = {"perfetto": Exported((), perfetto(**changed))}
    lines = ledger.violated(ledger.build(account, {"match": a_match()}, bad))
    assert any(text in line and f"{left} is not {right}" in line for line in lines), lines


def test_traffic_that_leaves_out_operations_is_found():
    book = ledger.build(an_account(), {"traffic": a_traffic(operations=8)}, {})
    assert "traffic: operations = op records: 8 is not 10" in ledger.violated(book)


def test_a_stage_of_ones_own_may_add_equations():
    own = {"mine": {"balance": [{"name": "in = out", "left": 1, "right": 2}]}}
    assert ledger.violated(ledger.build(an_account(), own, {})) == ["mine: in = out: 1 is not 2"]


def test_every_kind_of_loss_is_said():
    account = an_account(written=20, read=10, damaged=2, bad_channel=3, missing=5, dropped=7)
    account.schemas["mark"] = a_schema(read=1, surplus=1, damaged_open=4, gap_chunks=9)
    account.open_files = [f"run/{name}.msgpack" for name in "abcd"]
    account.stopped_files = {"run/e.msgpack": "disk full"}
    account.lost_at_capture, account.unknown = {"fork": 1}, {"codec 3": 2}
    account.unknown_channel = 6
    book = ledger.build(account, {}, {})
    assert book["balanced"] and not book["lossless"]
    assert ledger.losses(book) == [
        "4 files without an end item: killed, replaced by exec, cut, or still running "
        "(a.msgpack, b.msgpack, c.msgpack, and 1 more)",
        "recording stopped early in e.msgpack (disk full)",
        "7 op records dropped",
        "5 op records missing",
        "3 op records bad channel",
        "2 op records damaged",
        "1 mark records surplus",
        "4 mark records damaged",
        "9 mark chunks missing in the numbering",
        "1 lost at capture (fork)",
        "2 not understood (codec 3)",
        "6 records of unknown channels",
    ]
