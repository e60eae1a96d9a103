"""Builds the native code, and runs the driver with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
from plain_reader import Rank, read_all

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "sigmatrace" / "capture" / "native"


def build(folder: Path) -> Path:
    if not shutil.which("cmake") or not shutil.which("ninja"):
        pytest.skip("no installed libraries, and no cmake and ninja to build them")
    subprocess.run(["cmake", "-S", NATIVE, "-B", folder, "-G", "Ninja"], check=True)
    subprocess.run(["ninja", "-C", folder, "sigmatrace_core"], check=True)
    return folder


def shim_in(folder: Path, layer: str) -> Path:
    """libsigmatrace_LAYER.so beside the core: tests of a layer that is not built do not pass."""
    if (folder / "build.ninja").exists():
        subprocess.run(["ninja", "-C", folder, f"sigmatrace_{layer}"], check=True)
    path = folder / f"libsigmatrace_{layer}.so"
    assert path.exists(), f"{path} is missing: install libibverbs-dev, then make native"
    return path


def installed_lib() -> Path | None:
    """Folder of libsigmatrace_core.so, where there is one already."""
    wanted = os.environ.get("SIGMATRACE_LIB_DIR")
    installed = Path(str(files("sigmatrace.capture") / "lib"))
    if wanted and not (Path(wanted) / "libsigmatrace_core.so").exists():
        pytest.exit(f"SIGMATRACE_LIB_DIR={wanted}: no libsigmatrace_core.so is there", 4)
    if wanted:
        return Path(wanted)
    return installed if (installed / "libsigmatrace_core.so").exists() else None


def compile_c(source: Path, target: Path, *options: str) -> Path:
    """Compiles one C file, warnings being errors."""
    flags = ["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-msse4.2", "-pthread", f"-I{NATIVE}"]
    extra = os.environ.get("SIGMATRACE_TEST_CFLAGS", "").split()
    subprocess.run(
        [os.environ.get("CC", "cc"), *flags, *extra, str(source), "-o", str(target), *options],
        check=True,
    )
    return target


def compile_with_core(name: str, lib: Path, folder: Path) -> Path:
    """Compiles a C program of this folder that calls the core, which lies in `lib`."""
    link = [f"-L{lib}", "-lsigmatrace_core", f"-Wl,-rpath,{lib}"]
    return compile_c(HERE / f"{name}.c", folder / name, *link)


class Result:
    """A finished run of the driver."""

    def __init__(self, done: subprocess.CompletedProcess[str], out: Path) -> None:
        self.code = done.returncode
        self.stdout = done.stdout
        self.stderr = done.stderr
        self.out = out

    @property
    def told(self) -> dict[str, int]:
        """The line of JSON that the driver printed."""
        found: dict[str, int] = json.loads(self.stdout.splitlines()[0])
        return found

    def ranks(self) -> list[Rank]:
        """All processes that left a rank file."""
        return read_all(self.out)

    def rank(self) -> Rank:
        """The only process."""
        (rank,) = self.ranks()
        return rank

    def rings(self) -> list[Path]:
        """Ring files that were left."""
        return list(self.out.glob("*.ring"))


def environment(out: Path | None, **more: str) -> dict[str, str]:
    """This environment, without what would steer the core, and with what is given."""
    foreign = ("SIGMATRACE_", "OMPI_", "PMI", "SLURM_", "PALS_", "MV2_", "FLUX_", "TORCH")
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(foreign) and key not in ("RANK", "WORLD_SIZE")
    }
    if out is not None:
        clean["SIGMATRACE_OUT"] = str(out)
    return clean | more
