"""Ports for server programs, and the wait until a server listens. Standard library alone."""

from __future__ import annotations

import random
import select
import socket
import subprocess
import time
from pathlib import Path

_LISTEN = "0A"


def free_port() -> int:
    """A port that is free and stays so.

    The kernel hands out ports of its ephemeral range to every socket that asks for none, those of
    the traced libraries among them; so this one is from below that range.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first // 2, first)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port


def _listens(port: int) -> bool:
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def wait_listening(port: int, server: subprocess.Popen[str]) -> None:
    """Waits until somebody listens on the port, without connecting to it.

    Raises:
        RuntimeError: The server ended before, or did not listen within 30 s.
    """
    deadline = time.monotonic() + 30
    while not _listens(port):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no server on port {port}; its exit code: {server.poll()}")
        select.select([], [], [], 0.01)  # the kernel tells nobody when a socket listens
