"""Queries that come with the package: documented at their head, the same for both engines."""

from __future__ import annotations

import re

import pytest

from sigmatrace.errors import ConfigError
from sigmatrace.query import shipped

NAMES = list(shipped.all_queries())


def test_those_that_are_promised_are_there():
    assert {"matrix", "imbalance", "latency", "barriers"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_it_tells_and_all_its_parameters(name):
    query = shipped.named(name)
    assert query.text.endswith(".") and len(query.text) < 90
    assert query.looks_at and f"-- looks at: {query.looks_at}\n" in query.sql(perfetto=False)
    for perfetto in (False, True):
        used = set(re.findall(r"\$(\w+)", query.sql(perfetto=perfetto)))
        assert used == set(query.parameters)
        assert "$" not in query.filled({}, perfetto=perfetto)


def test_values_are_literals_whatever_is_in_them():
    filled = shipped.named("barriers").filled({"name": "it's $name"}, perfetto=False)
    assert "lower('it''s $name')" in filled


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lvel": "node"}, "lvel: no parameter of matrix: there are: level, layer"),
        ({"level": "host"}, "level=host: no such value: use rank or node"),
    ],
)
def test_mistakes_are_named(given, said):
    with pytest.raises(ConfigError, match=said):
        shipped.named("matrix").filled(given, perfetto=False)


def test_an_unknown_one_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=f"nope: no such query: there are: {', '.join(NAMES)}"):
        shipped.named("nope")
