"""The time stamp counter: its frequency on the host, and whether a guest got it right."""

from __future__ import annotations

import ctypes
import mmap
import re
import time
from collections.abc import Callable

_RDTSC = b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3"  # rdtsc; shl rdx, 32; or rax, rdx; ret


def host_khz() -> int:
    """The counter's frequency against CLOCK_MONOTONIC over a tenth of a second, in kHz."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(_RDTSC)
    code = ctypes.c_char.from_buffer(page)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(code))
    first_ns, first = _pair(read)
    time.sleep(0.1)
    last_ns, last = _pair(read)
    del code
    page.close()
    return round((last - first) * 1_000_000 / (last_ns - first_ns))


def _pair(read: Callable[[], int]) -> tuple[int, int]:
    """Time in ns and the counter at it: of many readings the one that took least."""
    best = (1 << 62, 0, 0)
    for _ in range(1000):
        before = time.monotonic_ns()
        counter = read()
        after = time.monotonic_ns()
        best = min(best, (after - before, (before + after) // 2, counter))
    return best[1], best[2]


def fault(log: list[str], khz: int) -> str:
    """What is wrong with a guest's frequency, or nothing.

    Args:
        log: Lines of the guest kernel about the frequency, in order.
        khz: The host's frequency, which is the guest's, too.
    """
    values = [float(value) for line in log for value in re.findall(r"([\d.]+) MHz", line)]
    if not values:
        return "its kernel says nothing about the time stamp counter"
    if abs(values[-1] * 1000 / khz - 1) > 0.02:
        return f"its kernel takes the {khz / 1000} MHz counter for one of {values[-1]} MHz"
    return ""
