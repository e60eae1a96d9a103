"""sigmatrace-diff: its options, and its errors before anything is compared."""

from __future__ import annotations

import pytest

from sigmatrace.diff.command import main, parser


@pytest.fixture
def said(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert err.count("\n") == (code != 0), err
        return code, out, err

    return run


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
    code, _, err = said(tmp_path, tmp_path)
    command = f"sigmatrace-pipeline run={tmp_path} preset=analysis"
    assert code == 3 and err.endswith(f"no Parquet files there: make them by: {command}\n")


def test_an_output_without_analyses(said, tmp_path):
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "codes.parquet").touch()
    code, _, err = said(tmp_path, tmp_path)
    assert code == 3 and "no table processes there" in err
    assert "preset=analysis overwrite=true" in err


def test_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and "13 something did" in out and "--fail-on" in out
