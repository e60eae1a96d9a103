"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import trace_processor as wasm


@pytest.fixture(scope="session")
def trace_processor() -> Callable[[Path], wasm.TraceProcessor]:
    """Loads a trace into the real trace_processor; compiled once."""
    module = wasm.compiled()
    return lambda trace: wasm.TraceProcessor(trace, module)
