"""Columns: every one in ns is known as a time or a length, and words can be asked for."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import dataset

from sigmatrace import config
from sigmatrace.errors import ConfigError
from sigmatrace.frames.columns import DURATIONS, TIME, TIMES, WORD, Column, columns
from sigmatrace.frames.frame import Frame
from sigmatrace.schema import INDEX_TABLES, STAGE_TABLES
from sigmatrace.stages.base import Exchange, Stage

WORDS = {1: "send", 2: "recv", 9: "send"}


def test_every_column_of_whole_ns_is_either_a_time_or_a_length():
    of_stages = (one.produces for one in config.shipped("stage", (Stage, Exchange)).values())
    known = {
        (table, name, dtype)
        for tables in (INDEX_TABLES, STAGE_TABLES, *of_stages)
        for table, names in tables.items()
        for name, dtype in names.items()
        if name.endswith("_ns")
    }
    assert len(known) > 40
    used = set()
    for table, name, dtype in known:
        found = [one for group in (TIMES, DURATIONS) for one in group & {name, f"{table}.{name}"}]
        assert len(found) == (dtype == "i8"), (table, name)
        used.update(found)
    assert used == TIMES | DURATIONS


def frame(stored, column):
    source = dataset.dataset(pa.table({"stored": stored}))
    return Frame("own", source, [column], None)


def test_columns_of_other_stages_stay_as_they_are():
    codes = {"op": WORDS}
    schema = pa.schema({"op": pa.uint8(), "t_ns": pa.int64(), "proc": pa.int32()})
    assert [one.shown for one in columns("ops", schema, codes, {})] == [
        WORD,
        TIME,
        pa.int32(),
        WORD,
    ]
    own = columns("own", schema, codes, {})
    assert [(one.name, one.shown) for one in own] == [
        *((field.name, field.type) for field in schema),
        ("label", WORD),
    ]


@given(
    st.lists(st.none() | st.sampled_from([1, 2, 3, 9, 255])),
    st.sampled_from(["==", "!=", "in", "not in"]),
    st.lists(st.sampled_from(["send", "recv", "255", "3"]), min_size=1, max_size=3),
    st.booleans(),
)
def test_words_are_found_as_they_are_shown(stored, how, values, is_label):
    """Judged by the frame without a filter, whose words plain Python makes again."""
    other = "" if is_label else None
    values = [value if not is_label or not value.isdigit() else "" for value in values]
    column = Column("name", "stored", pa.uint8(), WORD, WORDS, other)
    made = frame(pa.array(stored, pa.uint8()), column)
    shown = [
        None if code is None else WORDS.get(code, str(code) if other is None else "")
        for code in stored
    ]
    table = made.arrow()
    assert table["name"].to_pylist() == shown
    assert all(
        len(set(chunk.dictionary)) == len(chunk.dictionary) for chunk in table["name"].chunks
    )
    among = values if "in" in how else values[:1]
    kept = [word for word in shown if word is not None and (word in among) == (how in ("==", "in"))]
    asked = made.arrow(filters=[("name", how, values if "in" in how else values[0])])
    assert asked["name"].to_pylist() == kept


def test_words_come_in_the_order_of_their_codes():
    column = Column("name", "stored", pa.uint8(), WORD, {7: "first", 1: "second"})
    table = frame(pa.array([200, 1, 7, 1], pa.uint8()), column).arrow()
    assert table["name"].chunk(0).dictionary.to_pylist() == ["first", "second", "200"]


def test_a_time_of_zero_is_none_and_is_not_found():
    column = Column("t_ns", "stored", pa.int64(), TIME)
    made = frame(pa.array([0, 1_700_000_000_000_000_001], pa.int64()), column)
    assert made.arrow()["t_ns"].cast(pa.int64()).to_pylist() == [None, 1_700_000_000_000_000_001]
    for value in (2 * 10**18, datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)):
        assert made.arrow(filters=[("t_ns", "<", value)]).num_rows == 1
        assert made.arrow(filters=[("t_ns", "not in", [value])]).num_rows == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("name", "==", "sned"), "did you mean 'send'"),
        (("name", "<", "send"), "no order"),
        (("name", "~", "send"), "use =="),
        (("name", "==", 256), "256"),
        (("nam", "==", 1), "no column 'nam'"),
    ],
)
def test_what_cannot_be_asked_is_one_line(asked, said):
    column = Column("name", "stored", pa.uint8(), WORD, WORDS)
    with pytest.raises(ConfigError, match=said) as refused:
        frame(pa.array([1], pa.uint8()), column).arrow(filters=[asked])
    assert "\n" not in str(refused.value)


def test_a_time_is_asked_for_as_any_library_has_it():
    t_ns = 1_700_000_000_000_000_001
    column = Column("t_ns", "stored", pa.int64(), TIME)
    made = frame(pa.array([t_ns - 1, t_ns, t_ns + 1], pa.int64()), column)
    shown = made.arrow()["t_ns"]
    moment = np.datetime64(t_ns, "ns")
    for value in (
        shown[1],
        np.int64(t_ns),
        t_ns,
        moment,
        pa.scalar(t_ns),
        made.pandas()["t_ns"][1],
    ):
        found = made.arrow(filters=[("t_ns", "==", value)])["t_ns"]
        assert found.cast(pa.int64()).to_pylist() == [t_ns], value
    several = (shown[1:], made.polars()["t_ns"][1:], made.pandas()["t_ns"][1:], [moment, t_ns + 1])
    for values in several:
        found = made.arrow(filters=[("t_ns", "in", values)])["t_ns"]
        assert found.cast(pa.int64()).to_pylist() == [t_ns, t_ns + 1]


def test_words_of_a_frame_are_asked_for_as_they_are_there():
    column = Column("name", "stored", pa.uint8(), WORD, WORDS)
    made = frame(pa.array([1, 2, 7], pa.uint8()), column)
    for value in (made.arrow()["name"][1], made.pandas()["name"][1], made.polars()["name"][1]):
        assert made.arrow(filters=[("name", "==", value)])["name"].to_pylist() == ["recv"]
    for values in (made.arrow()["name"][1:], made.pandas()["name"][1:], made.polars()["name"][1:]):
        found = made.arrow(filters=[("name", "in", values)])["name"].to_pylist()
        assert found == ["recv", "7"]


def test_times_that_a_stage_of_others_stores_as_such_are_shown_and_found():
    moments = pa.array([0, 5, None], pa.timestamp("ns", "UTC"))
    lengths = pa.array([0, 5, None], pa.duration("ns"))
    table = pa.table(
        {"when": moments, "took": lengths, "word": pa.array("aba").dictionary_encode()}
    )
    made = Frame("own", dataset.dataset(table), columns("own", table.schema, {}, {}), None)
    assert made.arrow().equals(table)
    assert made.pandas().shape == made.polars().shape == (3, 3)
    for name in table.column_names:
        for how, count in (("==", 1), ("in", 1)):
            value = table[name][1]
            asked = [(name, how, value if how == "==" else [value.as_py()])]
            assert made.arrow(filters=asked).num_rows == count, (name, how)


def test_labels_are_those_of_numbers_that_a_column_can_hold():
    table = pa.table({"proc": pa.array([0, 200], pa.uint8()), "peer_proc": ["x", "y"]})
    labels = {0: "rank 0", 300: "rank 0", -1: ""}
    made = Frame("own", dataset.dataset(table), columns("own", table.schema, {}, labels), None)
    assert made.schema.names == ["proc", "peer_proc", "label"]
    assert made.arrow(filters=[("label", "==", "rank 0")])["proc"].to_pylist() == [0]
    assert made.arrow(filters=[("label", "==", "")])["proc"].to_pylist() == [200]


@pytest.mark.parametrize(
    "asked",
    [
        {"filters": "stored == 1"},
        {"filters": None},
        {"filters": ("stored", "==", 1)},
        {"filters": [("stored", "==")]},
        {"filters": [("stored", ["=="], 1)]},
        {"filters": [("stored", "in", 1)]},
        {"columns": [1]},
        {"columns": ["stored", "stored"]},
        {"window": (0, 1)},
        {"rows": -1},
        {"rows": 1.5},
    ],
)
def test_what_has_another_form_is_one_line(asked):
    made = frame(pa.array([1], pa.int64()), Column("stored", "stored", pa.int64(), pa.int64()))
    with pytest.raises(ConfigError) as refused:
        made.arrow(**asked)
    assert "\n" not in str(refused.value)
