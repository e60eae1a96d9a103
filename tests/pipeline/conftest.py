"""One small synthetic run, and the pipeline's command line in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sigmatrace import cli
from sigmatrace.layout import TRACE
from sigmatrace.testing.synthetic import Truth, generate
from tests.perfetto_inputs import export
from tests.perfetto_queries import SLICES
from tests.perfetto_verbs_inputs import verbs_run


class Synthetic(NamedTuple):
    """A run and what is true of it."""

    folder: Path
    truth: Truth


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Synthetic:
    """A run of 8 ranks on 2 hosts with losses and unmatched sends; not to be changed."""
    folder = tmp_path_factory.mktemp("synthetic") / "run"
    options = {"loss": 0.05, "unmatched": 0.05, "chunk_records": 64, "mode": "full"}
    return Synthetic(folder, generate(folder, ranks=8, events=8000, hosts=2, **options))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A lossless run of 2 ranks that a test may damage."""
    generate(tmp_path / "run", ranks=2, events=200, chunk_records=16)
    return tmp_path / "run"


@pytest.fixture
def copy_of(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Copies a run so that its default output has a place of its own."""
    made = 0

    def copy(folder: Path) -> Path:
        nonlocal made
        made += 1
        return Path(shutil.copytree(folder, tmp_path / f"copy{made}"))

    yield copy


class Spoken(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Spoken]:
    """Runs sigmatrace-pipeline in this process."""

    def run(*words: object) -> Spoken:
        capsys.readouterr()
        code = cli.main([str(word) for word in words])
        return Spoken(code, *capsys.readouterr())

    return run


@pytest.fixture
def load(tmp_path, trace_processor):
    """Exports partitions, loads the trace, and checks counts and losses."""

    def load(*parts, of=None):
        exported = export(tmp_path, parts, of)
        tp = trace_processor(tmp_path / TRACE)
        assert tp.problems() == []
        counts = exported.counts
        assert tp.value("select count(*) from slice") == counts["slices"] + counts["instants"]
        assert tp.value("select count(*) from slice where dur > 0") == counts["slices"]
        assert tp.value("select count(*) from counter") == counts["counters"]
        assert tp.value("select count(*) from flow") == counts["flows"]
        return tp, exported

    return load


@pytest.fixture
def slices(load):
    """Exports partitions of ``verbs_run`` and returns slices with arguments: of queue pairs."""

    def slices(*parts, of=None, threads=False):
        tp, exported = load(*parts, of=of or verbs_run())
        rows = tp.query(SLICES)
        rows = [row for row in rows if threads != ("QPs" in (row["path"] or ""))]
        for row in rows:
            found = tp.query(
                "select key, int_value, string_value, value_type from args"
                f" where arg_set_id = {row['arg_set_id'] or 0}"
            )
            row["args"] = {
                one["key"].removeprefix("debug."): one["string_value"]
                if one["value_type"] == "string"
                else one["int_value"] & (2**64 - 1)
                for one in found
                if one["key"].startswith("debug.")
            }
        return rows, exported

    return slices
