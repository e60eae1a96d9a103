"""The text of ``--version``, the same for both commands."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def version_text() -> str:
    """Return name and version of this installation."""
    try:
        return f"sigmatrace {version('sigmatrace')}"
    except PackageNotFoundError:
        return "sigmatrace (a checkout that is not installed)"
