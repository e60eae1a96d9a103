"""Sees to it that compiled kernels can be cached, wherever the package is installed."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def use_writable_cache() -> None:
    """Point numba's cache to the user's cache folder when the package cannot be written.

    Left alone when the user chose a folder, or when the package is writable (the cache then lies
    beside the kernels). Child processes inherit the choice.
    """
    package = Path(__file__).parent
    if "NUMBA_CACHE_DIR" in os.environ or os.access(package, os.W_OK):
        return
    folder = user_cache("numba")
    if folder is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(folder)
        if "numba" in sys.modules:  # it has read its environment
            sys.modules["numba"].config.CACHE_DIR = str(folder)


def user_cache(name: str) -> Path | None:
    """Return a folder of this user's alone for what can be made again, None if there is none.

    Args:
        name: Of the folder, within the user's cache folder or, if that cannot be written, within
            one in the folder of temporary files.
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    for base in (
        Path(home) / "sigmatrace",
        Path(tempfile.gettempdir()) / f"sigmatrace-{os.getuid()}",
    ):
        folder = base / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    return None
