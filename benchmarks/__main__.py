"""``make bench``: the cost of records and of the verbs shim, unchosen layers, the pipeline.

usage: python -m benchmarks [NAME [OPTION...]]: one of them alone, with its options
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("record_cost", "verbs_cost", "unchosen_layer", "pipeline_speed", "width")


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] not in NAMES:
        print(f"benchmarks: no benchmark is called {arguments[0]} ({', '.join(NAMES)})")
        return 2
    chosen, options = (arguments[:1], arguments[1:]) if arguments else (NAMES, [])
    codes = [
        subprocess.run([sys.executable, HERE / f"{name}.py", *options], check=False).returncode
        for name in chosen
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
