"""What sigmatrace-query says beside an answer that is not of the whole run, or is empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sigmatrace import api, left_out
from sigmatrace.query.command import main
from sigmatrace.testing.scenarios import generate
from sigmatrace.testing.synthetic import generate as synthetic_run

COUNT = "select count(*) as n from slice"


@pytest.fixture
def ask(capsys):
    """Asks, and returns the lines of stdout and of stderr."""

    def ask(*words: object) -> tuple[list[str], list[str]]:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        out, err = capsys.readouterr()
        return out.splitlines(), err.splitlines()

    return ask


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("attention") / "run"
    synthetic_run(folder, ranks=4, events=60_000)
    return folder


@pytest.mark.parametrize(
    ("option", "file", "said"),
    [
        ("export.perfetto.budget_mb=2", "trace.pftrace", "beyond its budget"),
        ("export.perfetto.ranks=0", "trace.pftrace", "as chosen"),
        ("export.perfetto.split=ranks:2", "trace-overview.pftrace", "as chosen"),
        ("export.perfetto.split=ranks:2", "trace-ranks-0-1.pftrace", "as chosen"),
        ("window=1ms..2ms", "trace.pftrace", "outside of its window"),
    ],
)
def test_what_a_trace_lacks_is_said_with_its_number(ask, run, tmp_path, option, file, said):
    api.run(run, export="perfetto", out=tmp_path / "out", overrides=[option])
    (_, shown), (line,) = ask("--perfetto", tmp_path / "out" / file, COUNT)
    missing = f"{60_000 - int(shown):,}".replace(",", " ")
    assert line.startswith(f"sigmatrace-query: attention: {file} does not show {missing} records")
    assert said in line and "export=parquet" in line
    assert ("made without window=" in line) == option.startswith("window")


def test_a_whole_trace_and_one_without_a_ledger_have_nothing_to_be_said(ask, run, tmp_path):
    out = tmp_path / "out"
    api.run(run, export="perfetto", out=out)
    assert ask("--perfetto", out, COUNT)[1] == []
    api.run(run, export="perfetto", out=out, overwrite=True, overrides=["window=1ms..2ms"])
    for content in ("[]", '{"exports": [], "records": 1}', None):
        if content is None:
            (out / "ledger.json").unlink()
        else:
            (out / "ledger.json").write_text(content)
        assert ask("--perfetto", out, COUNT)[1] == []


def test_what_else_is_not_shown_is_said_too(tmp_path):
    counts = {"not_chosen": 5, "beyond_budget": 2, "regions_left_out": 1, "aggregate_left_out": 12}
    (tmp_path / "ledger.json").write_text(json.dumps({"exports": {"perfetto": counts}}))
    (line,) = left_out.attention(tmp_path / "trace.pftrace")
    assert "2 records beyond its budget" in line and "3 records as chosen" in line
    assert "1 region or instant of the program" in line
    assert "12 rows of mode aggregate, which have no times" in line
    assert left_out.attention(tmp_path / "another.pftrace") == []


@pytest.mark.parametrize("words", [[], ["--perfetto"]])
def test_an_empty_answer_says_what_was_looked_at(ask, tmp_path, words):
    generate("bfs", tmp_path / "run")
    api.run(tmp_path / "run", export=["perfetto", "parquet"])
    for name, looks_at in (
        ("barriers", "the program's own regions"),
        ("arrivals", "the program's own regions"),
        ("latency", "messages of which the send and the receive were seen"),
    ):
        _, (*_, line) = ask(*words, tmp_path / "run", "--name", name)
        assert f"attention: {name} found nothing: it looks at {looks_at}" in line
    assert len(ask(*words, tmp_path / "run", "--name", "matrix")[0]) > 1
    assert not any("nothing" in line for line in ask(*words, tmp_path / "run", "select 1")[1])
