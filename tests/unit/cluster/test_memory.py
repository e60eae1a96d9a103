"""What a thread frees it gets again without a page fault."""

from __future__ import annotations

import subprocess
import sys

THREAD = """
import resource, sys, threading
import numpy as np
if sys.argv[1] == "kept":
    from sigmatrace.cluster.memory import keep_freed
    keep_freed()

def faults():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    pieces = [np.ones(1 << 20, np.uint8) for _ in range(80)]
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

thread = threading.Thread(target=lambda: print(faults(), faults()))
thread.start()
thread.join()
"""


def faults(how: str) -> tuple[int, int]:
    told = subprocess.run(
        [sys.executable, "-c", THREAD, how], capture_output=True, text=True, check=True
    )
    first, second = map(int, told.stdout.split())
    return first, second


def test_what_a_thread_frees_is_kept_for_it():
    first, second = faults("kept")
    assert first > 10_000 > 1000 > second
    assert min(faults("left alone")) > 10_000
