"""Programs that look UCP up by name: dlopen with RTLD_LOCAL or RTLD_DEEPBIND, then dlsym."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ucx_run import Setting, Ucx, compiled, read_all

pytestmark = pytest.mark.real
MESSAGES = 25


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("ucx_dl", tmp_path_factory.mktemp("dl"))


@pytest.mark.parametrize("mode", ["simple", "full"])
@pytest.mark.parametrize("scope", ["local", "deepbind"])
def test_every_message_is_recorded(
    shim: Path, program: Path, version: Ucx, scope: str, mode: str, tmp_path: Path
) -> None:
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
