"""Compiles kernels in a second process, while the first one compiles those that it needs now.

numba holds the interpreter's lock while it compiles, so threads would not help. What the second
process has compiled, the first one finds in numba's cache.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SECOND = "SIGMATRACE_IS_SECOND_COMPILER"
_PR_SET_PDEATHSIG = 1


@functools.cache
def start() -> None:
    """Start the second process, once, for the kernels of all modules that are imported by now.

    This process stops it when it ends itself. Without a second core, and in a process that is a
    worker of another one, there is none.
    """
    names = [name for name in list(sys.modules) if ".kernels." in name]
    is_second = _SECOND in os.environ or multiprocessing.parent_process() is not None
    if len(os.sched_getaffinity(0)) < 2 or is_second or not names:
        return
    path = os.pathsep.join(word for word in sys.path if word)
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, *sorted(names, key=_size, reverse=True)],
        env={**os.environ, "PYTHONPATH": path, _SECOND: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(_stop, child)


def _size(name: str) -> int:
    """Return the size of a module, which is about how long its kernels take to compile."""
    return Path(str(sys.modules[name].__file__)).stat().st_size


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    child.wait()


def main(names: Sequence[str]) -> None:
    """Compile all kernels of these modules, in this order; end with the first process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.environ.get(_SECOND, str(os.getppid())) != str(os.getppid()):
        return  # it has ended before this one could say so
    for name in names:
        for one in list(vars(importlib.import_module(name)).values()):
            compiled: Any = getattr(one, "compiled", None)
            if compiled is not None and one.__module__ == name:
                compiled()


if __name__ == "__main__":
    main(sys.argv[1:])
