"""What the machine has: GPU, driver, CUPTI, processors, MPS."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.mlx5.emulated import Cpus

_PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, version = ctypes.c_int(), ctypes.c_int()
assert not cuda.cuInit(0) and not cuda.cuDeviceGetCount(ctypes.byref(count)) and count.value
assert not cuda.cuDriverGetVersion(ctypes.byref(version))
print(f"{version.value // 1000}.{version.value % 1000 // 10}")
"""
_POLLING = 3  # threads of a rank: NIC, sweeper, copier
_CORES = 2 * _POLLING + 2
_MPS = "nvidia-cuda-mps-control"


@dataclass(frozen=True)
class Machine:
    """What results depend on.

    Attributes:
        gpu: Name and memory.
        driver: Its version.
        cuda: Version of the driver's API.
        cpu: Model, and number of processors.
    """

    gpu: str
    driver: str
    cuda: str
    cpu: str


def _output(*command: str, timeout_s: float = 30) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def waits() -> dict[str, bool]:
    """Instructions by which the sweeper may wait, and whether it does so on this processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next((line.split() for line in lines if line.startswith("flags")), []))
    umwait = "waitpkg" in flags  # of both, it is this one
    return {"umwait": umwait, "mwaitx": "mwaitx" in flags and not umwait}


def _cpu() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{models[0] if models else platform.machine()}, {os.cpu_count()} processors"


def stand_in() -> Machine:
    """The machine, of which no GPU is used."""
    return Machine("none: the stand-in for the CUDA driver", "", "", _cpu())


def look() -> Machine | None:
    """The machine and its first GPU; None: it has none. No context stays."""
    cuda = _output(sys.executable, "-c", _PROBE)
    if cuda is None:
        return None
    query = "--query-gpu=name,memory.total,driver_version"
    told = _output("nvidia-smi", query, "--format=csv,noheader") or "unknown, , unknown"
    name, memory, driver = (word.strip() for word in told.splitlines()[0].split(","))
    return Machine(f"{name}, {memory}", driver, cuda, _cpu())


def cupti() -> str | None:
    """Where CUPTI is: of the toolkit, or of NVIDIA's packages for Python."""
    bases = [Path("/usr/local"), *(Path(path) for path in sys.path if "site-packages" in path)]
    patterns = ("cuda*/extras/CUPTI/lib64/libcupti.so.1[23]", "nvidia/*/lib/libcupti.so.1[23]")
    found = (path for base in bases for pattern in patterns for path in base.glob(pattern))
    return next((str(path) for path in sorted(found, key=lambda path: path.name)[::-1]), None)


def _cores() -> list[list[int]]:
    """The processors that may be used, those of one core together."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        name = siblings.read_text() if siblings.exists() else str(cpu)
        cores.setdefault(name, []).append(cpu)
    return list(cores.values())


def cpus() -> tuple[Cpus, ...]:
    """Processors for two ranks: a core for each thread that polls, the other cores for the rest.

    None where there are too few cores, or no taskset.
    """
    cores = _cores()
    if len(cores) < _CORES or not shutil.which("taskset"):
        return ()
    # A virtual machine may not tell which processors share a core: then usually neighbours do.
    # So every other one polls, and its neighbour is left alone, where there are enough.
    apart = 2 if len(cores) >= 2 * _CORES else 1
    polling = cores[apart : apart * (2 * _POLLING + 1) : apart]
    rest = cores[:apart] + cores[apart * (2 * _POLLING + 1) :]
    found = []
    for rank in range(2):
        nic, sweeper, copier = (own[0] for own in polling[rank * _POLLING :][:_POLLING])
        own = rest[: len(rest) // 2] if rank == 0 else rest[len(rest) // 2 :]
        program = ",".join(str(cpu) for core in own for cpu in core)
        found.append(Cpus(program, str(nic), f"{sweeper},{copier}"))
    return tuple(found)


@contextmanager
def busy(cpus: tuple[Cpus, ...] | None) -> Iterator[dict[str, str]]:
    """Another program on the processor of the first rank's sweeper, which never rests.

    Args:
        cpus: Of the ranks; of none: the sweeper's is the last one. None: nobody is disturbed.

    Yields:
        Environment that pins the tracer's threads.
    """
    if cpus is None:
        yield {}
        return
    usable = sorted(os.sched_getaffinity(0))
    own = cpus[0].repeater if cpus else f"{usable[-1]},{usable[-2 % len(usable)]}"
    code = (
        f"import os; os.sched_setaffinity(0, {{{own.split(',')[0]}}}); print(flush=True)\n"
        "while True: pass"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        program.stdout.readline()
        yield {"SIGMATRACE_POLL_CPUS": own}
    finally:
        program.kill()
        program.communicate()


def _environment_set(wanted: dict[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)


def _daemon_started() -> bool:
    none = subprocess.DEVNULL  # a pipe would be kept open by the daemon
    try:
        command = [_MPS, "-d"]
        done = subprocess.run(
            command, stdin=none, stdout=none, stderr=none, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@contextmanager
def mps(folder: Path) -> Iterator[bool]:
    """NVIDIA's multi-process service, for programs started within; tells whether it runs."""
    own = {"CUDA_MPS_PIPE_DIRECTORY": folder / "pipe", "CUDA_MPS_LOG_DIRECTORY": folder / "log"}
    for path in own.values():
        path.mkdir(parents=True)
    before = dict(os.environ)
    os.environ.update({name: str(path) for name, path in own.items()})
    started = _daemon_started()
    try:
        if not started:
            _environment_set(before)
        yield started
    finally:
        if started:
            subprocess.run([_MPS], input="quit\n", text=True, timeout=60, check=False)
        _environment_set(before)
