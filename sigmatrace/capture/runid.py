"""Which run a process belongs to: one id that all ranks of a job agree on."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

# Variables that launchers set in every rank, and that differ from one launch to the next.
_JOB_VARIABLES = (
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("FLUX_JOB_ID",),
    ("PALS_APID",),
    ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
)
RANK_VARIABLES = (
    ("RANK", "TORCHELASTIC_RUN_ID"),
    ("OMPI_COMM_WORLD_RANK", None),
    ("PMIX_RANK", None),
    ("PMI_RANK", None),
    ("MV2_COMM_WORLD_RANK", None),
    ("PALS_RANKID", None),
    ("FLUX_TASK_RANK", None),
    ("RANK", "WORLD_SIZE"),
    # A batch script sees SLURM_PROCID too; only a step's ranks see SLURM_STEP_ID.
    ("SLURM_PROCID", "SLURM_STEP_ID"),
)
"""Variable with the rank, and another that must be there too; as in ``native/core/config.c``."""
_BY_HAND = ("RANK", "WORLD_SIZE")


def job_rank(environment: Mapping[str, str]) -> str | None:
    """Return this process's rank in the job that mpirun, srun or the like started.

    None when no launcher started it. ``RANK`` and ``WORLD_SIZE`` alone, set by hand or by who
    starts containers, tell a rank, but nothing that names the job: they do not count here.
    """
    for name, only_with in RANK_VARIABLES:
        there = name in environment and (only_with is None or only_with in environment)
        if there and (name, only_with) != _BY_HAND:
            return environment[name]
    return None


def under_launcher(environment: Mapping[str, str]) -> bool:
    """Tell whether this process is one rank of a job."""
    return job_rank(environment) is not None


def run_id(environment: Mapping[str, str]) -> str:
    """Return the id of the run that this process is part of, 16 hex digits.

    ``SIGMATRACE_RUN_ID`` wins. Under a launcher the id is a digest of what names the job, so
    that ranks agree without talking; otherwise it is random.
    """
    given = environment.get("SIGMATRACE_RUN_ID", "")
    if given:
        return given
    if not under_launcher(environment):
        return secrets.token_hex(8)
    return hashlib.sha256(_job(environment).encode()).hexdigest()[:16]


def _job(environment: Mapping[str, str]) -> str:
    for names in _JOB_VARIABLES:
        if all(environment.get(name) for name in names):
            return ":".join([names[0], *(environment[name] for name in names)])
    return _hydra_job()


def _hydra_job() -> str:
    """Name the job by the process that started this rank.

    Hydra (MPICH, Intel MPI) puts no job id into the environment, but every node's proxy has
    the address of the one mpiexec in its command line.
    """
    parent = ""
    for pid, start, arguments in _ancestors():
        parent = parent or f"parent:{pid}:{start}"
        options = dict(itertools.pairwise(arguments))
        if "--control-port" in options:  # MPICH: HOST:PORT
            return "hydra:" + options["--control-port"]
        if "--upstream-host" in options:  # Intel MPI
            return f"hydra:{options['--upstream-host']}:{options.get('--upstream-port')}"
    return parent


def _ancestors() -> Iterator[tuple[int, str, list[str]]]:
    """Yield pid, start time and command line of this process's ancestors, nearest first."""
    pid = _stat("self")[1]
    while pid > 1:
        start, above = _stat(str(pid))
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return
        yield pid, start, text.split("\0")
        pid = above


def _stat(pid: str) -> tuple[str, int]:
    """Return start time and parent of a process; ("", 0) when it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", 0
    fields = text.rpartition(")")[2].split()  # the name before may hold spaces and brackets
    return fields[19], int(fields[1])
