from __future__ import annotations

import pytest

from sigmatrace import ledger
from sigmatrace.capture.account import Account, FileAccount, SchemaAccount
from sigmatrace.export.base import Exported
from sigmatrace.schema import Schema

NAMES = [schema.name.lower() for schema in Schema]


def an_account(**op):
    schemas = {name: SchemaAccount() for name in NAMES}
    schemas["op"] = SchemaAccount(**{"written": 10, "read": 10, **op})
    return Account([FileAccount("a", 0, 100, whole=100)], schemas, [])


def a_match(**changed):
    unmatched = {"not_seen_received": 1}
    return {
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
        "op: written + surplus = read + damaged + bad_channel + missing: 10 is not 9"
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
    assert "parquet: op records: 9 is not 10" in ledger.violated(book)


def test_traffic_that_leaves_out_operations_is_found():
    book = ledger.build(an_account(), {"traffic": {"operations": 8}}, {})
    assert "traffic: operations = op records: 8 is not 10" in ledger.violated(book)


def test_a_stage_of_ones_own_may_add_equations():
    own = {"mine": {"balance": [{"name": "in = out", "left": 1, "right": 2}]}}
    assert ledger.violated(ledger.build(an_account(), own, {})) == ["mine: in = out: 1 is not 2"]


def test_every_kind_of_loss_is_said():
    account = an_account(written=20, read=10, damaged=2, bad_channel=3, missing=5, dropped=7)
    account.schemas["mark"] = SchemaAccount(read=1, surplus=1, damaged_open=4)
    account.lost_at_capture, account.unknown = {"fork": 1}, {"codec 3": 2}
    account.unknown_channel = 6
    book = ledger.build(account, {}, {})
    assert book["balanced"] and not book["lossless"]
    assert ledger.losses(book) == [
        "7 op records dropped",
        "5 op records missing",
        "3 op records bad channel",
        "2 op records damaged",
        "1 mark record surplus",
        "4 mark records damaged",
        "1 lost at capture (fork)",
        "2 not understood (codec 3)",
        "6 records of unknown channels",
    ]
