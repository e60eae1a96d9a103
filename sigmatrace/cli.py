"""From a command line to an exit code: Hydra in between, one clear line for each user error."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from sigmatrace import argv, config, mistakes
from sigmatrace.compose import options
from sigmatrace.errors import ConfigError, SigmaTraceError

OWN_BUG, INTERRUPTED = 1, 130
REPORTED = "reported"
"""Note on an error whose line is printed; it survives the way between processes."""


def main(words: Sequence[str]) -> int:
    """Run the command line ``words`` and return the exit code."""
    debug = "--debug" in words
    try:
        _run(argv.parse(words))
        print(end="", flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OWN_BUG
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _report(error)
    return 0


def _run(command: argv.Command) -> None:
    job = _Job(command.multirun)
    try:
        if command.is_plain:  # what Hydra's own entry adds to this takes 0.1 s
            job(options(command))
        else:
            _run_by_hydra(command, job)
    except (HydraException, OmegaConfBaseException, MarkedYAMLError) as error:
        raise mistakes.explain(error, command.folders) from error
    if job.errors:
        raise job.errors[0]


def _run_by_hydra(command: argv.Command, job: _Job) -> None:
    """Let Hydra compose the options and call the job, or do what else a flag says."""
    config.register()
    entry = hydra.main(version_base="1.3", config_path=str(config.folder()), config_name="config")
    with _harmless_sweep(command) as extra, _hydra_argv([*command.words, *extra]):
        entry(job)()


class _Job:
    """What Hydra calls for each combination of options.

    Errors are kept, not raised: Hydra would print a line of its own, and stop a multirun's
    other jobs from being reported. In a launcher's other processes they are raised.
    """

    __name__ = __qualname__ = "sigmatrace"

    def __init__(self, several: bool) -> None:
        self.several = several
        self.pid = os.getpid()
        self.stderr = _stderr()
        self.errors: list[Exception] = []
        self.outs: set[Path] = set()

    def __call__(self, composed: DictConfig) -> None:
        try:
            from sigmatrace import api

            settings = config.check(composed)
            if not gc.isenabled():  # as __main__ left it: the first job of this process
                gc.freeze()  # what was imported stays, and need not be searched for garbage
                gc.enable()
            if settings.plan:
                print(api.plan(settings).text())
            else:
                self._claim(settings.out)
                print(api.execute(settings, progress=sys.stderr).text())
        except Exception as error:
            if self.several:
                _report(error)
                if _stderr() == self.stderr:  # else it went into a launcher's log
                    error.add_note(REPORTED)
            if os.getpid() != self.pid:
                raise
            self.errors.append(error)

    def _claim(self, out: Path) -> None:
        """Refuse an output folder that an earlier job of this multirun has written."""
        if out in self.outs:
            raise ConfigError(
                f"two jobs of this multirun write to {out}",
                "name what differs in out=, e.g. 'out=results/${hydra:job.num}'",
            )
        self.outs.add(out)


def _stderr() -> tuple[int, int]:
    """Return what file this process writes its errors to."""
    status = os.fstat(2)
    return status.st_dev, status.st_ino


def _report(error: Exception) -> int:
    """Print an error in one line, unless that is done, and return its exit code."""
    known = isinstance(error, SigmaTraceError)
    if REPORTED not in getattr(error, "__notes__", ()):
        text = str(error) if known else f"{type(error).__name__}: {error}"
        line = " ".join(text.split("\n"))
        hint = "" if known else " (a bug of sigmatrace; --debug shows where)"
        print(f"sigmatrace-pipeline: error: {line}{hint}", file=sys.stderr)
    return error.exit_code if isinstance(error, SigmaTraceError) else OWN_BUG


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


@contextlib.contextmanager
def _harmless_sweep(command: argv.Command) -> Iterator[list[str]]:
    """Give Hydra's multirun a throw-away folder for the files that it insists on writing."""
    if not command.multirun or any(w.startswith("hydra.sweep.dir=") for w in command.overrides):
        yield []
        return
    if "hydra/launcher=submitit_slurm" in command.overrides:
        raise ConfigError(
            "hydra/launcher=submitit_slurm needs a folder that its jobs see",
            "add hydra.sweep.dir=DIR on a file system that all nodes share",
        )
    folder = tempfile.mkdtemp(prefix="sigmatrace-multirun-")
    try:
        yield [f"hydra.sweep.dir={argv.quote(folder)}"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
