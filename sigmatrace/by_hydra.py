"""A command line that Hydra takes: it composes the options, and what else a flag says it does."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from sigmatrace import argv, config, job, mistakes, multirun
from sigmatrace.compose import composed
from sigmatrace.errors import ClusterError, ConfigError
from sigmatrace.text import listed


def run(words: Sequence[str]) -> int:
    """Run a command line and return the exit code.

    Raises:
        SigmaTraceError: See ``sigmatrace.errors``.
    """
    command = argv.parse(words)
    if command.is_plain:  # Hydra's own entry composes the options twice
        job.only_work(composed(command))
        return 0
    jobs = _Jobs(command.multirun, command.debug)
    try:
        _run_by_hydra(command, jobs)
    except mistakes.OF_HYDRA as error:
        raise mistakes.explain(error, command.folders) from error
    except RuntimeError as error:
        if not type(error).__module__.startswith("submitit."):
            raise
        raise ClusterError(
            f"a job could not be submitted, or was lost: {str(error).strip().splitlines()[-1]}",
            "with hydra.sweep.dir=DIR, DIR keeps the logs of those that began",
        ) from error
    if jobs.errors:
        raise jobs.errors[0]
    return next((one.code for one in jobs.outcomes if one.code), 0)


def _run_by_hydra(command: argv.Command, jobs: _Jobs) -> None:
    """Let Hydra compose the options and call the job, or do what else a flag says."""
    config.register()
    entry = hydra.main(version_base="1.3", config_path=str(config.folder()), config_name="config")
    if not command.multirun:
        with _hydra_argv(command.words):
            entry(jobs)()
        return
    multirun.check(command)
    with tempfile.TemporaryDirectory(prefix="sigmatrace-multirun-") as folder:
        jobs.folder, extra = _sweep_folder(command, Path(folder))
        multirun.left(jobs.folder)  # by a multirun that was killed
        try:
            with _hydra_argv([*command.words, *extra]):
                entry(jobs)()
        finally:
            jobs.close()


class _Jobs:
    """What Hydra calls for each combination of options.

    Errors are kept, not raised: Hydra would print a line of its own, and stop a multirun's
    other jobs from being reported.

    Args:
        several: Whether this is a multirun.
        debug: Show tracebacks.

    Attributes:
        folder: Where jobs in a launcher's other processes leave their outcomes.
        errors: Of the only job.
        outcomes: Of the jobs of a multirun.
    """

    __name__ = __qualname__ = "sigmatrace"

    def __init__(self, several: bool, debug: bool) -> None:
        self.several = several
        self.debug = debug
        self.pid = os.getpid()
        self.folder = Path()
        self.errors: list[Exception] = []
        self.outcomes: list[multirun.Outcome] = []

    def __call__(self, options: DictConfig) -> None:
        if self.several:
            self._one_of_several(options)
            return
        try:
            job.work(config.check(options))
        except Exception as error:
            self.errors.append(error)

    def close(self) -> None:
        """Say what became of all jobs."""
        elsewhere = multirun.left(self.folder)
        for one in sorted(elsewhere, key=lambda one: one.number):
            if one.code:
                print(one.said, file=sys.stderr)
            print(f"{one.title}: {'failed' if one.code else one.said}")
            self.outcomes.append(one)
        if self.outcomes:
            failed = [f"job {one.number}" for one in self.outcomes if one.code]
            which = f": {listed(failed)}" if failed else ""
            done = len(self.outcomes) - len(failed)
            print(f"{done} done, {len(failed)} failed{which}", flush=True)

    def _one_of_several(self, options: DictConfig) -> None:
        known = HydraConfig.get()
        title = f"job {known.job.num}: {' '.join(known.overrides.task)}"
        print(title, flush=True)
        code = 0
        try:
            said = job.work(config.check(options))
        except Exception as error:
            if self.debug:
                traceback.print_exc()
            code, said = job.report(error), job.line(error)
        outcome = multirun.Outcome(known.job.num, title, said, code)
        if os.getpid() == self.pid:
            self.outcomes.append(outcome)
        else:
            outcome.leave(self.folder)


@contextlib.contextmanager
def _hydra_argv(words: Sequence[str]) -> Iterator[None]:
    """Let Hydra see these arguments, and let it raise its errors instead of printing them."""
    before, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["sigmatrace-pipeline", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full


def _sweep_folder(command: argv.Command, own: Path) -> tuple[Path, list[str]]:
    """Return where Hydra's multirun writes the files that it insists on, and the option for that.

    Args:
        command: May name a folder itself.
        own: What is used else; it is thrown away.
    """
    given = dict(word.partition("=")[::2] for word in command.overrides)
    if "hydra.sweep.dir" not in given:
        if given.get(multirun.LAUNCHER) == "submitit_slurm":
            raise ConfigError(
                f"{multirun.LAUNCHER}=submitit_slurm needs a folder that its jobs see",
                "add hydra.sweep.dir=DIR on a file system that all nodes share",
            )
        return own, [f"hydra.sweep.dir={argv.quote(str(own))}"]
    folder = given["hydra.sweep.dir"].strip("'\"")
    if multirun.LAUNCHER in given and "${" in folder:
        raise ConfigError("hydra.sweep.dir has to be a plain path", f"it is {folder}")
    return Path(folder).absolute(), []
