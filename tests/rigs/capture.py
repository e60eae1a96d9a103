"""The capture of the rig's network, cut into one file per case."""

from __future__ import annotations

import itertools
import select
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.rigs.errors import RigTimeoutError
from tests.rigs.node import Node

SNAPLEN = 512  # all headers, and a whole management datagram
_FILE_HEADER, _RECORD_HEADER = 24, struct.Struct("<8xI4x")


class Capture:
    """Every frame between the nodes, seen by the emulator of node 0.

    The file grows while the rig lives. Where a case begins and ends in it is found by a fence: each
    node broadcasts a token, behind all that it sent before; what lies before the last of the
    tokens is complete.
    """

    def __init__(self, file: Path, nodes: Sequence[Node]) -> None:
        self._file, self._nodes = file, nodes
        self._position = _FILE_HEADER
        self._tokens = itertools.count()

    @contextmanager
    def into(self, target: Path) -> Iterator[None]:
        """Writes what the nodes exchange meanwhile to a pcap file.

        Programs must have ended before this ends, and `Node.netem` begin and end within: it would
        delay or drop the fence.
        """
        start = self._fence()
        yield
        end = self._fence()
        with self._file.open("rb") as file:
            header = file.read(_FILE_HEADER)
            file.seek(start)
            target.write_bytes(header + file.read(end - start))

    def _fence(self) -> int:
        """Sends the tokens and waits until all are in the file; the offset behind them."""
        missing: set[bytes] = set()
        for node in self._nodes:
            token = f"rig-fence-{next(self._tokens)}."
            missing.add(token.encode())
            node.request("send", token=token)
        deadline = time.monotonic() + 30
        while missing:
            for frame in self._new_frames():
                missing -= {token for token in missing if token in frame}
                if not missing:
                    break
            if missing:
                if time.monotonic() > deadline:
                    raise RigTimeoutError("the capture does not show what the nodes sent")
                select.select([], [], [], 0.01)  # nobody tells that a file has grown
        return self._position

    def _new_frames(self) -> Iterator[bytes]:
        """Complete frames behind the position, which moves along with them."""
        with self._file.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        at = 0
        while at + 16 <= len(data):
            (size,) = _RECORD_HEADER.unpack_from(data, at)
            if at + 16 + size > len(data):
                return
            self._position += 16 + size
            yield data[at + 16 : at + 16 + size]
            at += 16 + size
