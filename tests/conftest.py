"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from native_run import build, installed_lib

from sigmatrace.query import wasm_host
from sigmatrace.query.trace_processor import TraceProcessor

# A shell that starts the tests in the background lets them ignore Ctrl-C, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests do not time, and the first call of a kernel compiles it.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def trace_processor() -> Callable[[Path], TraceProcessor]:
    """Loads a trace into the real trace_processor; compiled once."""
    module = wasm_host.compiled()
    return lambda trace: TraceProcessor(trace, module)


@pytest.fixture(scope="session")
def native_lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of libsigmatrace_core.so: the installed one, or a fresh build."""
    return installed_lib() or build(tmp_path_factory.mktemp("native"))
