from __future__ import annotations

import pytest

from sigmatrace import ledger
from sigmatrace.capture.account import Account, FileAccount, SchemaAccount
from sigmatrace.errors import PipelineError
from sigmatrace.export.base import Exported
from sigmatrace.export.perfetto import balance
from sigmatrace.trace_format import Schema

NAMES = [schema.name.lower() for schema in Schema]


IN_CHUNKS = ("read", "damaged", "bad_channel", "unused", "outside", "not_read")


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


def equation(left, right, name="in = out"):
    return {"name": name, "left": left, "right": right}


def a_stage(*equations, **numbers):
    return {"mine": {**numbers, "balance": list(equations)}}


def test_a_run_without_loss_balances():
    book = ledger.build(an_account(), a_stage(equation("records.op", 10)), {})
    assert book["balanced"] and book["lossless"]
    assert ledger.losses(book) == [] == ledger.violated(book)
    assert book["stages"] == {"mine": {}}, "equations are in the balance alone"


def test_an_equation_refers_to_numbers_that_others_have_counted():
    account = an_account(read=6, read_open=4, written=6)
    account.aggregated_bytes = 7
    numbers = {"a": 1, "deep": {"b": 2}}
    equations = [
        equation("records.op", 11),
        equation(8, "capture.aggregated_bytes"),
        equation("stages.mine.deep.b", 3),
        equation(["records.op", "stages.mine.a", 5], [1, 1]),
    ]
    book = ledger.build(account, a_stage(*equations, **numbers), {})
    sides = [(one["left"], one["right"]) for one in book["balance"] if "mine: " in one["name"]]
    assert sides == [(10, 11), (8, 7), (2, 3), (16, 2)]
    assert "mine: in = out: 8 is not 7" in ledger.violated(book)


@pytest.mark.parametrize("side", ["stages.other.a", [1, "stages.other.a"]])
def test_an_equation_about_a_stage_that_was_not_chosen_is_left_out(side):
    exported = {"out": Exported((), {}, balance=[equation(1, side)])}
    assert ledger.build(an_account(), {}, exported)["balanced"]
    book = ledger.build(an_account(), {"other": {"a": 5}}, exported)
    assert not book["balanced"]


@pytest.mark.parametrize("side", ["records.ops", "records", "stages.mine.a", "nonsense", "stages"])
def test_an_equation_about_nothing_is_an_error_that_names_it(side):
    with pytest.raises(PipelineError, match=f"mine: .*'in = out' refers to '{side}'"):
        ledger.build(an_account(), a_stage(equation(1, side)), {})


def test_records_that_vanish_are_found():
    book = ledger.build(an_account(read=9), {}, {})
    assert ledger.violated(book) == [
        "op: written + recovered + surplus = read + damaged + bad_channel + unused + outside + "
        "not_read + missing: "
        "10 is not 9"
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
        "aggregate: found in chunks = read + damaged + bad_channel + unused + outside + "
        f"not_read: 8 is not {there}"
    ]


def test_bytes_that_vanish_are_found():
    account = an_account()
    account.files.append(FileAccount("b", 1, 50, whole=20, damaged=10, cut=10, foreign=5))
    book = ledger.build(account, {}, {})
    assert not book["balanced"]
    assert ledger.losses(book) == [
        "10 bytes damaged (b)",
        "10 bytes cut (b)",
        "5 bytes foreign (b)",
    ]


def test_losses_name_the_first_files_and_count_the_others():
    account = an_account()
    account.files += [FileAccount(f"run/{k}", k, 9, whole=8, cut=1) for k in range(5)]
    assert ledger.losses(ledger.build(account, {}, {})) == ["5 bytes cut (0, 1, 2, and 2 more)"]


def test_files_that_hold_nothing_or_cannot_be_read_are_named():
    account = an_account()
    account.unreadable_files = {f"run/{k}": "Permission denied" for k in "abcd"}
    account.empty_files = ["run/e"]
    book = ledger.build(account, {}, {})
    assert not book["lossless"] and ledger.is_torn(book)
    each = ", ".join(f"{k}: Permission denied" for k in "abc")
    assert ledger.losses(book) == [
        f"4 files could not be read ({each}, and 1 more)",
        "1 file of 0 bytes, nothing was written (e)",
    ]


@pytest.mark.parametrize(
    ("kind", "torn"), [("damaged", True), ("cut", True), ("foreign", False), ("whole", False)]
)
def test_files_of_which_parts_are_missing(kind, torn):
    account = an_account()
    account.files.append(FileAccount("b", 1, 9, **{kind: 9}))
    assert ledger.is_torn(ledger.build(account, {}, {})) == torn
    account.open_files = ["b"]
    assert ledger.is_torn(ledger.build(account, {}, {}))


def test_an_exporter_that_leaves_out_records_is_found():
    exported = {"parquet": Exported(("parquet",), {"op_records": 9, "rows": 1})}
    book = ledger.build(an_account(), {}, exported)
    assert ledger.violated(book) == ["parquet: op records = op records: 9 is not 10"]


def test_an_exporter_may_leave_out_records_if_it_says_so():
    counts = {"op_records": 7, "op_left_out": 3, "aggregate_left_out": 1}
    book = ledger.build(an_account(), {}, {"mine": Exported((), counts)})
    assert ledger.violated(book) == ["mine: aggregate left out = aggregate records: 1 is not 0"]


def of_perfetto(counts):
    return Exported((), counts, balance=balance(counts))


def perfetto(**changed):
    return {
        "slices": 8, "instants": 18, "op_records": 10, "completion_records": 6, "flows": 4,
        "flows_backwards": 1, "mark_records": 17, "regions_closed": 3, "regions_open": 2,
        "regions_stray_ends": 1, "mark_instants": 1, "mark_counters": 4, "mark_unknown": 3,
        "traffic_counters": 9, "object_counters": 0, "counters": 13, "request_records": 0,
        "cqe_records": 0, "doorbell_records": 0, "kernel_records": 0, "qp_operations": 1,
        "doorbells_twice": 1, "kernels_absent": 1, "one_sided_arrivals": 1,
        "regions_from_before": 0, "regions_left_out": 0, "activity_counters": 0,
        "flow_ends_left_out": 0, **changed,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "text", "left", "right"),
    [
        ({"slices": 7}, "slices + instants", 25, 26),
        ({"cqe_records": 2}, "slices + instants", 26, 28),
        ({"request_records": 2}, "request records = request records", 2, 0),
        ({"kernel_records": 1}, "slices + instants", 26, 27),
        ({"regions_open": 1}, "slices + instants", 26, 25),
        ({"mark_unknown": 2}, "marks = 2 closed", 17, 16),
        ({"regions_from_before": 1}, "slices + instants", 26, 27),
        ({"regions_left_out": 1}, "slices + instants", 26, 25),
        ({"activity_counters": 2}, "counters = ", 13, 15),
        ({"counters": 12}, "counters = ", 12, 13),
        ({"object_counters": 5}, "counters = ", 13, 18),
        ({"qp_operations": 3}, "slices + instants", 26, 28),
        ({"doorbells_twice": 3}, "slices + instants", 26, 28),
        ({"kernels_absent": 0}, "slices + instants", 26, 25),
        ({"one_sided_arrivals": 2}, "matched + one-sided arrivals = flows", 6, 5),
        ({"flows": 5}, "matched + one-sided arrivals = flows", 5, 6),
    ],
)
def test_what_perfetto_does_not_show_is_found(changed, text, left, right):
    account = an_account()
    account.schemas["completion"] = a_schema(written=6, read=6)
    account.schemas["mark"] = a_schema(written=17, read=17)
    match = {"match": {"sends_matched": 4}}
    good = {"perfetto": of_perfetto(perfetto())}
    assert ledger.violated(ledger.build(account, match, good)) == []
    bad = {"perfetto": of_perfetto(perfetto(**changed))}
    lines = ledger.violated(ledger.build(account, match, bad))
    assert any(text in line and f"{left} is not {right}" in line for line in lines), lines


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
        "1 mark record surplus",
        "4 mark records damaged",
        "9 mark chunks missing in the numbering",
        "1 lost at capture (fork)",
        "2 not understood (codec 3)",
        "6 records of unknown channels",
    ]
