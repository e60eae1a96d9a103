"""A command that is all that its process does: no time for what ends with the process anyway."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def run(main: Callable[[], int]) -> NoReturn:
    """Run a command that imports, does its work, and ends."""
    begin()
    leave(main())


def begin() -> None:
    """Prepare for imports: what they make stays, so nothing is searched for garbage.

    numpy's linear algebra would start a thread for each core, which looks for work for a while
    and finds none; who wants them sets ``OMP_NUM_THREADS``.
    """
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))


def leave(code: int) -> NoReturn:
    """End the process at once: to take apart all that was imported takes a while."""
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):  # of a full disk: all is done
        print(end="", file=sys.stderr, flush=True)
    os._exit(code)
