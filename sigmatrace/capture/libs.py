"""Where the native libraries lie."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from sigmatrace.errors import CaptureError

LIB_DIR_VARIABLE = "SIGMATRACE_LIB_DIR"


def library_dir() -> Path:
    """Folder of the native libraries.

    Returns:
        ``$SIGMATRACE_LIB_DIR`` (a development build), else ``sigmatrace/capture/lib``.
    """
    wanted = os.environ.get(LIB_DIR_VARIABLE)
    return Path(wanted) if wanted else Path(str(files("sigmatrace.capture") / "lib"))


def library(name: str) -> Path:
    """Path of one native library.

    Args:
        name: Without prefix and suffix: ``"core"`` is ``libsigmatrace_core.so``.

    Returns:
        The absolute path, symbolic links resolved, so that the loader sees one library
        whichever way it is reached.

    Raises:
        CaptureError: The library is not there (not built: its headers were missing, or this
            is a checkout without a build).
    """
    path = library_dir() / f"libsigmatrace_{name}.so"
    if not path.is_file():
        raise CaptureError(
            f"native library {path} is missing",
            f"install the package, or build it and set {LIB_DIR_VARIABLE}",
        )
    return path.resolve()
