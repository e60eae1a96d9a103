"""An output of the pipeline that is there already, in hand again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigmatrace import layout
from sigmatrace.errors import RunNotFoundError
from sigmatrace.frames.frames import Frames

_HINT = "name an output of the pipeline"


@dataclass(frozen=True)
class FinishedOutput:
    """What a run of the pipeline left, with the same names as ``api.Result``.

    Attributes:
        out: Folder of the output.
        frames: All tables, of events too, read as they are asked for.
    """

    out: Path
    frames: Frames

    @property
    def ledger(self) -> Mapping[str, Any]:
        """The ledger.

        Raises:
            RunNotFoundError: It cannot be read.
        """
        return _facts(self.out / layout.LEDGER)

    def text(self) -> str:
        """Return the closing summary.

        Raises:
            RunNotFoundError: It cannot be read.
        """
        return _text(self.out / layout.SUMMARY).rstrip("\n")


def opened(run: Path) -> FinishedOutput:
    """Open what the pipeline left; see ``api.open_output``."""
    folder = layout.find(run)
    out = folder.parent
    record = out / layout.RUN
    base_ns = _facts(record).get("base_ns") if record.exists() else None
    if not (base_ns is None or isinstance(base_ns, int)):
        raise RunNotFoundError(f"{record}: damaged (base_ns is {base_ns!r})", _HINT)
    return FinishedOutput(out, Frames.in_folder(folder, base_ns))


def _facts(path: Path) -> Mapping[str, Any]:
    text = _text(path)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RunNotFoundError(f"{path}: damaged ({error})", _HINT) from None
    if not isinstance(found, dict):
        raise RunNotFoundError(f"{path}: damaged (no object)", _HINT)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunNotFoundError(f"{path}: {error.strerror}", _HINT) from None
    except UnicodeDecodeError as error:
        raise RunNotFoundError(f"{path}: damaged ({error})", _HINT) from None
