"""The page: everything in one file, which loads nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REPORT = {
    "heading": "SigmaTrace report",
    "findings_title": "Findings",
    "findings_note": "The percentage is the share of time, messages or bytes that a finding "
    "concerns. Errors come first, then what has most of that; idle links, which are no fault as "
    "such, come late.",
    "figures_note": "Figures are also files: report/NAME.png and report/NAME.svg, beside this "
    "page.",
}
"""Texts that are others where the page is no report of one run."""


@dataclass(frozen=True)
class Section:
    """Figures of one kind.

    Attributes:
        anchor: Its id in the page.
        title: Its heading.
        figures: Each with its title, text, and SVG.
        notes: What is not shown.
        none: What is said if there is no figure.
    """

    anchor: str
    title: str
    figures: Sequence[Mapping[str, str]]
    notes: Sequence[str]
    none: str


def page(parts: Mapping[str, Any]) -> str:
    """Return the page as HTML; every text in it is escaped.

    Args:
        parts: What ``page.html`` asks for; texts of ``_REPORT`` may be others. Figures alone are
            markup; they come from ``svg.py``.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script = _read("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = environment.from_string(_read("page.html"))
    return template.render(
        **{**_REPORT, **parts},
        style=_read("page.css"),
        script=script,
        script_hash=f"sha256-{digest}",
    )


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
