"""Where and when a benchmark ran."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path


def describe() -> str:
    """Return one line: date, processor, cores, kernel, load of the last minute."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    virtual = any(line.startswith("flags") and " hypervisor" in line for line in lines)
    return ", ".join(
        [
            datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            model + (" (virtual machine)" if virtual else ""),
            f"{os.cpu_count()} cores",
            f"Linux {platform.release().split('-')[0]}",
            f"load {os.getloadavg()[0]:.1f}",
        ]
    )
