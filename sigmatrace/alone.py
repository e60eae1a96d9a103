"""A command that is all that its process does: no time for what ends with the process anyway."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def run(main: Callable[[], int]) -> NoReturn:
    """Run a command that imports, does its work, and ends: nothing is searched for garbage."""
    gc.disable()
    leave(main())


def leave(code: int) -> NoReturn:
    """End the process at once: to take apart all that was imported takes a while."""
    atexit._run_exitfuncs()
    print(end="", file=sys.stderr, flush=True)
    os._exit(code)
