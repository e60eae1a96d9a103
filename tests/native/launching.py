"""Runs the launcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LAUNCHER = [sys.executable, "-c", "from sigmatrace.capture.launch import main; main()"]
# Uses UCX without sending anything: it creates a context and a worker and prints about them.
UCX_USER = ["ucx_info", "-u", "t", "-w"]
WAIT_S = 60


def capture(*words, **options):
    """Run the launcher and return the completed process, output as text."""
    kept = {"capture_output": True, "text": True, "timeout": WAIT_S, **options}
    return subprocess.run([*LAUNCHER, *map(str, words)], check=False, **kept)


def script(tmp_path: Path, text: str, name: str = "script.py") -> list[str]:
    """Write a Python program and return the words that run it."""
    path = tmp_path / name
    path.write_text(text)
    return [sys.executable, str(path)]
