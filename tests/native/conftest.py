"""Builds the native code once a session, and runs the driver with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from plain_reader import Rank, read_all

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "sigmatrace" / "capture" / "native"


def _build(folder: Path) -> Path:
    if not shutil.which("cmake") or not shutil.which("ninja"):
        pytest.skip("no installed libraries, and no cmake and ninja to build them")
    subprocess.run(["cmake", "-S", NATIVE, "-B", folder, "-G", "Ninja"], check=True)
    subprocess.run(["ninja", "-C", folder, "sigmatrace_core"], check=True)
    return folder


@pytest.fixture(scope="session")
def native_lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of libsigmatrace_core.so: the installed one, or a fresh build."""
    wanted = os.environ.get("SIGMATRACE_LIB_DIR")
    installed = Path(str(files("sigmatrace.capture") / "lib"))
    if wanted:
        return Path(wanted)
    if (installed / "libsigmatrace_core.so").exists():
        return installed
    return _build(tmp_path_factory.mktemp("native"))


def compile_c(source: Path, target: Path, *options: str) -> Path:
    """Compiles one C file, warnings being errors."""
    flags = ["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-msse4.2", "-pthread", f"-I{NATIVE}"]
    extra = os.environ.get("SIGMATRACE_TEST_CFLAGS", "").split()
    subprocess.run(
        [os.environ.get("CC", "cc"), *flags, *extra, str(source), "-o", str(target), *options],
        check=True,
    )
    return target


@pytest.fixture(scope="session")
def driver(native_lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled tests/native/driver.c."""
    target = tmp_path_factory.mktemp("driver") / "driver"
    link = [f"-L{native_lib}", "-lsigmatrace_core", f"-Wl,-rpath,{native_lib}"]
    return compile_c(HERE / "driver.c", target, *link)


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
    foreign = ("SIGMATRACE_", "OMPI_", "PMI", "SLURM_", "PALS_", "MV2_")
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(foreign) and key not in ("RANK", "WORLD_SIZE")
    }
    if out is not None:
        clean["SIGMATRACE_OUT"] = str(out)
    return clean | more


@pytest.fixture
def drive(driver: Path, tmp_path: Path) -> Callable[..., Result]:
    """Runs the driver to its end: drive("count", 100, SIGMATRACE_MODE="full")."""

    def run(*arguments: object, out: Path | None = None, code: int = 0, **env: str) -> Result:
        folder = out or tmp_path / "run"
        done = subprocess.run(
            [str(driver), *map(str, arguments)],
            env=environment(folder, **env),
            capture_output=True,
            text=True,
            timeout=60,
        )
        result = Result(done, folder)
        assert result.code == code, (result.code, result.stderr)
        assert "driver:" not in result.stderr, result.stderr
        return result

    return run
