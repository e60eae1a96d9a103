"""Several runs by one command: where each of them writes, and what became of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sigmatrace.argv import Command
from sigmatrace.errors import ConfigError
from sigmatrace.layout import OUTPUT

LAUNCHER = "hydra/launcher"
OF_A_JOB = tuple(f"{{hydra:{x}}}" for x in ("job.num", "job.id", "job.override_dirname"))
"""What differs from job to job in the name of a folder."""
_LEFT = ".sigmatrace-job-{}.json"


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        number: Of the job.
        title: Its number and options.
        said: Folder of its output, or what went wrong.
        code: Exit code.
    """

    number: int
    title: str
    said: str
    code: int

    def leave(self, folder: Path) -> None:
        """Write it to a file, for the process that has launched the job."""
        (folder / _LEFT.format(self.number)).write_text(json.dumps(asdict(self)))


def left(folder: Path) -> list[Outcome]:
    """Return what jobs in other processes have left, and remove its files."""
    found = []
    for path in folder.glob(_LEFT.format("*")):
        found.append(Outcome(**json.loads(path.read_text())))
        path.unlink()
    return found


def check(command: Command) -> None:
    """Refuse what cannot come to a good end, before any job begins.

    Raises:
        ConfigError: Two jobs would write to one folder, or the launcher's command is not here.
    """
    places = set()
    for job in _jobs(command):
        place = _place(job)
        if place in places:
            raise ConfigError(
                f"two jobs of this multirun write to {place}",
                "name what differs in out=, e.g. 'out=results/${hydra:job.num}'",
            )
        if not any(name in place for name in OF_A_JOB):
            places.add(place)
    if f"{LAUNCHER}=submitit_slurm" in command.overrides and shutil.which("sbatch") is None:
        raise ConfigError(
            f"{LAUNCHER}=submitit_slurm: there is no command sbatch here",
            "run this where jobs can be submitted",
        )


def _jobs(command: Command) -> Sequence[Sequence[str]]:
    """Return the options of each job, if they can be known beforehand."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if any(word.startswith("hydra/sweeper=") or "glob(" in word for word in command.overrides):
        return []
    overrides = OverridesParser.create().parse_overrides(command.overrides)
    (jobs,) = BasicSweeper.split_arguments(overrides, None)
    return jobs


def _place(job: Sequence[str]) -> str:
    """Return where a job with these options writes, without quotes."""
    given = {key: value.strip("'") for key, _, value in (word.partition("=") for word in job)}
    if given.get("out", "null") != "null":
        return str(Path(given["out"]).absolute())
    return str(Path(given.get("run", "")).absolute() / OUTPUT)
