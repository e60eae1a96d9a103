"""``make bench``: capture cost, the pipeline, peers, packing, Table I; in 10 minutes.

usage: python -m benchmarks [NAME [OPTION...]]: one of them alone, with its options
"""

from __future__ import annotations

import subprocess
import sys
import time

NAMES = (
    "record_cost",
    "verbs_cost",
    "unchosen_layer",
    "pipeline_speed",
    "stage_cost",
    "peers_speed",
    "pack_cost",
    "table1",
    "scaling",
    "width",
)


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] not in NAMES:
        print(f"benchmarks: no benchmark is called {arguments[0]} ({', '.join(NAMES)})")
        return 2
    chosen, options = (arguments[:1], arguments[1:]) if arguments else (NAMES, [])
    start = time.monotonic()
    codes = []
    for name in chosen:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        codes.append(subprocess.run(command, check=False).returncode)
    print(f"\n{time.monotonic() - start:.0f} s")
    return max(abs(code) for code in codes)  # negative: ended by a signal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
