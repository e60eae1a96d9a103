"""What a figure of the report is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """One figure, not drawn yet.

    Attributes:
        name: Of its files, without suffix; unique.
        title: A heading.
        text: What it shows, in words: its caption, and what is read to those who cannot see it.
        make: Draws it, as a matplotlib figure.
    """

    name: str
    title: str
    text: str
    make: Callable[[], Any]
