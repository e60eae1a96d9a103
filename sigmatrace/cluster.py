"""Runs a Dask graph on threads, on processes, or on a scheduler that already runs."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sigmatrace import threads
from sigmatrace.errors import ConfigError, SigmaTraceError
from sigmatrace.progress import Progress

Key = tuple[str | int, ...]
Graph = dict[Key, Any]
PICKLE = ".work-{}.pickle"


@dataclass(frozen=True)
class Cluster:
    """Where tasks run.

    Attributes:
        kind: "threads", "processes" or "distributed".
        workers: Threads or processes; None is as many as this process may use cores.
        address: Of the scheduler, for "distributed".
        timeout_s: How long to wait for the scheduler.
    """

    kind: str = "threads"
    workers: int | None = None
    address: str = ""
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.kind not in ("threads", "processes", "distributed"):
            raise ConfigError(f"unknown cluster {self.kind!r}", "threads, processes, distributed")
        if self.workers is not None and self.workers < 1:
            raise ConfigError("cluster.workers must be at least 1", f"it is {self.workers}")

    @property
    def window(self) -> int:
        """How far partitions may run ahead: a little where they share memory, else 0: any way."""
        return 2 * self._local_workers if self.kind == "threads" else 0

    @property
    def _local_workers(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))

    def compute(
        self,
        graph: Graph,
        key: Key,
        counted: Sequence[Key],
        progress: Progress,
        modules: Sequence[str] = (),
    ) -> Any:
        """Compute one key of a graph.

        Args:
            graph: Dask graph; its keys are tuples that begin with a string.
            key: What to return.
            counted: Keys whose results advance ``progress``.
            progress: Is stepped once for each of them.
            modules: Modules that workers must be able to import.

        Raises:
            ConfigError: The scheduler does not answer, or its workers lack a module.
        """
        if self.kind == "distributed":
            return self._distributed(graph, key, counted, progress, modules)
        wanted = set(counted)
        workers = self._local_workers

        def finished(key: Key) -> None:
            if key in wanted:
                progress.step()

        if self.kind == "threads":
            return threads.compute(graph, key, workers, finished)
        return _processes(graph, key, workers, finished)

    def _distributed(
        self,
        graph: Graph,
        key: Key,
        counted: Sequence[Key],
        progress: Progress,
        modules: Sequence[str],
    ) -> Any:
        import asyncio

        import distributed

        lib: Any = distributed  # it has no types

        try:
            # A Client whose scheduler does not answer cannot be closed within a minute.
            asyncio.run(_connect(lib, self.address, self.timeout_s))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no Dask scheduler answers at {self.address}", "check cluster.address"
            ) from error
        with lib.Client(self.address, timeout=self.timeout_s, set_as_default=False) as client:
            _check_workers(client, modules)
            *parts, last = client.get(graph, [*counted, key], sync=False)
            try:
                for future in lib.as_completed(parts, loop=client.loop):
                    if future.status == "error":
                        break
                    progress.step()
                return last.result()
            except BaseException:
                client.cancel([*parts, last])
                raise


def _processes(graph: Graph, key: Key, workers: int, finished: Callable[[Key], None]) -> Any:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    import dask.multiprocessing
    from dask.callbacks import Callback

    callback: Any = Callback  # it has no types
    step = callback(posttask=lambda key, *_: finished(key))
    context = get_context("spawn")
    with step, ProcessPoolExecutor(workers, context, _leave_interrupts_to_the_parent) as pool:
        try:
            return dask.multiprocessing.get(
                graph, key, pool=pool, optimize_graph=False, chunksize=1
            )
        except dask.multiprocessing.RemoteException as error:
            raise error.exception from None


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def _connect(lib: Any, address: str, timeout_s: float) -> None:
    comm = await lib.comm.connect(address, timeout=timeout_s)
    await comm.close()


def _check_workers(client: Any, modules: Sequence[str]) -> None:
    answers = client.run(_lacking, list(modules), on_error="return")
    if not answers:
        raise ConfigError("the Dask scheduler has no workers", "start some with `dask worker`")
    for worker, lacking in answers.items():
        if lacking:
            raise ConfigError(
                f"Dask worker {worker} cannot run this: {lacking}",
                "workers need the same packages and PYTHONPATH",
            )


def _lacking(modules: Sequence[str]) -> str:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            return str(error)
    return ""


class Shared:
    """A value that every task reads: passed by reference to threads, once to each process.

    It is pickled as the name of a file, which a process reads once; so a graph of thousands
    of tasks does not carry thousands of copies.

    Args:
        value: What is shared.
        folder: Where its file goes when one is needed; all workers must see this folder.
    """

    def __init__(self, value: Any, folder: Path) -> None:
        self.value = value
        self._path = folder / PICKLE.format(uuid.uuid4().hex)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._path.exists():
            import cloudpickle

            self._path.write_bytes(cloudpickle.dumps(self.value))
        return _shared, (str(self._path),)


@functools.lru_cache(maxsize=2)
def _shared(path: str) -> Shared:
    import pickle

    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise SigmaTraceError(
            f"a worker does not see {path}", "put out= on a file system that all workers share"
        ) from error
    loaded = Shared(pickle.loads(data), Path(path).parent)
    loaded._path = Path(path)
    return loaded
