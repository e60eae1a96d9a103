"""Programs that look UCP up by name: dlopen with RTLD_LOCAL or RTLD_DEEPBIND, then dlsym."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ucx_run import HERE, Setting, read_all, ucx

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not Path("/usr/include/ucp/api/ucp.h").exists(), reason="no UCX headers"),
    pytest.mark.skipif(not shutil.which("ninja"), reason="no ninja"),
]
MESSAGES = 25


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("dl") / "ucx_dl"
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, HERE / "ucx_dl.c", "-o", built], check=True)
    return built


@pytest.mark.parametrize("mode", ["simple", "full"])
@pytest.mark.parametrize("scope", ["local", "deepbind"])
@pytest.mark.parametrize("name", ["debian", "wheel"])
def test_every_message_is_recorded(
    shim: Path, program: Path, name: str, scope: str, mode: str, tmp_path: Path
) -> None:
    version = ucx(name)
    if not version:
        pytest.skip(f"UCX of {name} is not installed")
    library = "libucp.so.0" if version.old else str(Path(version.libraries) / "libucp.so.0")
    setting = Setting(shim, version, mode)
    done = subprocess.run(
        [program, library, scope, str(MESSAGES)],
        env=setting.environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (rank,) = read_all(tmp_path)
    ops = [record["op"] for record in rank.records(1)]
    assert (ops.count(1), ops.count(2)) == (MESSAGES, MESSAGES)
