"""``make bench``: the cost of a record, then the speed of the pipeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    codes = [
        subprocess.run([sys.executable, HERE / name], check=False).returncode
        for name in ("record_cost.py", "pipeline_speed.py")
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
