"""sigmatrace-diff: its options, and its errors before anything is compared."""

from __future__ import annotations

import pytest
from pyarrow import parquet

from sigmatrace.diff.command import main, parser
from tests.diff_runs import analysed, write_run
from tests.said import said_by


@pytest.fixture
def said(capsys):
    return said_by(main, capsys)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "both sides need a run"),
        (["one"], "1 run named"),
        (["one", "two", "three"], "3 runs named: name two, or several of each side"),
        (["-a", "one"], "both sides need a run"),
        (["x", "-a", "one", "-b", "two"], "both sides need a run"),
        (["a", "b", "--threshold", "five"], "five: write a percentage"),
        (["a", "b", "--threshold=-1%"], "write a percentage"),
        (["a", "b", "--top", "0"], "0: a number from 1 on"),
        (["a", "b", "--fail-on", "slow"], "invalid choice"),
    ],
)
def test_options_that_do_not_fit(said, words, told):
    code, _, err = said(*words)
    assert code == 2 and told in err


def test_percentages():
    words = ["a", "b", "--threshold"]
    assert parser().parse_args([*words, "2.5%"]).threshold == pytest.approx(0.025)
    assert parser().parse_args([*words, "3"]).threshold == pytest.approx(0.03)
    assert parser().parse_args(words[:2]).threshold == pytest.approx(0.05)


def test_no_such_run_and_no_output(said, tmp_path):
    code, _, err = said(tmp_path / "none", tmp_path)
    assert code == 3 and "no such folder: name a run" in err
    (tmp_path / "host-1-1.msgpack").touch()
    code, _, err = said(tmp_path, tmp_path)
    command = f"sigmatrace-pipeline run={tmp_path} preset=analysis"
    assert code == 3 and err.endswith(f"no Parquet files there: make an output by: {command}\n")


def test_an_output_without_analyses(said, tmp_path):
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "codes.parquet").touch()
    code, _, err = said(tmp_path, tmp_path)
    assert code == 3 and "no table processes there" in err
    assert "name a run, or an output of the pipeline" in err  # no trace files to make one of


def test_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and "13 something did" in out and "--fail-on" in out
    assert "11 too many" in out


def test_a_run_that_is_twice_on_a_side_is_no_measure_of_noise(said, tmp_path):
    run = analysed(write_run(tmp_path / "run")).parent
    (tmp_path / "link").symlink_to(run)
    for twice in ((run, run), (run, run / "sigmatrace-out"), (tmp_path / "link", run)):
        code, _, err = said("-a", run, "-b", *twice)
        assert code == 2 and "-b: " in err and "are one run: name each run once" in err
    other = analysed(write_run(tmp_path / "other")).parent
    code, _, err = said("-a", run, other, "-b", tmp_path / "link")
    assert code == 2 and "link is on both sides: name each run on one side" in err
    code, out, _ = said(run, run)
    assert code == 0 and "changed    0 of" in out


def test_columns_of_other_types_are_those_of_another_version(said, tmp_path):
    run = analysed(write_run(tmp_path / "run")).parent
    path = run / "sigmatrace-out" / "parquet" / "communication.parquet"
    table = parquet.read_table(path)
    at = table.column_names.index("layer")
    parquet.write_table(table.set_column(at, "layer", table["layer"].cast("string")), path)
    code, _, err = said(run, run)
    assert code == 4 and "column layer is string, not uint8" in err


def test_tables_of_different_runs_are_one_line(said, tmp_path):
    run = analysed(write_run(tmp_path / "run")).parent
    path = run / "sigmatrace-out" / "parquet" / "processes.parquet"
    parquet.write_table(parquet.read_table(path).slice(0, 2), path)
    code, _, err = said(run, run)
    assert code == 4 and "no row of the table processes" in err
