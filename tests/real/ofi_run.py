"""Runs real libfabric programs with and without the capture, and reads what was recorded."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from plain_reader import Rank, read_all

from tests.listening import free_port, wait_listening

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "sigmatrace" / "capture" / "native"
HOOK = "libofi_hook_sigmatrace-fi.so"
PRELOAD = "libsigmatrace_ofi.so"


@functools.cache
def lib_dir() -> Path:
    """Folder of the capture libraries: the one named, the installed one, or a fresh build."""
    installed = Path(str(files("sigmatrace.capture") / "lib"))
    for folder in (os.environ.get("SIGMATRACE_LIB_DIR"), installed):
        if folder and (Path(folder) / "prov" / HOOK).exists():
            return Path(folder)
    build = Path(tempfile.mkdtemp(prefix="sigmatrace-ofi-"))
    for command in (
        ["cmake", "-S", NATIVE, "-B", build, "-G", "Ninja"],
        ["ninja", "-C", build, "sigmatrace_ofi", "sigmatrace_ofi_hook"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return build


def bundled_libfabric() -> Path:
    """Folder of the newer libfabric that the MPICH wheel, one of the test packages, brings."""
    (found,) = Path(sys.prefix).glob("lib/mpich/libfabric.so.1")
    return found.parent


@functools.cache
def compiled(name: str, shared: bool = False) -> Path:
    """A C program of this folder, compiled; as a plugin when `shared`."""
    target = Path(tempfile.mkdtemp(prefix="sigmatrace-ofi-")) / (name + ".so" * shared)
    how = ["-shared", "-fPIC"] if shared else []
    warnings = ["-Wall", "-Wextra", "-Werror"]
    source = HERE / f"{name}.c"
    command = [shutil.which("cc"), "-O1", "-g", *warnings, *how, source, "-o", target]
    subprocess.run([*command, "-lfabric", "-ldl"], check=True)
    return target


def environment(entry: str, out: Path, mode: str, layers: str = "ofi") -> dict[str, str]:
    """The environment that records into `out`; entry: hook, preload, both or none."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("SIGMATRACE_")}
    if entry == "none":
        return env
    env |= {"SIGMATRACE_OUT": str(out), "SIGMATRACE_MODE": mode, "SIGMATRACE_LAYERS": layers}
    if entry in ("hook", "both"):
        env |= {"FI_PROVIDER_PATH": str(lib_dir() / "prov"), "FI_HOOK": "sigmatrace"}
    if entry in ("preload", "both"):
        env["LD_PRELOAD"] = str(lib_dir() / PRELOAD)
    return env


@dataclass
class Pair:
    """What two processes printed and left: the first sends, the second receives."""

    first: list[list[str]]
    second: list[list[str]]
    ranks: list[Rank]

    def sender(self) -> Rank:
        """The rank file with outgoing one-sided operations of the application."""
        return next(rank for rank in self.ranks if rank.header["pid"] == self.pid)

    def receiver(self) -> Rank:
        """The other rank file."""
        return next(rank for rank in self.ranks if rank.header["pid"] != self.pid)

    pid: int = 0


def run_pair(
    tmp: Path, env: dict[str, str], provider: str, queue: str, command: list[str] | None = None
) -> Pair:
    """Runs ofi_pair (or `command` with its arguments) to its end, which must be a good one."""
    second = tmp / "second.txt"
    argv = [*(command or [str(compiled("ofi_pair"))]), provider, queue]
    process = subprocess.Popen(
        argv,
        env=env | {"OFI_PAIR_SECOND": str(second)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and not errors, errors
    out = Path(env.get("SIGMATRACE_OUT", tmp / "none"))
    lines = [[line.split() for line in text.splitlines()] for text in (output, second.read_text())]
    return Pair(lines[0], lines[1], read_all(out) if out.exists() else [], process.pid)


def run_pingpong(
    env: dict[str, str], provider: str, ep_type: str, count: int, size: int, *more: str
) -> list[tuple[int, str]]:
    """Runs fi_pingpong; exit code and output of the server and of the client."""
    common = ["fi_pingpong", "-p", provider, "-e", ep_type, "-I", str(count), "-S", str(size)]
    port = free_port()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    commands = ([*common, *more, "-B", str(port)], [*common, *more, "-P", str(port), "127.0.0.1"])
    with subprocess.Popen(commands[0], env=env, **pipes) as server:
        try:
            wait_listening(port, server)
            with subprocess.Popen(commands[1], env=env, **pipes) as client:
                outputs = [process.communicate(timeout=60)[0] for process in (server, client)]
        finally:
            server.kill()
    return [(server.returncode, outputs[0]), (client.returncode, outputs[1])]
