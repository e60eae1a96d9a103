"""Makes the data set ``tests/data/two-hosts`` (its README says what it is for).

Usage: python -m tests.rigs.golden FOLDER
"""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rigs.programs import run_pair
from tests.rigs.rig import Rig
from tests.rigs.traced import tracing

ARCHIVE, WIRE = "two-hosts.tar.xz", "wire.pcap"
MESSAGES = 500
PROGRAM = ["ibv_rc_pingpong", "-g", "1", "-s", "64", "-n", str(MESSAGES)]
DELAY = ("delay", "5ms")  # at both senders: else the run is too short to see how clocks drift


def main() -> None:
    """Boots the rig, runs the program traced, packs what it left."""
    (target,) = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as work, Rig(Path(work) / "rig") as rig:
        run = rig.share / "run"
        run.mkdir()
        env = tracing(run, "simple", "verbs")
        shims = [Path(shim) for shim in env["LD_PRELOAD"].split(":")]
        for shim in shims:  # traces name the libraries that they come from
            shutil.copy(shim, rig.share)
        env["LD_PRELOAD"] = ":".join(f"/share/{shim.name}" for shim in shims)
        ran = run_pair(rig, Path(work), PROGRAM, env=env, within=lambda: _slowed(rig))
        files = {path.name: path.read_bytes() for path in run.glob("*.msgpack")}
        pack(target / ARCHIVE, {**files, WIRE: ran.capture.read_bytes()})


@contextmanager
def _slowed(rig: Rig) -> Iterator[None]:
    with rig.node(0).netem(*DELAY), rig.node(1).netem(*DELAY):
        yield


def pack(archive: Path, files: dict[str, bytes]) -> None:
    """Writes an archive that depends on names and contents of the files alone."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            tar.addfile(member, io.BytesIO(files[name]))


if __name__ == "__main__":
    main()
