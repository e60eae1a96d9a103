"""A Dask scheduler and workers, started by their own commands on the loopback interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]
UP_S = 60
LOOPBACK = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
NO_PACKAGE = "import sys; sys.modules['sigmatrace'] = None; from dask.__main__ import main; main()"


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a process that can import this checkout, its tests included."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **(more or {})}


def pipeline(
    *words: object, env: Mapping[str, str] | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run sigmatrace-pipeline in a process of its own."""
    with started(*words, env=env) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def started(*words: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start sigmatrace-pipeline in a process of its own."""
    command = [sys.executable, "-m", "sigmatrace", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(env), stdout=pipe, stderr=pipe, text=True)


def tls(folder: Path) -> dict[str, str]:
    """Make a certificate, and return the environment in which Dask takes it, and demands TLS."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-subj", "/CN=test", "-days", "2", "-keyout", str(key), "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    prefix = "DASK_DISTRIBUTED__COMM__"
    given = {f"{prefix}TLS__CA_FILE": str(certificate), f"{prefix}REQUIRE_ENCRYPTION": "True"}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        given[f"{prefix}TLS__{role}__KEY"] = str(key)
        given[f"{prefix}TLS__{role}__CERT"] = str(certificate)
    return given


class Dask:
    """A scheduler, a context manager, which ends it and its workers.

    Args:
        folder: For its files.
        env: Further environment of it and its workers, such as ``tls`` gives; then it speaks TLS.

    Attributes:
        scheduler: Its process.
        address: Of the scheduler.
    """

    scheduler: subprocess.Popen[bytes]
    address: str

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._env = env
        self._common = [*LOOPBACK, "--protocol", "tls" if env else "tcp"]
        self._file = folder / "scheduler.json"
        self._stack = ExitStack()
        self._started = 0

    def __enter__(self) -> Dask:
        with self._stack:
            command = [_dask(), "scheduler", "--port", "0", "--scheduler-file", str(self._file)]
            self.scheduler = self._start([*command, *self._common])
            self.address = json.loads(self._await_file())["address"]
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def workers(self, count: int, *options: str, command: Sequence[str] = ()) -> None:
        """Start workers of one thread and wait until the scheduler knows them; not with TLS."""
        from distributed import Client

        words = [*(command or (_dask(),)), "worker", "--nthreads", "1", *self._common]
        for _ in range(count):
            self._start([*words, "--scheduler-file", str(self._file), *options])
        if self._env:  # whose configuration this process does not have
            return
        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=UP_S)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        self._started += 1
        with (self._folder / f"dask-{self._started}.log").open("wb") as log:
            process = subprocess.Popen(command, env=environment(self._env), stdout=log, stderr=log)
        self._stack.callback(_end, process)
        return process

    def _await_file(self) -> str:
        deadline = time.monotonic() + UP_S
        while True:
            text = self._file.read_text() if self._file.exists() else ""
            if text.endswith("}"):
                return text
            assert self.scheduler.poll() is None, (self._folder / "dask-1.log").read_text()
            assert time.monotonic() < deadline, "dask scheduler does not come up"
            time.sleep(0.02)


def _dask() -> str:
    return str(Path(sys.executable).with_name("dask"))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
