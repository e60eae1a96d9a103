"""One Slurm for all tests that ask for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.rigs.errors import RigUnavailableError
from tests.rigs.slurm.server import Slurm

_unavailable: list[str] = []


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A Slurm with an idle node. Tests that use it are skipped only where it is not installed."""
    with ExitStack() as stack:
        # Not pytest's folder, which others cannot enter: munged refuses that.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        folder.chmod(0o755)
        try:
            started = stack.enter_context(Slurm(folder))
        except RigUnavailableError as error:
            _unavailable.append(str(error))
            pytest.skip(f"no Slurm: {error}")
        yield started


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly that no batch system was tested."""
    if _unavailable:
        terminalreporter.section("NO BATCH SYSTEM WAS TESTED", red=True, bold=True)
        terminalreporter.line(f"Slurm cannot run here: {_unavailable[0]}")
