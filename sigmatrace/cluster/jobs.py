"""Workers that are jobs of a batch system, submitted and cancelled by dask-jobqueue."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sigmatrace.cluster.remote import Remote, dask_distributed
from sigmatrace.errors import ClusterError, ConfigError
from sigmatrace.progress import Progress

LOST_AFTER = "5s"
"""How long a worker may be away before its job is replaced: its nanny may start it again."""
PASSED_ON = ("PYTHONPATH", "NUMBA_CACHE_DIR", "SIGMATRACE_LIB_DIR")
"""Variables that jobs get as they are here: some batch systems pass none."""


@dataclass(frozen=True)
class System:
    """A batch system.

    Attributes:
        cluster: Its class in dask-jobqueue.
        account: What that class calls the account; "" if there is none.
        silent: Directives for a job that keeps no log.
        more: Further arguments of that class.
    """

    cluster: str
    account: str = ""
    silent: tuple[str, ...] = ()
    more: Mapping[str, str] = field(default_factory=dict)


SYSTEMS: Mapping[str, System] = {
    "slurm": System("SLURMCluster", "account", ("-o /dev/null",)),
    "pbs": System("PBSCluster", "account", ("-j oe", "-o /dev/null")),
    "moab": System("MoabCluster", "account", ("-j oe", "-o /dev/null")),
    "lsf": System("LSFCluster", "project", ("-o /dev/null",)),
    "sge": System("SGECluster", "project", ("-o /dev/null",)),
    "oar": System(
        "OARCluster",
        "project",
        ("-O /dev/null", "-E /dev/null"),
        # What a site calls the memory of a core, directives have to say.
        {"memory_per_core_property_name": "not_applicable"},
    ),
    "htcondor": System("HTCondorCluster"),
}


class Jobs(Remote):
    """A scheduler in this process, and workers that are jobs; each job is one worker.

    Args:
        kind: Batch system.
        jobs: How many to submit; one that is lost is submitted again.
        timeout_s: How long to wait for a worker while there is none, queueing included.
        tls: Speak TLS, with the certificates that Dask's configuration names.
        interface: Network interface of scheduler and workers; None is all of this machine.
        options: As in ``config_batch.BatchConfig`` and its subclasses.
    """

    def __init__(
        self,
        kind: str,
        *,
        jobs: int,
        timeout_s: float,
        tls: bool,
        interface: str | None,
        **options: Any,
    ) -> None:
        super().__init__(timeout_s)
        if jobs < 1 or options["cores"] < 1:
            raise ConfigError("cluster.jobs and cluster.cores must be at least 1")
        self.kind = kind
        self.jobs = jobs
        self._tls = tls
        self._interface = interface
        self._job = job_arguments(kind, **options)
        self._type = _cluster_type(kind)
        self._cluster: Any = None
        self._failures: list[Exception] = []
        self._stack = ExitStack()

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            self._stack.close()

    def connect(self, progress: Progress) -> Any:
        """See ``Remote``."""
        lib = dask_distributed()
        import dask

        config = {"distributed.deploy.lost-worker-timeout": LOST_AFTER}
        self._stack.enter_context(dask.config.set(config))
        try:
            self._cluster = self.scheduler()
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"cluster={self.kind} cannot start: {_last_words(error)}",
                "check the options of cluster",
            ) from error
        self._stack.callback(self._cluster.close)
        self._cluster.scale(jobs=self.jobs)
        self._cluster.sync(_settled, self._cluster)
        self._refuse_failures()
        progress.say(f"{self.jobs} jobs submitted, waiting for the first to start")
        return lib.Client(self._cluster, set_as_default=False)

    def scheduler(self) -> Any:
        """Return dask-jobqueue's cluster object, with a running scheduler and no jobs yet."""
        dashboard = {"dashboard_address": "127.0.0.1:0"}
        where = {"interface": self._interface} if self._interface else {}
        security = {"security": dask_distributed().Security(require_encryption=True)}
        return self._type(
            job_cls=_telling(self._type.job_cls, self._failures),
            **self._job,
            **where,
            **(security if self._tls else {}),
            scheduler_options={**dashboard, **where},
            silence_logs="critical",
        )

    def look_after(self, workers: int) -> None:
        """Submit jobs again that are lost. When that fails, those that are left go on."""
        if not workers:
            self._refuse_failures()
        if len(self._cluster.workers) < self.jobs:
            self._cluster.scale(jobs=self.jobs)

    def _refuse_failures(self) -> None:
        for error in self._failures:
            if isinstance(error, FileNotFoundError):
                raise ConfigError(
                    f"cluster={self.kind}: there is no command {error.filename} here",
                    "run this where jobs can be submitted",
                ) from error
            raise ConfigError(
                f"cluster={self.kind} could not submit a job: {_last_words(error)}",
                "check the options of cluster",
            ) from error

    def nobody(self) -> ClusterError:
        """See ``Remote``."""
        return ClusterError(
            f"cluster={self.kind}: none of {self.jobs} jobs works "
            f"(waited {self.timeout_s:g} s, cluster.timeout_s)",
            "look into the queue; cluster.logs=DIR keeps what jobs say",
        )


def job_arguments(
    kind: str,
    *,
    cores: int,
    memory: str,
    directives: Sequence[str],
    prologue: Sequence[str],
    logs: str | None,
    account: str | None = None,
    **same: Any,
) -> dict[str, Any]:
    """Return the arguments of dask-jobqueue's class that say what a job is.

    What the options mean, ``config_batch.BatchConfig`` and its subclasses say; ``same`` are those
    that have the same name in dask-jobqueue.
    """
    system = SYSTEMS[kind]
    passed = [
        f"export {name}={shlex.quote(os.environ[name])}" for name in PASSED_ON if name in os.environ
    ]
    extra: Any = [*(() if logs else system.silent), *directives]
    if kind == "htcondor":  # its directives have keys
        extra = {key.strip(): value.strip() for key, _, value in (x.partition("=") for x in extra)}
    return {
        "cores": cores,
        "memory": memory,
        "processes": 1,
        "job_name": "sigmatrace",
        "job_extra_directives": extra,
        "job_script_prologue": [*passed, *prologue],
        "log_directory": str(Path(logs).resolve()) if logs else None,
        # Else a worker's dashboard listens on all interfaces.
        "worker_extra_args": ["--dashboard-address", "127.0.0.1:0"],
        **system.more,
        **({system.account: account} if account else {}),
        **{name: value for name, value in same.items() if value is not None},
    }


def _cluster_type(kind: str) -> Any:
    # Its import installs handlers after which an interrupt is a silent success.
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        import dask_jobqueue
    except ImportError as error:
        raise ConfigError(
            f"cluster={kind} needs dask-jobqueue, which is not installed",
            "pip install -e '.[cluster]' in a checkout of sigmatrace",
        ) from error
    finally:
        for one, handler in handlers.items():
            if signal.getsignal(one) is not handler:
                signal.signal(one, handler)
    return getattr(dask_jobqueue, SYSTEMS[kind].cluster)


def _telling(job_type: Any, failures: list[Exception]) -> Any:
    """Return a type of jobs that notes what went wrong when one was submitted.

    Dask submits in a task of its event loop, and nobody hears of it when that fails. Also, its
    cluster asserts on exit that jobs are closed, which dask-jobqueue's do not say of themselves.
    """
    from distributed.core import Status

    class Telling(job_type):
        async def start(self) -> None:
            try:
                await super().start()
            except (OSError, RuntimeError, ValueError) as error:
                failures.append(error)
                self.status = Status.running

        async def close(self) -> None:
            await super().close()
            self.status = Status.closed

    return Telling


async def _settled(cluster: Any) -> None:
    """Wait until jobs are submitted."""
    await cluster


def _last_words(error: Exception) -> str:
    """Return the last line of what a command said, or of the error."""
    return str(error).strip().splitlines()[-1]
