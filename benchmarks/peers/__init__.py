"""What a user would pick instead, given the same events, each as a whole process.

Each tool gets its input in its own format (``inputs.py``), written beforehand and unmeasured, and
must give the counts of the events that it can give; ``python -m benchmarks peers_speed`` compares
them.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
DFTRACER = "0.0.14"
DFTRACER_PYTHON = HERE.parents[1] / ".venv-dftracer" / "bin" / "python"
"""Of an environment of its own, because pins conflict; made by ``scripts/setup.sh --bench``."""


@dataclass(frozen=True)
class Peer:
    """A tool to compare with.

    Attributes:
        name: In the table.
        does: What of the work it does.
        input: Which of ``inputs.WRITERS`` it reads; the input's folder is its argument.
        command: Without the folder.
        missing: Returns why it cannot run here; None if it can.
        counts: Returns what it printed as counts: of ``events``, ``matched``, ``bytes``.
        is_slow: Takes more than ten times as long as the fastest.
    """

    name: str
    does: str
    input: str
    command: tuple[str, ...]
    missing: Callable[[], str | None]
    counts: Callable[[str], Mapping[str, int]]
    is_slow: bool = False


def _last_line(output: str) -> Mapping[str, int]:
    counts: dict[str, int] = json.loads(output.splitlines()[-1])
    return counts


def _babeltrace_counts(output: str) -> Mapping[str, int]:
    found = re.findall(r"(\d+) Event messages", output)
    return {"events": int(found[-1])} if found else {}


def _package(name: str) -> Callable[[], str | None]:
    return lambda: None if importlib.util.find_spec(name) else f"{name} is not installed"


def _babeltrace_missing() -> str | None:
    return None if shutil.which("babeltrace2") else "babeltrace2 is not installed"


def _dftracer_missing() -> str | None:
    return None if DFTRACER_PYTHON.exists() else "dftracer-utils could not be installed"


def _script(name: str, python: str = sys.executable) -> tuple[str, ...]:
    return (python, str(HERE / f"{name}.py"))


PEERS = (
    Peer(
        "Polars from CSV",
        "clocks, matching, matrix, NDJSON",
        "csv",
        _script("polars_from_csv"),
        _package("polars"),
        _last_line,
    ),
    Peer(
        "DuckDB from CSV",
        "clocks, matching, matrix, NDJSON",
        "csv",
        _script("duckdb_from_csv"),
        _package("duckdb"),
        _last_line,
    ),
    Peer(
        f"dftracer-utils {DFTRACER}",
        "load, matrix; no clocks, no matching, no export",
        "pfw",
        _script("dftracer_matrix", str(DFTRACER_PYTHON)),
        _dftracer_missing,
        _last_line,
        is_slow=True,
    ),
    Peer(
        "babeltrace2",
        "decode and merge CTF; nothing else",
        "ctf",
        ("babeltrace2", "--component=counter:sink.utils.counter", "--params=step=+0"),
        _babeltrace_missing,
        _babeltrace_counts,
        is_slow=True,
    ),
    Peer(
        "per-event Python (NPKit's way)",
        "clocks, matching, matrix, Chrome JSON",
        "msgpack",
        _script("python_per_event"),
        _package("msgpack"),
        _last_line,
        is_slow=True,
    ),
)
