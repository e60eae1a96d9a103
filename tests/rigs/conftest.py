"""One boot of two virtual machines for all tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.rigs.errors import RigUnavailableError
from tests.rigs.rig import Rig

_unavailable: list[str] = []


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two booted nodes. Tests that use it are skipped only where they cannot be had."""
    with ExitStack() as stack:
        try:
            machines = stack.enter_context(Rig(tmp_path_factory.mktemp("rig")))
        except RigUnavailableError as error:
            _unavailable.append(str(error))
            pytest.skip(f"no virtual machines: {error}")
        yield machines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly that the tests with real RDMA traffic did not run."""
    if _unavailable:
        terminalreporter.section("NO REAL RDMA TRAFFIC WAS TESTED", red=True, bold=True)
        terminalreporter.line(f"The virtual machines cannot run here: {_unavailable[0]}")
