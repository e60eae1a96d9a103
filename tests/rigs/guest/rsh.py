"""An rsh agent for launchers of MPI: runs a command line on another node. Usage: HOST COMMAND..."""

from __future__ import annotations

import shutil
import socket
import sys

RSH_PORT = 514


def main() -> None:
    with socket.create_connection((sys.argv[1], RSH_PORT)) as connection:
        connection.sendall(" ".join(sys.argv[2:]).encode() + b"\n")
        with connection.makefile("rb") as output:
            shutil.copyfileobj(output, sys.stdout.buffer)


if __name__ == "__main__":
    main()
