"""How an output of the pipeline is laid out: for those who write it, and those who read it.

Composing options needs this, too, so it imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sigmatrace.errors import RunNotFoundError

OUTPUT = "sigmatrace-out"
"""The folder of the output, in that of the trace files, unless the user names another one."""
LEDGER, RUN, SUMMARY, TRACE, REPORT = (
    "ledger.json", "run.json", "summary.txt", "trace.pftrace", "report.html",
)  # fmt: skip
"""Files in it."""
PARQUET = "parquet"
"""The folder of tables in it."""
CODES = "codes"
"""The table that says what codes mean."""
_PLACES = "name a run, or an output of the pipeline"


def find(run: Path) -> Path:
    """Return the folder of Parquet files of a run, or of an output of the pipeline.

    Raises:
        RunNotFoundError: There is none.
    """
    for folder in (run / PARQUET, run / OUTPUT / PARQUET, run):
        if file_of(folder, CODES).exists():
            return folder
    if not run.exists():
        raise RunNotFoundError(f"{run}: no such folder", _PLACES)
    raise RunNotFoundError(f"{run}: no Parquet files there", making(run, "export=parquet"))


def traced(place: Path) -> Path | None:
    """Return the folder of trace files that a place is, or is the output of; None: not there."""
    candidates = [place]
    if place.name == OUTPUT:
        candidates.append(place.parent)
    with contextlib.suppress(RunNotFoundError):
        candidates.append(Path(str(facts_in(place / RUN, "").get("run"))))
    return next((one for one in candidates if any(one.glob("*.msgpack"))), None)


def making(place: Path, option: str) -> str:
    """Return a hint: how an output is made that has what a place lacks, beside one that is there.

    The command is the hint's end, to be copied into a shell. It replaces nothing: what is there
    may have taken long.

    Args:
        place: A run, or an output of the pipeline.
        option: What the pipeline is to make, ``KEY=NAME``.
    """
    run = traced(place)
    if run is None:
        return _PLACES
    lacks = run / OUTPUT if run == place else place
    words, what = [f"run={run}", option], "an output"
    if lacks.exists():
        apart = lacks.with_name(f"{lacks.name}-{option.partition('=')[2]}")
        if (apart / RUN).exists():
            return f"name {apart}"
        words, what = [*words, f"out={apart}"], "another output, and name that,"
    return f"make {what} by: sigmatrace-pipeline {shlex.join(words)}"


def lacking(place: Path, what: str) -> RunNotFoundError:
    """Return the error of a place with no trace of the usual name: others, or how to make one.

    Args:
        place: A run, or an output.
        what: What was looked for.
    """
    folders = (place, place / OUTPUT)
    several = sorted(path for folder in folders for path in folder.glob("trace-*.pftrace"))
    if several:
        return RunNotFoundError(f"{place}: several traces there", f"name one, as {several[0]}")
    return RunNotFoundError(f"{place}: no {what} there", making(place, "export=perfetto"))


def text_in(path: Path, hint: str) -> str:
    """Return the text of a file of an output.

    Raises:
        RunNotFoundError: It is not there, or damaged; with this hint.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunNotFoundError(f"{path}: {error.strerror}", hint) from None
    except UnicodeDecodeError as error:
        raise RunNotFoundError(f"{path}: damaged ({error})", hint) from None


def facts_in(path: Path, hint: str) -> Mapping[str, Any]:
    """Return the JSON object in a file of an output.

    Raises:
        RunNotFoundError: It is not there, or damaged; with this hint.
    """
    try:
        found = json.loads(text_in(path, hint))
    except ValueError as error:
        raise RunNotFoundError(f"{path}: damaged ({error})", hint) from None
    if not isinstance(found, dict):
        raise RunNotFoundError(f"{path}: damaged (no object)", hint)
    return found


def file_of(folder: Path, table: str) -> Path:
    """Return the place of a whole-run table."""
    return folder / f"{table}.parquet"


def tables(folder: Path) -> dict[str, Path]:
    """Return the place of each table by its name: its file, or the folder of its files."""
    return {
        path.name if path.is_dir() else path.stem: path
        for path in sorted(folder.iterdir())
        if path.is_dir() or path.suffix == ".parquet"
    }
