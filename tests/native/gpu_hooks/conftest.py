"""Fixtures of the tests of the GPU shim's wrappers: a libmlx5 and a libcuda of their own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from native_run import Result, compile_c, environment, shim_in

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def gpu_shim(native_lib: Path) -> Path:
    """libsigmatrace_gpu.so, from where the core is."""
    return shim_in(native_lib, "gpu")


def _programs(folder: Path, versions: bool) -> Path:
    """The two libraries, and the driver linked against them or not."""
    shared = ("-shared", "-fPIC", "-fvisibility=hidden")
    mlx5 = ["-Wl,-soname,libmlx5.so.1"]
    if versions:
        mlx5 += ["-DVERSIONS", f"-Wl,--version-script={HERE / 'fake_mlx5.map'}"]
    compile_c(HERE / "fake_mlx5.c", folder / "libmlx5.so.1", *shared, *mlx5)
    cuda = ("-Wl,-soname,libcuda.so.1", "-ldl")
    compile_c(HERE / "fake_cuda.c", folder / "libcuda.so.1", *shared, *cuda)
    compile_c(HERE / "fake_cupti.c", folder / "cupti.so", *shared)
    path = f"-Wl,-rpath,{folder}"
    link = [f"-L{folder}", "-l:libmlx5.so.1", "-l:libcuda.so.1", "-DLINKED"]
    link += ["-DOLD"] if versions else []
    cases = [str(HERE / name) for name in ("hooks_cases.c", "verbs_cases.c")]
    compile_c(HERE / "hooks_driver.c", folder / "linked", *cases, path, *link)
    compile_c(HERE / "hooks_driver.c", folder / "opener", *cases, path, "-ldl")
    return folder


@pytest.fixture(scope="session")
def versioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a libmlx5 with version nodes, and programs."""
    return _programs(tmp_path_factory.mktemp("versioned"), True)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a libmlx5 without version nodes, and programs."""
    return _programs(tmp_path_factory.mktemp("plain"), False)


class HookResult(Result):
    """A finished run: what the program told of each line."""

    @property
    def answers(self) -> list[Any]:
        """One for each line of the script."""
        found: list[Any] = json.loads(self.stdout)
        return found


@pytest.fixture
def hooks(
    versioned: Path, plain: Path, gpu_shim: Path, tmp_path: Path
) -> Callable[..., HookResult]:
    """Runs a script of the driver's under the shim: hooks(["init", "uar 0"], how="dlsym")."""

    def run(
        script: list[str],
        how: str = "link",
        nodes: bool = True,
        shims: tuple[str, ...] = ("gpu",),
        **env: str,
    ) -> HookResult:
        folder = versioned if nodes else plain
        preload = [shim_in(gpu_shim.parent, shim) for shim in shims]
        program = folder / ("linked" if how == "link" else "opener")
        out = tmp_path / "run"
        more = {"SIGMATRACE_MODE": "full", "SIGMATRACE_LAYERS": "gpu", "SIGMATRACE_CUPTI": "off"}
        done = subprocess.run(
            [str(program), how],
            input="".join(f"{line}\n" for line in script),
            env=environment(out, LD_PRELOAD=":".join(map(str, preload)), **(more | env)),
            capture_output=True,
            text=True,
            timeout=60,
        )
        result = HookResult(done, out)
        assert result.code == 0, (result.code, result.stderr)
        assert "driver:" not in result.stderr, result.stderr
        return result

    return run
