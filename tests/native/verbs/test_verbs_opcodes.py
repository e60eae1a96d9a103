"""Opcodes and statuses are those of the installed ``infiniband/verbs.h``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from sigmatrace.export.verbs_names import WcStatus
from sigmatrace.trace_format import WcOpcode, WrOpcode

NEWER = {"IBV_WR_FLUSH", "IBV_WC_FLUSH"}
"""Of later headers than the oldest that is supported."""


def test_codes_are_those_of_the_header(tmp_path: Path) -> None:
    known = {f"IBV_WR_{one.name}": one for one in WrOpcode if one != WrOpcode.RECEIVE}
    known |= {f"IBV_WC_{one.name}": one for one in WcOpcode if one != WcOpcode.UNKNOWN}
    known |= {f"IBV_WC_{one.name}": one for one in WcStatus}
    compared = [name for name in known if name not in NEWER]
    lines = "".join(f'printf("%d\\n", {name});' for name in compared)
    source = tmp_path / "opcodes.c"
    source.write_text(
        f"#include <infiniband/verbs.h>\n#include <stdio.h>\nint main(void) {{ {lines} }}\n"
    )
    program = tmp_path / "opcodes"
    subprocess.run([shutil.which("cc") or "gcc", source, "-o", program], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert dict(zip(compared, map(int, said.split()), strict=True)) == {
        name: int(known[name]) for name in compared
    }
