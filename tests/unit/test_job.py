"""What a process does for its only work."""

from __future__ import annotations

import subprocess
import sys

import pytest

WORK = """
import sys
from dataclasses import dataclass
from sigmatrace import job

@dataclass
class Chosen:
    stage: dict
    export: dict

def work(settings):
    import pyarrow as pa
    pa.array([1])
    print("pandas" in sys.modules)
    print(pa.table({"a": [1, None]}).to_pandas()["a"].isna().tolist())

job.work = work
job.only_work(Chosen({"own": {"_target_": sys.argv[1]}}, {}))
"""


@pytest.mark.parametrize(
    ("target", "is_imported"), [("sigmatrace.stages.clock.Clock", False), ("mine.Stage", True)]
)
def test_arrow_looks_for_pandas_only_for_steps_of_the_users_own(target, is_imported):
    done = subprocess.run([sys.executable, "-c", WORK, target], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(is_imported), "[False, True]"]
