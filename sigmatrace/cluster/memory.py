"""Memory that partitions free is kept for the next ones: clearing fresh pages takes CPU time."""

from __future__ import annotations

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of glibc's ``malloc.h``."""
_KEPT_BYTES = 128 << 20
_LARGE_BYTES = 32 << 20
"""The most that glibc takes: what is larger is mapped, and given back when it is freed."""


@functools.cache
def keep_freed() -> None:
    """Let glibc keep up to 128 MiB that are freed, in one place for all threads of this process.

    Else it gives back what it has more than twice the largest piece that was ever freed, and
    each thread has places of 64 MiB of its own, which are mapped and given back as a whole.
    Threads that have a place already keep it. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_ARENA_MAX, 1)
