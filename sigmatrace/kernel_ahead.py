"""Compiles kernels in a second process, while the first one compiles those that it needs now.

numba holds the interpreter's lock while it compiles, so threads would not help. What the second
process has compiled, the first one finds in numba's cache. Neither compiles what the other one is
at: each locks a byte of a file in memory for each kernel, and locks go with the process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SECOND = "SIGMATRACE_IS_SECOND_COMPILER"
_CLAIMS = "SIGMATRACE_CLAIMED_KERNELS"
_PR_SET_PDEATHSIG = 1
_TOLD = "kernels: compiled now, as they run for the first time on this machine; takes some seconds"
_claims = int(os.environ[_CLAIMS]) if _CLAIMS in os.environ else None
"""The file whose bytes are locked, if there are two processes."""


@functools.cache
def start() -> None:
    """Start the second process, once, for the kernels of all modules that are imported by now.

    This process stops it when it ends itself. Without a second core, and in a process that is a
    worker of another one, there is none. Who waits is told so: unless logging is set up otherwise,
    on stderr.
    """
    if _SECOND in os.environ or multiprocessing.parent_process() is not None:
        return
    logging.getLogger(__name__).warning(_TOLD)
    names = [name for name in list(sys.modules) if ".kernels." in name]
    if len(os.sched_getaffinity(0)) < 2 or not names:
        return
    path = os.pathsep.join(word for word in sys.path if word)
    global _claims
    _claims = os.memfd_create("kernels")
    with contextlib.suppress(OSError):  # no process to be had: then this one compiles all
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, *sorted(names, key=_turn)],
            env={
                **os.environ,
                "PYTHONPATH": path,
                _SECOND: f"{os.getpid()}",
                _CLAIMS: f"{_claims}",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(_claims,),
        )
        atexit.register(_stop, child)


def _turn(name: str) -> tuple[bool, int]:
    """Return what the second process orders modules by: first what the first one calls last.

    Among them those with much text, which is about how long their kernels take.
    """
    return ".export." not in name, -Path(str(sys.modules[name].__file__)).stat().st_size


def claim(name: str) -> None:
    """Let the other process leave a kernel alone; if it is at it, wait: then it may be done."""
    if _claims is not None:
        with contextlib.suppress(OSError):  # each would wait for what the other one is at
            fcntl.lockf(_claims, fcntl.LOCK_EX, 1, _place(name))


def try_claim(name: str) -> bool:
    """Return whether the other process will leave a kernel alone; it does not if it is at it."""
    if _claims is None:
        return True
    try:
        fcntl.lockf(_claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(name))
    except OSError:
        return False
    return True


def release(name: str) -> None:
    """Take a claim back: the kernel is in the cache."""
    if _claims is not None:
        fcntl.lockf(_claims, fcntl.LOCK_UN, 1, _place(name))


def called(kernel: Any) -> str:
    """Return the name of a kernel, or of its function."""
    return f"{kernel.__module__}.{kernel.__qualname__}"


def _place(name: str) -> int:
    return zlib.crc32(name.encode())


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
            if compiled is None or one.__module__ != name:
                continue
            if try_claim(called(one)):
                compiled()
                release(called(one))


if __name__ == "__main__":
    from sigmatrace import kernel_ahead  # not this module's second self, which nobody asks

    kernel_ahead.main(sys.argv[1:])
