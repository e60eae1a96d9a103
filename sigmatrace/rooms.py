"""Memory that is used again: the system clears fresh pages, which takes as long as sorting."""

from __future__ import annotations

import sys
import threading

import numpy as np

_LEAST_BYTES = 1 << 20
"""What is smaller, malloc keeps."""
_KEPT_MAX_BYTES = 256 << 20
_ALIKE = 2
"""A room of another size than is asked for is used, or grows, within this factor."""
_rooms: list[np.ndarray] = []
_lock = threading.Lock()
_unused = [np.empty(0, np.uint8)]
_UNUSED = sys.getrefcount(_unused[0])
"""References to an array of a list of which nobody has a part."""


def take(size: int) -> np.ndarray:
    """Return at least so many bytes, u1; they hold anything.

    They belong to the caller as long as it, or whoever it gives them to, has any part of them.
    """
    if size < _LEAST_BYTES:
        return np.empty(size, np.uint8)
    with _lock:
        for at in range(len(_rooms)):
            has = _rooms[at].size
            if sys.getrefcount(_rooms[at]) == _UNUSED and size <= _ALIKE * has <= _ALIKE**2 * size:
                if has < size:
                    _rooms[at] = np.empty(size, np.uint8)
                return _rooms[at]
        room = np.empty(size, np.uint8)
        if sum(one.size for one in _rooms) + size <= _KEPT_MAX_BYTES:
            _rooms.append(room)
        return room
