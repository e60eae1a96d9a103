"""Starts a server program, waits until it listens, runs a client, and ends with their exit code.

Usage: python pair.py PORT SERVER... -- CLIENT...
"""

from __future__ import annotations

import subprocess
import sys

from listening import wait_listening


def main() -> int:
    port, command = int(sys.argv[1]), sys.argv[2:]
    cut = command.index("--")
    server = subprocess.Popen(command[:cut], stdout=subprocess.DEVNULL, text=True)
    wait_listening(port, server)
    client = subprocess.run(command[cut + 1 :], stdout=subprocess.DEVNULL, check=False)
    return client.returncode or server.wait()


if __name__ == "__main__":
    sys.exit(main())
