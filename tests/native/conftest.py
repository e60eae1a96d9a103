"""Fixtures of the native tests: one build a session."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from native_run import Result, compile_with_core, environment


@pytest.fixture(scope="session")
def driver(native_lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled tests/native/driver.c."""
    return compile_with_core("driver", native_lib, tmp_path_factory.mktemp("driver"))


@pytest.fixture
def drive(driver: Path, tmp_path: Path) -> Callable[..., Result]:
    """Runs the driver to its end: drive("count", 100, SIGMATRACE_MODE="full")."""

    def run(*arguments: object, out: Path | None = None, code: int = 0, **env: str) -> Result:
        folder = out or tmp_path / "run"
        done = subprocess.run(
            [str(driver), *map(str, arguments)],
            env=environment(folder, **env),
            capture_output=True,
            text=True,
            timeout=60,
        )
        result = Result(done, folder)
        assert result.code == code, (result.code, result.stderr)
        assert "driver:" not in result.stderr, result.stderr
        return result

    return run


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable steers the capture or says that this is a process of a job."""
    for name in [*os.environ]:
        is_ours = name.startswith("SIGMATRACE_") and name != "SIGMATRACE_LIB_DIR"
        if is_ours or name.startswith(("PMI", "OMPI_", "SLURM_")):
            monkeypatch.delenv(name)
