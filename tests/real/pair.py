"""Starts a server program, waits until it listens, runs a client, and ends with their exit code.

Usage: python pair.py PORT SERVER... -- CLIENT...
"""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

LISTEN = "0A"


def is_listening(port: int) -> bool:
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def main() -> int:
    port, command = int(sys.argv[1]), sys.argv[2:]
    cut = command.index("--")
    server = subprocess.Popen(command[:cut], stdout=subprocess.DEVNULL)
    while not is_listening(port):
        if server.poll() is not None:
            return server.returncode or 1
        select.select([], [], [], 0.01)  # the kernel tells nobody when a socket listens
    client = subprocess.run(command[cut + 1 :], stdout=subprocess.DEVNULL, check=False)
    return client.returncode or server.wait()


if __name__ == "__main__":
    sys.exit(main())
