"""Memory that is used again: the system clears fresh pages, which takes as long as sorting."""

from __future__ import annotations

import sys
import threading

import numpy as np

_ROOMS_MAX = 16
_rooms: list[np.ndarray] = []
_lock = threading.Lock()
_unused = [np.empty(0, np.uint8)]
_UNUSED = sys.getrefcount(_unused[0])
"""References to an array of a list of which nobody has a part."""


def take(size: int) -> np.ndarray:
    """Return at least so many bytes, u1; they hold anything.

    They belong to the caller as long as it, or whoever it gives them to, has any part of them.
    """
    with _lock:
        for at in range(len(_rooms)):
            if sys.getrefcount(_rooms[at]) == _UNUSED:
                if _rooms[at].size < size:
                    _rooms[at] = np.empty(size, np.uint8)
                return _rooms[at]
        room = np.empty(size, np.uint8)
        if len(_rooms) < _ROOMS_MAX:
            _rooms.append(room)
        return room
