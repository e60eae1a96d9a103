"""One build a session of the emulated NIC."""

from __future__ import annotations

from pathlib import Path

import pytest
from native_run import shim_in

from tests.rigs.mlx5.build import build
from tests.rigs.mlx5.emulated import Emulated


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    """The emulated NIC with the stand-in for a GPU."""
    return Emulated(build(tmp_path_factory.mktemp("mlx5")))


@pytest.fixture(scope="session")
def shim(native_lib: Path) -> Path:
    """The library that is preloaded."""
    return shim_in(native_lib, "gpu")
