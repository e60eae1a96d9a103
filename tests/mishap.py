"""A stage that does harm at a defined point of a run: while partition 2 is under way."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import ClassVar

from sigmatrace.partition import Partition
from sigmatrace.schema import Columns
from sigmatrace.stages.base import Stage

AT = 2
STAGES = "stage=[clock,topology,one_sided,completion,wqe,doorbell,match,traffic,mishap]"


class Mishap(Stage):
    """Changes nothing in the result.

    Args:
        what: "die", "kill" a process, "cancel" the own Slurm job, or "tell" and wait.
        target: The process, or the named pipe that is opened to tell.
        once: A file; whoever makes it does it, and nobody else. "" is every time.
    """

    name: ClassVar[str] = "mishap"
    requires: ClassVar[Columns] = {"ops": {"t_ns": "i8"}}

    def __init__(self, what: str, target: str = "", once: str = "") -> None:
        self.what, self.target, self.once = what, target, once

    def apply(self, part: Partition, resolved: object) -> Partition:
        if part.number == AT and self._is_first():
            getattr(self, f"_{self.what}")()
        return part

    def _is_first(self) -> bool:
        try:
            return not self.once or not Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return False

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _kill(self) -> None:
        os.kill(int(self.target), signal.SIGKILL)

    def _cancel(self) -> None:
        subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=True)
        threading.Event().wait()

    def _tell(self) -> None:
        with Path(self.target).open("wb"):  # whoever reads it sees this process end
            threading.Event().wait()


def words(folder: Path, what: str, target: object = "", once: object = "") -> list[str]:
    """Return options that choose this stage; ``folder`` gets their configuration."""
    choice = folder / "conf" / "stage" / "mishap.yaml"
    choice.parent.mkdir(parents=True)
    choice.write_text(
        "# @package stage.mishap\n_target_: tests.mishap.Mishap\n"
        f"what: {what}\ntarget: '{target}'\nonce: '{once}'\n"
    )
    return [f"--config-dir={folder / 'conf'}", STAGES]
