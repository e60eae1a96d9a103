"""Programs that look libfabric up by name: the hook provider is reached however that is done."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from ofi_run import HERE, bundled_libfabric, environment, read_all

pytestmark = pytest.mark.real
SIZES = [*range(1, 13), *range(50, 54), *range(70, 74)]  # of what ofi_self sends


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not linked with libfabric."""
    built = tmp_path_factory.mktemp("dl") / "ofi_dl"
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, HERE / "ofi_dl.c", "-o", built, "-ldl"], check=True)
    return built


@pytest.mark.parametrize("scope", ["local", "deepbind"])
@pytest.mark.parametrize("look_up", ["dlsym", "dlvsym"])
@pytest.mark.parametrize("libfabric", ["debian", "bundled"])
def test_every_message_is_recorded(
    program: Path, libfabric: str, look_up: str, scope: str, tmp_path: Path
) -> None:
    library = "libfabric.so.1"
    if libfabric == "bundled":
        library = str(bundled_libfabric() / library)
    done = subprocess.run(
        [program, scope, look_up, library, "tcp;ofi_rxm"],
        env=environment("hook", tmp_path, "full"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (rank,) = read_all(tmp_path)
    (found,) = rank.objects_of("library")
    assert (found["name"], found["how"]) == ("libfabric", "hook")
    for op in (1, 2):
        sizes = [
            record["size_bytes"]
            for record in rank.records(1)
            if record["op"] == op and record["depth"] == 0
        ]
        assert Counter(sizes) == Counter(SIZES)
