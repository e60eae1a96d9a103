"""A real Slurm of one node on the loopback interface; needs no systemd and nothing in ``/etc``.

All of it lies in one folder: a munge key and socket of its own, ``slurm.conf``, state, logs.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.rigs.errors import RigError, RigTimeoutError, RigUnavailableError

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
UP_S, DOWN_S = 30, 10
CPUS, MEMORY_MB = 2, 4096
NODE = "n1"
SETTINGS = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
KillWait=2
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={daemon} CPUs={cpus} RealMemory={memory}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A context manager: starts munged, slurmctld and slurmd, and ends them with all jobs.

    Args:
        folder: Where everything lies. Others must be able to enter it and all its parents:
            munged insists.

    Attributes:
        environment: What its commands need in their environment.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.environment: Mapping[str, str] = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": SEARCHED,
        }

    def __enter__(self) -> Slurm:
        """Starts.

        Raises:
            RigUnavailableError: A tool is not installed.
            RigError: A daemon does not come up.
        """
        missing = [tool for tool in TOOLS if not shutil.which(tool, path=SEARCHED)]
        if missing:
            raise RigUnavailableError(
                f"not installed: {', '.join(missing)} (scripts/setup.sh --dev installs them)"
            )
        with self._stack:
            self._write_settings()
            self._start_munge()
            self._start("slurmctld", "slurmctld", "-D")
            self._start("slurmd", "slurmd", "-D", "-N", NODE)
            self._stack.callback(self._cancel_jobs)
            self._await("an idle node", lambda: "idle" in self.ask("sinfo", "-h", "-o", "%t"))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, *command: str) -> str:
        """Return what a command of Slurm says on stdout; nothing if it fails."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True,
            timeout=UP_S, check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else ""

    def jobs(self) -> list[str]:
        """Return names and states of the jobs in the queue: those that wait, run, or end."""
        return self.ask("squeue", "-h", "-o", "%j %T").splitlines()

    def await_no_jobs(self) -> None:
        """Wait until the queue is empty: a cancelled job takes a moment to end.

        Raises:
            RigTimeoutError: Jobs are left.
        """
        self._await("an empty queue", lambda: not self.jobs())

    def _write_settings(self) -> None:
        for name in ("munge", "state", "spool", "key"):
            (self._folder / name).mkdir()
        (self._folder / "munge").chmod(0o711)
        (self._folder / "key").chmod(0o700)
        key = self._folder / "key" / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True)
        with socket.socket() as one, socket.socket() as other:
            ports = []
            for end in (one, other):
                end.bind(("127.0.0.1", 0))
                ports.append(end.getsockname()[1])
        text = SETTINGS.format(
            folder=self._folder, user=user.stdout.strip(), host=socket.gethostname().split(".")[0],
            node=NODE, controller=ports[0], daemon=ports[1], cpus=CPUS, memory=MEMORY_MB,
        )  # fmt: skip
        (self._folder / "slurm.conf").write_text(text)

    def _start_munge(self) -> None:
        at = self._folder / "munge"
        self._start(
            "munged", "munged", "--foreground", f"--key-file={self._folder}/key/munge.key",
            f"--socket={at}/socket", f"--pid-file={at}/pid", f"--log-file={self._folder}/munge.log",
            f"--seed-file={self._folder}/key/seed", "--num-threads=2",
        )  # fmt: skip
        self._await("munged", (at / "socket").exists)

    def _start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.out").open("wb") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._stack.callback(_end, process)

    def _cancel_jobs(self) -> None:
        """End what still runs: jobs outlive the daemon that started them."""
        self.ask("scancel", "--state=PENDING", "--partition=debug")
        self.ask("scancel", "--partition=debug")
        self.await_no_jobs()

    def _await(self, what: str, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + UP_S
        while not is_there():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text() for path in self._folder.glob("*.out"))
                raise RigTimeoutError(f"Slurm: waited {UP_S} s for {what}\n{logs}")
            time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(DOWN_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.wait()
        raise RigError(f"{process.args} had to be killed") from error
