"""The real function behind a wrapper, also in libraries that only a plugin can see."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from native_run import HERE, compile_c, environment

SOURCE = HERE / "symbol_probe.c"


@pytest.fixture(scope="module")
def probes(native_lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("symbols")
    core = [f"-L{native_lib}", "-lsigmatrace_core", f"-Wl,-rpath,{native_lib}"]
    shared = ["-shared", "-fPIC"]
    compile_c(SOURCE, folder / "libprovider.so", *shared, "-DPROVIDER")
    user = ["-DUSER", f"-L{folder}", "-lprovider", f"-Wl,-rpath,{folder}"]
    compile_c(SOURCE, folder / "libuser.so", *shared, *user)
    compile_c(SOURCE, folder / "libsigmatrace_probe.so", *shared, "-DWRAPPER", *core)
    compile_c(SOURCE, folder / "program", *core)
    return folder


@pytest.mark.parametrize(
    ("preload", "expected"),
    [
        ([], "42 1"),
        (["probe"], "1042 1"),
        (["core", "probe"], "1042 1"),
        (["provider", "probe"], "42 1"),
        (["probe", "provider"], "1042 1"),
    ],
)
def test_a_wrapper_finds_the_real_function(
    probes: Path, native_lib: Path, preload: list[str], expected: str
) -> None:
    paths = {
        "core": native_lib / "libsigmatrace_core.so",
        "probe": probes / "libsigmatrace_probe.so",
        "provider": probes / "libprovider.so",
    }
    env = environment(None, LD_PRELOAD=" ".join(str(paths[name]) for name in preload))
    wrapped = "w" if "probe" in preload else "-"
    done = subprocess.run(
        [probes / "program", probes / "libuser.so", wrapped],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


@pytest.mark.parametrize("sanitizer", ["libasan.so", "libtsan.so"])
@pytest.mark.parametrize("shim", ["ofi", "ucx", "verbs", "gpu"])
def test_a_program_under_a_sanitizer_starts(native_lib: Path, sanitizer: str, shim: str) -> None:
    """It looks libc's functions up by dlsym, and calls none of them before it has found it."""
    command = ["cc", f"-print-file-name={sanitizer}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    runtime = Path(told.stdout.strip())
    assert runtime.is_absolute(), f"{sanitizer} is not beside the compiler"
    preload = f"{runtime} {native_lib / f'libsigmatrace_{shim}.so'}"
    env = environment(None, LD_PRELOAD=preload)
    done = subprocess.run(["true"], env=env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
