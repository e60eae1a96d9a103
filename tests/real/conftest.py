"""Fixtures of the tests with real programs: one build of the UCX shim a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from ucx_run import Ucx, build, ucx


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a fresh libsigmatrace_ucx.so."""
    return build(tmp_path_factory.mktemp("ucx"))


@pytest.fixture(params=["debian", "wheel"])
def version(request: pytest.FixtureRequest) -> Ucx:
    """Each version of UCX: the distribution's, and the wheel's."""
    return ucx(request.param)
