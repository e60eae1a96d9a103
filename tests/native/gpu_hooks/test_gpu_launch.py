"""What the launcher says of a program whose GPU starts operations."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from firmware import doorbell
from launching import capture
from test_gpu_hooks import FIRST_QPN, LIFE

pytestmark = pytest.mark.usefixtures("clean_environment")


def launched(
    folder: Path, out: Path, script: list[str], layers: str
) -> subprocess.CompletedProcess[str]:
    """The driver below the launcher, in mode full."""
    words = ["-o", out, "--mode", "full", "--layers", layers, "--", folder / "linked", "link"]
    done = capture(*words, input="".join(f"{line}\n" for line in script))
    assert done.returncode == 0, done.stderr
    return done


def test_operations_and_doorbells_are_counted(
    versioned: Path, gpu_shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGMATRACE_CUPTI", "off")
    said = launched(versioned, tmp_path / "run", LIFE, "gpu").stderr
    assert re.search(r"; 2 operations, \d+ doorbells?, ", said) and "warning" not in said


def test_doorbells_without_their_wqes(
    versioned: Path, gpu_shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGMATRACE_CUPTI", "off")
    monkeypatch.setenv("SIGMATRACE_DOORBELL", "off")
    said = launched(versioned, tmp_path / "off", LIFE, "gpu").stderr
    told = r"\nsigmatrace-capture: \d+ doorbells? recorded, "
    assert re.search(told + "WQEs not read: SIGMATRACE_DOORBELL=off\n", said)
    monkeypatch.delenv("SIGMATRACE_DOORBELL")
    said = launched(versioned, tmp_path / "empty", ["init", "init_obj 0 33"], "gpu").stderr
    assert re.search(told + "but no operation that moves data was found behind them\n", said)
    assert "no message went through them" not in said


def test_registers_that_are_not_watched_are_named(
    versioned: Path, gpu_shim: Path, tmp_path: Path
) -> None:
    script = [line for line in LIFE if line != f"ring 0 {doorbell(2, FIRST_QPN)}"]
    said = launched(versioned, tmp_path / "run", script, "mlx5dv").stderr
    assert "warning: layers mlx5dv and cuda work together: use --layers gpu" in said
    assert ", registers not watched (layer cuda is not chosen): 1" in said
    told = "1 register of NICs not watched: layer cuda is not chosen; use --layers gpu"
    assert told in said and "no message went through them" not in said
