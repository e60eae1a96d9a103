"""One Slurm for all tests that ask for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.slurm.server import Slurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A Slurm with an idle node; set-up installs what it takes."""
    # Not pytest's folder, which others cannot enter: munged refuses that.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with Slurm(folder) as started:
            yield started
