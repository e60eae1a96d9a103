from __future__ import annotations

from itertools import permutations

import pytest

from sigmatrace import plan
from sigmatrace.errors import PipelineError
from sigmatrace.export.base import Exporter
from sigmatrace.schema import EVENT_TABLES
from sigmatrace.stages.base import Exchange, Stage


def stage(name, requires=None, produces=None, summary=None, base=Stage):
    attributes = {"name": name, "requires": requires or {}, "produces": produces or {}}
    if base is Stage:
        attributes["summary"] = summary
    return type(name.capitalize(), (base,), attributes)()


def exporter(requires):
    return type("Out", (Exporter,), {"name": "out", "requires": requires})()


A = stage("a", {"ops": {"t_tsc": "u8"}}, {"ops": {"x": "i8"}}, "index")
B = stage("b", {"ops": {"x": "i8"}}, {"ops": {"y": "u4"}}, "after")
C = stage("c", {"ops": {"y": "u4", "x": "i8"}}, {"totals": {"n": "u8"}}, "after")


@pytest.mark.parametrize("given", list(permutations([A, B, C])))
def test_order_follows_columns_not_the_given_order(given):
    made = plan.make(given, [exporter({"totals": {"n": "u8"}})])
    assert [one.name for one in made.stages] == ["a", "b", "c"]
    assert made.passes == 1


def test_a_before_stage_costs_a_pass_and_the_text_says_so():
    early = stage("early", {"ops": {"x": "i8"}}, {"hints": {"h": "u1"}}, "before")
    made = plan.make([early, A], [])
    assert made.passes == 2
    assert "a pass of its own" in made.text()
    assert made.text().endswith("passes over event bytes: 2")


def test_columns_that_nobody_requires_are_unread_and_the_text_says_so():
    everything = {table: {} for table in EVENT_TABLES}
    made = plan.make([A, B], [exporter({**everything, "ops": {"op": "u1"}})])
    of_reader = {("ops", column) for column in EVENT_TABLES["ops"]}
    assert made.unread == of_reader - {("ops", "t_tsc"), ("ops", "op")} | {("ops", "y")}
    assert "size_bytes,thread,y}: may be left out" in made.text()
    assert ("ops", "y") not in plan.make([A, B, C], [exporter({})]).unread
    assert plan.make([A, B], [exporter(everything)]).unread == set()


def test_whole_tables_and_tables_that_stages_add_are_never_unread():
    adder = stage("adder", {}, {"totals": {"n": "u8"}})
    type(adder).adds = {"extra": {"z": "u1"}}
    assert {table for table, _ in plan.make([adder], []).unread} == EVENT_TABLES.keys()


def test_missing_producer_names_the_built_in_stage():
    with pytest.raises(PipelineError, match=r"b requires ops\.t_ns.*stage clock would"):
        plan.make([stage("b", {"ops": {"t_ns": "i8"}})], [])


def test_missing_producer_of_an_exporter_and_of_a_whole_table():
    with pytest.raises(PipelineError, match=r"out requires timeline.*stage traffic would"):
        plan.make([], [exporter({"timeline": {}})])


def test_missing_producer_that_nobody_has():
    with pytest.raises(PipelineError, match=r"b requires ops\.nothing.*no built-in stage"):
        plan.make([stage("b", {"ops": {"nothing": "i8"}})], [])


def test_two_producers():
    twin = stage("twin", {}, {"ops": {"x": "i8"}})
    with pytest.raises(PipelineError, match=r"stage twin produces ops\.x, which a produces too"):
        plan.make([A, twin], [])


def test_a_stage_may_not_produce_a_column_of_the_reader():
    with pytest.raises(PipelineError, match=r"ops\.t_tsc, which the reader produces too"):
        plan.make([stage("thief", {}, {"ops": {"t_tsc": "u8"}})], [])


def test_wrong_dtype():
    wrong = stage("b", {"ops": {"x": "u4"}})
    with pytest.raises(PipelineError, match=r"b requires ops\.x as u4, but a makes it i8"):
        plan.make([A, wrong], [])


def test_cycle_names_stages_and_columns():
    left = stage("left", {"ops": {"r": "u1"}}, {"ops": {"l": "u1"}})
    right = stage("right", {"ops": {"l": "u1"}}, {"ops": {"r": "u1"}})
    after = stage("after", {"ops": {"l": "u1"}})
    with pytest.raises(PipelineError) as raised:
        plan.make([after, left, right], [])
    text = str(raised.value)
    assert "left requires ops.r of right" in text
    assert "right requires ops.l of left" in text


def test_a_table_known_at_the_end_cannot_be_read_before():
    early = stage("early", {"totals": {"n": "u8"}}, {}, "index")
    with pytest.raises(PipelineError, match=r"early requires totals\.n, which c knows only after"):
        plan.make([A, B, C, early], [])
    late = stage("late", {"totals": {"n": "u8"}}, {}, "after")
    assert plan.make([A, B, C, late], []).stages[-1].name == "late"


def test_a_stage_of_tables_reads_what_exchanges_make_and_no_earlier_step_reads_its_own():
    meet = stage("meet", {"ops": {"x": "i8"}}, {"pairs": {"p": "u8"}}, base=Exchange)
    last = stage("a_last", {"pairs": {"p": "u8"}}, {"said": {"s": "str"}}, "tables")
    made = plan.make([last, meet, A], [exporter({"said": {"s": "str"}})])
    assert [one.name for one in made.stages] == ["a", "a_last"]
    assert "from tables, in the end" in made.text()
    for kind in ("index", "before", "after"):
        early = stage("early", {"said": {"s": "str"}}, {}, kind)
        with pytest.raises(PipelineError, match=r"said\.s, which a_last .*summary = 'tables'"):
            plan.make([last, meet, A, early], [])
    too_early = stage("too_early", {"pairs": {"p": "u8"}}, {}, "after")
    with pytest.raises(PipelineError, match=r"pairs\.p, which meet .*summary = 'tables'"):
        plan.make([meet, A, too_early], [])


def test_built_in_steps_that_are_lacking_are_added_with_what_they_need():
    wanting = exporter({"message_pairs": {"flow": "u8"}, "traffic": {}})
    names = {step.name for step in plan.completed([A], [wanting])}
    assert names == {"a", "clock", "match", "messages", "topology", "traffic"}


def test_what_nobody_makes_adds_nothing():
    unknown = stage("b", {"ops": {"nothing": "i8"}, "nowhere": {}})
    assert [step.name for step in plan.completed([unknown], [])] == ["b"]


def test_a_chosen_step_is_never_added_again():
    from sigmatrace.stages.clock import Clock

    mine = Clock()
    assert plan.completed([mine], [exporter({"ops": {"t_ns": "i8"}})]) == [mine]


def test_exchanges_come_after_stages():
    meet = stage("aaa", {"ops": {"x": "i8"}}, {"pairs": {"p": "u8"}}, base=Exchange)
    made = plan.make([meet, A], [exporter({"pairs": {"p": "u8"}})])
    assert [one.name for one in made.exchanges] == ["aaa"]


@pytest.mark.parametrize(
    "produces", [{}, {"pairs": {"p": "u8"}, "more": {"m": "u8"}}, {"ops": {"p": "u8"}}]
)
def test_an_exchange_produces_one_whole_run_table(produces):
    with pytest.raises(PipelineError, match=r"meet produces .*one table of the whole run"):
        plan.make([stage("meet", {}, produces, base=Exchange)], [])


def test_built_in_stages_fit_together():
    from sigmatrace.export.perfetto import PerfettoExporter
    from sigmatrace.stages.clock import Clock
    from sigmatrace.stages.match import Match
    from sigmatrace.stages.messages import Messages
    from sigmatrace.stages.topology import Topology
    from sigmatrace.stages.traffic import Traffic

    made = plan.make([Traffic(), Match(), Messages(), Topology(), Clock()], [PerfettoExporter()])
    assert [one.name for one in made.stages] == ["clock", "topology", "match", "traffic"]
    assert made.passes == 1


def test_an_event_table_that_a_stage_adds_is_there_for_later_stages():
    maker = stage("maker", {"ops": {"t_tsc": "u8"}})
    type(maker).adds = {"wqes": {"opcode": "u1"}}
    reader = stage("a_reader", {"wqes": {"opcode": "u1"}}, {"wqes": {"bytes": "u8"}})
    made = plan.make([reader, maker], [exporter({"wqes": {"bytes": "u8"}})])
    assert [one.name for one in made.stages] == ["maker", "a_reader"]
    assert "wqes.{opcode}" in made.text()


def test_a_plan_with_another_stage_in_the_place_of_one():
    from sigmatrace.stages.clock import Clock
    from sigmatrace.stages.topology import Topology

    made = plan.make([Clock(), Topology()], [exporter({"ops": {"t_ns": "i8"}})])
    other = Clock("messages")
    changed = made.with_stage(other)
    assert [one.name for one in made.stages] == ["clock", "topology"] and made.passes == 1
    assert changed.stages == (made.stages[1], other) and changed.passes == 2
    assert changed.exporters == made.exporters
    with pytest.raises(PipelineError, match=r"clock requires routes"):
        plan.make([Clock()], made.exporters).with_stage(other)
