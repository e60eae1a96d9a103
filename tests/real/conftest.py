"""Fixtures of the tests with real programs: one build of the UCX shim a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from ucx_run import build


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a fresh libsigmatrace_ucx.so."""
    return build(tmp_path_factory.mktemp("ucx"))
