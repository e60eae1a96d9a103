"""Schemas of the configuration of batch systems: clusters whose workers are jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING as REQUIRED


@dataclass
class BatchConfig:
    """Jobs of a batch system; each is one Dask worker with a thread for each core.

    Attributes:
        kind: The batch system.
        jobs: How many to submit.
        cores: Cores of a job.
        memory: Memory of a job, such as 8GB.
        interface: Network interface of scheduler and workers, such as ib0.
        tls: Speak TLS, with the certificates that Dask's configuration names.
        directives: Further directives of the job script, without their prefix.
        prologue: Lines of the job script before the worker is started.
        logs: Folder for what jobs say; without it nothing is kept.
        timeout_s: How long to wait for a worker while there is none, queueing included.
    """

    kind: str = REQUIRED
    jobs: int = 1
    cores: int = 4
    memory: str = "8GB"
    interface: str | None = None
    tls: bool = False
    directives: list[str] = field(default_factory=list)
    prologue: list[str] = field(default_factory=list)
    logs: str | None = None
    timeout_s: float = 600.0


@dataclass
class QueueConfig(BatchConfig):
    """A batch system with queues: Slurm, PBS, Moab, LSF, SGE, OAR.

    Attributes:
        queue: Queue, or partition of Slurm.
        account: Who pays: account or project.
        walltime: Longest duration of a job, as the batch system writes it.
    """

    queue: str | None = None
    account: str | None = None
    walltime: str | None = None


@dataclass
class CondorConfig(BatchConfig):
    """HTCondor.

    Attributes:
        disk: Disk space of a job.
    """

    disk: str = "1GB"
