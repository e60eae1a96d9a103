"""``NUMBA_DISABLE_JIT=1``: kernels are plain Python, to the same bytes."""

from __future__ import annotations

import subprocess
import sys

from tests.dask_commands import environment, pipeline
from tests.outputs import contents, files

PLAIN = {"NUMBA_DISABLE_JIT": "1"}


def test_an_output_is_the_same_without_compiled_kernels(synthetic, tmp_path):
    made = []
    for name, env in (("compiled", None), ("plain", PLAIN)):
        out = tmp_path / name
        words = ["export=[perfetto,json,parquet]", "cluster.workers=1"]
        done = pipeline(f"run={synthetic.folder}", f"out={out}", *words, env=env)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        made.append(contents(out))
        del made[-1]["summary.txt"]  # it tells how long that took
    assert made[0] == made[1]


def test_a_packed_run_is_the_same_without_compiled_kernels(small, tmp_path):
    for name, env in (("compiled", None), ("plain", PLAIN)):
        command = [sys.executable, "-m", "sigmatrace.capture.pack", small, "-o", tmp_path / name]
        done = subprocess.run(command, env=environment(env), capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path / "compiled") == files(tmp_path / "plain")
