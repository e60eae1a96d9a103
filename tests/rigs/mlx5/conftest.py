"""One build a session of the emulated NIC."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.rigs.mlx5.build import build
from tests.rigs.mlx5.emulated import Emulated


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    """The emulated NIC with the stand-in for a GPU."""
    if not Path("/usr/include/infiniband/mlx5dv.h").exists() or not shutil.which("cc"):
        pytest.skip("no headers of libibverbs, or no C compiler")
    return Emulated(build(tmp_path_factory.mktemp("mlx5")))
