from __future__ import annotations

import numpy as np
import pytest

from sigmatrace.errors import ConfigError
from sigmatrace.export.perfetto_chosen import Chosen
from sigmatrace.export.perfetto_split import Split
from sigmatrace.partition import Run
from sigmatrace.schema import INDEX_TABLES, STAGE_TABLES
from sigmatrace.window import EVER_NS
from tests.factories import make_table

BASE = 1_700_000_000_000_000_000
SECOND = 10**9


def run(ranks=(0, 1, 2, 3, 4, 9, -1), spans=((0.5, 2.5),)):
    times = [
        {"first_ns": BASE + int(a * SECOND), "last_ns": BASE + int(b * SECOND)} for a, b in spans
    ]
    processes = [{"proc": proc, "rank": rank} for proc, rank in enumerate(ranks)]
    return Run(
        {
            "processes": make_table(INDEX_TABLES["processes"], processes),
            "chunk_times": make_table(STAGE_TABLES["chunk_times"], times),
        }
    )


def parts(text, chosen=None, of=None):
    split = Split.parse("export.perfetto.split", text)
    return split.parts(chosen or Chosen(), of or run(), BASE)


def test_ranks_are_grouped_by_number_and_each_process_is_in_one_file():
    (first, nothing), *files = parts("ranks:2")
    assert first == "overview" and nothing.begin_ns == nothing.end_ns
    assert {name: np.flatnonzero(one.procs).tolist() for name, one in files} == {
        "without-rank": [6],
        "ranks-0-1": [0, 1],
        "ranks-2-3": [2, 3],
        "ranks-4": [4],
        "ranks-9": [5],
    }
    mine = Chosen(procs=np.array([False, True, False, False, False, True, False]))
    assert [name for name, _ in parts("ranks:2", mine)] == ["overview", "ranks-1", "ranks-9"]


def test_names_have_the_ranks_that_are_there_and_sort_as_these_do():
    names = [name for name, _ in parts("ranks:40", of=run(ranks=range(128)))]
    assert names == ["overview", "ranks-000-039", "ranks-040-079", "ranks-080-119", "ranks-120-127"]
    assert names == sorted(names)
    two = [name for name, _ in parts("ranks:3", of=run(ranks=(4, 12, 14)))]
    assert two == ["overview", "ranks-04", "ranks-12-14"]


@pytest.mark.parametrize(
    ("split", "last", "shown"),
    [
        ("time:500ms", 11, ("time-00.0s-00.5s", "time-11.0s-11.5s")),
        ("time:500ms", -0.3, ("time--0.5s-0.0s", "time--0.5s-0.0s")),
        ("time:2s", 11, ("time-00s-02s", "time-10s-12s")),
        ("time:1.25s", 9, ("time-00.00s-01.25s", "time-08.75s-10.00s")),
        ("time:100us", 0.0055, ("time-0.0000s-0.0001s", "time-0.0055s-0.0056s")),
    ],
)
def test_names_of_times_sort_as_the_times_do(split, last, shown):
    _, *names = (name for name, _ in parts(split, of=run(spans=((min(0, last), last),))))
    assert names == sorted(names) and (names[0], names[-1]) == shown


def test_times_follow_each_other_and_miss_nothing():
    _, *files = parts("time:1s")
    assert [name for name, _ in files] == ["time-0s-1s", "time-1s-2s", "time-2s-3s"]
    limits = [(one.begin_ns, one.end_ns) for _, one in files]
    assert limits == [
        (-EVER_NS, BASE + SECOND),
        (BASE + SECOND, BASE + 2 * SECOND),
        (BASE + 2 * SECOND, EVER_NS),
    ]
    chosen = Chosen(begin_ns=BASE + SECOND + 5, end_ns=BASE + 2 * SECOND - 5)
    ((name, one),) = parts("time:1s", chosen)[1:]
    assert (name, one.begin_ns, one.end_ns) == ("time-1s-2s", chosen.begin_ns, chosen.end_ns)
    assert len(parts("time:1s", of=run(spans=()))) == 2


@pytest.mark.parametrize(
    "text",
    [
        "ranks",
        "ranks:0",
        "ranks:-1",
        "ranks:1s",
        "time:10",
        "time:0s",
        "time:s",
        "time:-1s",
        "time:0.1ns",
        "time:1s..2s",
        "time:",
        "x:1",
        "",
    ],
)
def test_what_is_no_split_is_refused_in_one_line(text):
    with pytest.raises(ConfigError) as error:
        Split.parse("export.perfetto.split", text)
    assert str(error.value).startswith(f"export.perfetto.split={text} is no split")
    assert "\n" not in str(error.value)


def test_too_many_files_are_refused():
    with pytest.raises(ConfigError, match="makes 2001 files, 100 are the most"):
        parts("time:1ms")
    with pytest.raises(ConfigError, match=r"makes 101 files, .*: ranks:2 would fit$"):
        parts("ranks:1", of=run(ranks=range(101)))
    assert len(parts("ranks:1", of=run(ranks=range(100)))) == 101


@pytest.mark.parametrize(("ranks", "fits"), [(range(1000), 10), (range(1001), 11)])
def test_the_split_that_would_fit_does_and_the_next_finer_one_does_not(ranks, fits):
    for finer in (2, fits - 1):
        with pytest.raises(ConfigError, match=rf": ranks:{fits} would fit$"):
            parts(f"ranks:{finer}", of=run(ranks=ranks))
    assert len(parts(f"ranks:{fits}", of=run(ranks=ranks))) <= 101
