"""Routes of hand-made runs by stage topology."""

from __future__ import annotations

from sigmatrace.schema import NO_GROUP, Fate
from sigmatrace.stages.topology import Topology
from tests.factories import make_run


def routes(processes: int, **tables):
    run = make_run(processes=[{}] * processes, **tables)
    stage = Topology()
    resolved = stage.resolve(stage.survey(run), run)
    rows = stage.results(resolved)["routes"].to_pylist()
    account = stage.account(resolved)
    assert sum(account["channels_by_fate"].values()) == account["channels"] == len(rows)
    assert [row["channel"] for row in rows] == list(range(len(rows)))
    for row in rows:
        assert (row["group"] != NO_GROUP) == (row["fate"] == Fate.MATCHABLE)
    return rows


def fates(rows):
    return [Fate(row["fate"]) for row in rows]
