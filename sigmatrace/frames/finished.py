"""An output of the pipeline that is there already, in hand again."""

from __future__ import annotations

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
        return layout.facts_in(self.out / layout.LEDGER, _HINT)

    def text(self) -> str:
        """Return the closing summary.

        Raises:
            RunNotFoundError: It cannot be read.
        """
        return layout.text_in(self.out / layout.SUMMARY, _HINT).rstrip("\n")


def opened(run: Path) -> FinishedOutput:
    """Open what the pipeline left; see ``api.open_output``."""
    folder = layout.find(run)
    out = folder.parent
    record = out / layout.RUN
    base_ns = layout.facts_in(record, _HINT).get("base_ns") if record.exists() else None
    if not (base_ns is None or isinstance(base_ns, int)):
        raise RunNotFoundError(f"{record}: damaged (base_ns is {base_ns!r})", _HINT)
    return FinishedOutput(out, Frames.in_folder(folder, base_ns))
