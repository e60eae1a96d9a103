"""``make bench``: capture cost, the pipeline, peers, packing, Table I; in 10 minutes.

usage: python -m benchmarks [NAME [OPTION...]]: one of them alone, with its options
"""

from __future__ import annotations

import subprocess
import sys
import time

NAMES = {
    "record_cost": "what recording one event costs, beside LTTng-UST",
    "verbs_cost": "what the verbs shim adds to a request, a completion, an empty poll",
    "unchosen_layer": "whether a layer that is not chosen leaves the program's calls alone",
    "pipeline_speed": "speed, CPU and memory of the pipeline, against their goals",
    "two_at_once": "what the machine gives two workers, beside one",
    "stage_cost": "CPU time an event by step of the pipeline",
    "peers_speed": "the pipeline beside other tools that do the same work",
    "pack_cost": "CPU time and bytes an event of packing, and of reading packed files",
    "table1": "43 M operations and more: time, memory, size",
    "scaling": "what grows with ranks and events: the constants of docs/cluster.md",
    "browser_load": "how long a trace takes to open in a browser, and its memory",
    "width": "many rank files, and ranks that all talk to all",
}
"""What each measures, by name."""
HELP = ("-h", "--help")


def usage() -> str:
    """Return what ``--help`` prints."""
    lines = [f"  {name:16}{what}" for name, what in NAMES.items()]
    head = (
        "usage: python -m benchmarks [NAME [OPTION...]]",
        "All of them, or one alone with its options, which NAME --help lists.",
    )
    return "\n".join([*head, "", *lines])


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in HELP:
        print(usage())
        return 0
    if arguments and arguments[0] not in NAMES:
        print(f"benchmarks: no benchmark is called {arguments[0]} ({', '.join(NAMES)})")
        return 2
    chosen, options = (arguments[:1], arguments[1:]) if arguments else (list(NAMES), [])
    if any(word in HELP for word in options):
        return _run(chosen[0], options)
    start = time.monotonic()
    codes = []
    for name in chosen:
        print(f"\n== {name}", flush=True)
        codes.append(_run(name, options))
    print(f"\n{time.monotonic() - start:.0f} s")
    return max(abs(code) for code in codes)  # negative: ended by a signal


def _run(name: str, options: list[str]) -> int:
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
