"""Fixtures of the repeater's tests: a program with a NIC and a CUDA of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_told import Run
from native_run import NATIVE, compile_c, environment

HERE = Path(__file__).parent
OWN = ("wqe", "cuda", "program", "completions", "ends", "shares", "lives")
# Of the shim, all but what looks into libmlx5 and CUDA.
PARTS = (
    *("wqe", "wqe_record", "monitor", "source", "peek", "repeater", "register"),
    *("qp", "cq", "cqe", "cq_read", "forward", "sweeper", "copier", "dbrec", "ring"),
)


@pytest.fixture(scope="session")
def repeat_driver(native_lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled repeat_driver.c with the repeater in it."""
    own = [str(HERE / f"{name}.c") for name in OWN]
    parts = [str(NATIVE / "gpu" / f"{name}.c") for name in PARTS]
    link = [f"-L{native_lib}", "-lsigmatrace_core", f"-Wl,-rpath,{native_lib}"]
    target = tmp_path_factory.mktemp("repeat") / "repeat_driver"
    options = [f"-I{NATIVE / 'gpu'}", "-ftls-model=initial-exec", *own, *parts, *link]
    return compile_c(HERE / "repeat_driver.c", target, *options)


@pytest.fixture
def repeat(repeat_driver: Path, tmp_path: Path) -> Callable[..., Run]:
    """Runs a case: repeat("mix", 64, 1000, mode="full", order=0)."""

    def run(*arguments: object, mode: str = "full", order: int = 0) -> Run:
        out = tmp_path / f"run-{mode}-{order}"
        more = {"SIGMATRACE_MODE": mode, "SIGMATRACE_LAYERS": "gpu", "ORDER": str(order)}
        done = subprocess.run(
            [str(repeat_driver), *map(str, arguments)],
            env=environment(out, **more),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, (done.returncode, done.stderr)
        return Run(done, out)

    return run
