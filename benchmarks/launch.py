"""Runs a command and writes to a descriptor what it cost: python -IS launch.py FD COMMAND...

A process begins with the peak memory of the one that starts it (Linux keeps it over exec), so the
one that starts a measured command must be small: this one imports next to nothing.
"""

import os
import sys
import time


def main() -> None:
    told, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(told, False)
    start = time.perf_counter()
    process = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(process, 0)
    wall = time.perf_counter() - start
    cpu = usage.ru_utime + usage.ru_stime
    code = os.waitstatus_to_exitcode(status)
    os.write(told, f"{wall} {cpu} {usage.ru_maxrss * 1024} {code}".encode())


if __name__ == "__main__":
    main()
