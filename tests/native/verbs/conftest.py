"""Fixtures of the verbs tests: an in-process libibverbs, and programs over it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from native_run import Result, compile_c, environment, shim_in

HERE = Path(__file__).parent
FAKE = ("engine", "extended", "memory", "shared")
PROGRAMS = ("traffic", "extended", "objects", "races", "refusals", "reuse", "xrc")


@pytest.fixture(scope="session")
def verbs_shim(native_lib: Path) -> Path:
    """libsigmatrace_verbs.so, from where the core is."""
    return shim_in(native_lib, "verbs")


@pytest.fixture(scope="session")
def fake(verbs_shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the in-process libibverbs.so.1 and of the programs."""
    folder = tmp_path_factory.mktemp("verbs")
    library = folder / "libibverbs.so.1"
    others = [str(HERE / f"fake_{name}.c") for name in FAKE]
    version = [f"-Wl,--version-script={HERE / 'fake_ibverbs.map'}", "-Wl,-soname,libibverbs.so.1"]
    compile_c(HERE / "fake_ibverbs.c", library, *others, "-shared", "-fPIC", *version)
    link = [f"-L{folder}", "-l:libibverbs.so.1", f"-Wl,-rpath,{folder}"]
    programs = [str(HERE / f"verbs_{name}.c") for name in PROGRAMS]
    compile_c(HERE / "verbs_driver.c", folder / "driver", *programs, *link)
    compile_c(HERE / "verbs_plugin.c", folder / "plugin.so", "-shared", "-fPIC", *link)
    compile_c(HERE / "verbs_loader.c", folder / "loader", "-ldl")
    return folder


@pytest.fixture
def run(fake: Path, verbs_shim: Path, tmp_path: Path) -> Callable[..., Result]:
    """Runs a program under the shim: run("driver", "traffic", 3, mode="full")."""

    def start(program: str, *arguments: object, mode: str = "full", **env: str) -> Result:
        out = tmp_path / f"{mode}-run"
        more = {"SIGMATRACE_MODE": mode, "SIGMATRACE_LAYERS": "verbs"} | env
        done = subprocess.run(
            [str(fake / program), *map(str, arguments)],
            env=environment(out, LD_PRELOAD=str(verbs_shim), **more),
            capture_output=True,
            text=True,
            timeout=60,
        )
        result = Result(done, out)
        assert result.code == 0, (result.code, result.stderr)
        assert "driver:" not in result.stderr, result.stderr
        return result

    return start
