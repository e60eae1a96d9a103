"""Messages between hosts whose clocks are not exact enough to time them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sigmatrace.partition import Run
from sigmatrace.text import count_text, counted, time_text


def untimed_pairs(run: Run) -> NDArray[np.bool_]:
    """Return the pairs of processes half of whose messages took no longer than clocks may be off.

    Args:
        run: With ``message_latency``, ``clock_quality``, and the column ``host`` of ``processes``.

    Returns:
        ``(rows of message_latency,)``. Two processes of one host have one clock.
    """
    hosts = run.column("processes", "host")
    src, dst = _ends(run)
    is_short = run.column("message_latency", "p50_ns") <= _off_ns(run)
    untimed: NDArray[np.bool_] = (hosts[src] != hosts[dst]) & is_short
    return untimed


def untimed_text(run: Run, untimed: NDArray[np.bool_]) -> str:
    """Return a sentence, without its full stop, on pairs of which there are some."""
    which = f"{count_text(int(untimed.sum()))} of {counted(untimed.size, 'pair')} of processes"
    off_ns = float(_off_ns(run)[untimed].max())
    off = f"by up to {time_text(off_ns)}" if np.isfinite(off_ns) else "nobody knows by how much"
    return (
        f"between {which} half of the messages took no longer than clocks of their hosts may be "
        f"off each other ({off}): their latencies, waits for them, and the critical path are not "
        "sure"
    )


def _ends(run: Run) -> list[NDArray[np.int32]]:
    """Return the processes at both ends, ``(rows of message_latency,)`` i4."""
    # Messages that are matched have both.
    return [np.maximum(run.column("message_latency", f"{end}_proc"), 0) for end in ("src", "dst")]


def _off_ns(run: Run) -> NDArray[np.float64]:
    """Return how far the clocks of both ends may be off, ``(rows of message_latency,)`` f8 ns."""
    error_ns = run.column("clock_quality", "error_ns")
    src, dst = _ends(run)
    total: NDArray[np.float64] = error_ns[src] + error_ns[dst]
    return total
