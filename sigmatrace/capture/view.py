"""A file read in pieces, as if it were bytes.

Files are not mapped: one that shrinks while it is read (a full disk cleared, a copy over it) would
kill the process with SIGBUS. Reading costs no more: a page fault is dearer than copying a page.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_WINDOW_BYTES = 8 << 10
_JUMP_BYTES = 512
_SEARCH_BYTES = 1 << 20


class FileView:
    """A file of the size that it had when it was opened; bytes that went away since are 0.

    Args:
        fd: Open for reading, as long as the view is used.

    Attributes:
        is_regular: Whether it is a file, and no folder or pipe.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        found = os.fstat(fd)
        self.is_regular = stat.S_ISREG(found.st_mode)
        self._size = found.st_size
        self._window = b""
        self._window_at = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        """Return the bytes of a slice that names both ends, cut at the end of the file."""
        at, end = span.start - self._window_at, span.stop - self._window_at
        if not 0 <= at <= end <= len(self._window):
            start, stop = span.start, min(span.stop, self._size)
            if not 0 < stop - start <= _WINDOW_BYTES:
                return self._pread(start, stop - start)
            # Who jumps ahead wants the head of a chunk, and then to jump on.
            is_near = start <= self._window_at + _WINDOW_BYTES
            most = _WINDOW_BYTES if is_near else max(_JUMP_BYTES, stop - start)
            self._window = self._pread(start, min(most, self._size - start))
            self._window_at, at, end = start, 0, stop - start
        return self._window[at:end]

    def find(self, what: bytes, start: int) -> int:
        """Return where ``what`` is found first from ``start`` on, -1 if nowhere."""
        while start < self._size:
            size = min(_SEARCH_BYTES, self._size - start)
            at = self._pread(start, size).find(what)
            if at >= 0:
                return start + at
            start += size if start + size == self._size else size - len(what) + 1
        return -1

    def read_into(self, start: int, out: np.ndarray) -> bool:
        """Fill ``out`` (u1) with what is in the file now; return whether it reaches so far."""
        done = count = os.preadv(self._fd, [out.data], start)
        while count and done < out.size:
            count = os.preadv(self._fd, [out[done:].data], start + done)
            done += count
        return done == out.size

    def forget(self) -> None:
        """Read anew what is asked for next: a live process may have changed it."""
        self._window = b""

    def _pread(self, start: int, size: int) -> bytes:
        read = os.pread(self._fd, size, start) if size > 0 else b""
        while 0 < (done := len(read)) < size:
            more = os.pread(self._fd, size - done, start + done)
            if not more:
                break
            read += more
        return read.ljust(size, b"\0")


@contextmanager
def opened(path: str | Path) -> Iterator[FileView]:
    """Open a file for reading.

    Raises:
        OSError: It cannot be opened, or is no file (a folder, a pipe).
    """
    # A file object takes twice as long. A pipe that nobody writes to would be waited for.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        view = FileView(fd)
        if not view.is_regular:
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield view
    finally:
        os.close(fd)
