"""What a half-finished output depends on: if anything of it changes, nothing is taken over."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
import numpy
import pyarrow

_NO_MATTER = ("cluster", "out", "overwrite", "plan", "resume", "strict")
"""Options that do not change what partitions make."""


def fingerprint(
    options: Mapping[str, Any], files: Iterable[str], steps: Iterable[object]
) -> dict[str, str]:
    """Return digests of options, trace files and code, by what they are of.

    Args:
        options: All options by name.
        files: Trace files; their sizes and times count, not their bytes.
        steps: Stages and exporters; the files of their modules count, as do this package's own.
    """
    whole = {
        "options": {key: value for key, value in options.items() if key not in _NO_MATTER},
        "trace files": _states(files),
        "code": _states(sorted(set(_code(steps)))),
        "packages": [*(one.__version__ for one in (numba, numpy, pyarrow)), version("scipy")],
    }
    return {what: _digest(value) for what, value in whole.items()}


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _code(steps: Iterable[object]) -> Iterator[str]:
    """Yield the files of modules that make what is staged."""
    for folder, _, names in os.walk(Path(__file__).parent):
        yield from (f"{folder}/{name}" for name in names if name.endswith(".py"))
    for module in {type(step).__module__ for step in steps}:
        path = getattr(sys.modules.get(module), "__file__", None)
        if path:
            yield path


def _states(paths: Iterable[str]) -> list[tuple[str, int, int, int]]:
    """Return path, size and times of each file, -1 where there is none.

    Each folder is read once: most of the files that may be there, rings, are not.
    """
    wanted = list(paths)
    there: dict[str, os.DirEntry[str]] = {}
    for folder in {path[: path.rfind("/") + 1] for path in wanted}:
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            there.update((folder + entry.name, entry) for entry in entries)
    return [_state(path, there.get(path)) for path in wanted]


def _state(path: str, entry: os.DirEntry[str] | None) -> tuple[str, int, int, int]:
    try:
        known = entry.stat() if entry else None
    except OSError:
        known = None
    if known is None:
        return path, -1, -1, -1
    return path, known.st_size, known.st_mtime_ns, known.st_ctime_ns
