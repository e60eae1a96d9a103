"""Hints that name a command: typed as they stand, they work, and what was asked for is there."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from sigmatrace import api
from sigmatrace.diff.command import main as diff
from sigmatrace.errors import RunNotFoundError
from sigmatrace.query.command import main as query
from sigmatrace.view.command import contents

Ask = Callable[[Path], object]


def asked(main: Callable[[list[str]], int], *words: str) -> Ask:
    """Asks a place by a command, the place being the word PLACE."""

    def ask(place: Path) -> None:
        code = main([str(place) if word == "PLACE" else word for word in words])
        assert code in (0, 3)
        if code:
            raise RunNotFoundError("said on stderr")

    return ask


ASKED = {
    "parquet": asked(query, "PLACE", "select 1"),
    "perfetto": asked(query, "--perfetto", "PLACE", "select 1"),
    "analysis": asked(diff, "PLACE", "PLACE"),
    "view": contents,
    "frames": api.open_output,
}


@pytest.fixture
def hint(capsys) -> Callable[[Ask, Path], str]:
    """Returns what a command, or the API, says where it does not find what it needs."""

    def hint(ask: Ask, place: Path) -> str:
        capsys.readouterr()
        with pytest.raises(RunNotFoundError) as raised:
            ask(place)
        return (capsys.readouterr().err or str(raised.value)).rstrip("\n")

    return hint


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("there", ["nothing", "an output", "an output of that name elsewhere"])
def test_the_command_of_a_hint_works(command, hint, small, tmp_path, name, there):
    ask, place = ASKED[name], small
    if there != "nothing":
        place = small / "sigmatrace-out" if there == "an output" else tmp_path / "my numbers"
        api.run(small, export="json", out=place)
    before = sorted(place.rglob("*"))
    said = hint(ask, place)
    if there == "an output":  # the run that it lies in is the same
        assert hint(ask, small).partition(" by: ")[2] == said.partition(" by: ")[2]
    words = shlex.split(said.partition(" by: ")[2])
    assert words[0] == "sigmatrace-pipeline"
    assert command(*words[1:]).code == 0, said
    outs = [Path(word.removeprefix("out=")) for word in words if word.startswith("out=")]
    ask(outs[0] if outs else place)
    if outs:
        assert sorted(place.rglob("*")) == before
        assert hint(ask, place).endswith(f"name {outs[0]}")


@pytest.mark.parametrize("name", ASKED)
def test_an_output_whose_run_is_gone_names_no_command(hint, small, tmp_path, name):
    place = tmp_path / "out"
    api.run(small, export="json", out=place)
    small.rename(tmp_path / "moved")
    assert hint(ASKED[name], place).endswith("name a run, or an output of the pipeline")


def test_a_run_that_was_moved_with_its_output(hint, small, tmp_path):
    api.run(small, export="json")
    moved = small.rename(tmp_path / "moved")
    said = hint(ASKED["parquet"], moved / "sigmatrace-out")
    assert f"run={moved} " in said and f"out={moved}/sigmatrace-out-parquet" in said
