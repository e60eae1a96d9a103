"""A Dask scheduler with workers in other processes, which come and go."""

from __future__ import annotations

import asyncio
import importlib
import logging
import queue
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from sigmatrace.cluster.base import Cluster, Computation, Graph, Key
from sigmatrace.errors import ClusterError, ConfigError
from sigmatrace.progress import Progress
from sigmatrace.version import version_text

LOOK_EVERY_S = 1.0


class Remote(Cluster):
    """What is the same whoever started scheduler and workers.

    Args:
        timeout_s: How long nobody may be there who works.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._client: Any = None
        self._checked: set[str] = set()
        self._seen_s = self._looked_s = 0.0

    def __exit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close(timeout=self.timeout_s)

    @abstractmethod
    def connect(self, progress: Progress) -> Any:
        """Return a new client of the scheduler."""

    def look_after(self, workers: int) -> None:
        """Do what keeps workers coming; called once a second, more often while there is none."""

    def gone(self) -> ClusterError:
        """Return what to say when the scheduler does not answer any more."""
        return ClusterError("the Dask scheduler went away", "start it and run this again")

    @abstractmethod
    def nobody(self) -> ClusterError:
        """Return what to say when no worker was there for ``timeout_s``."""

    def compute(self, wanted: Computation, progress: Progress) -> Any:
        """See ``Cluster``."""
        if self._client is None:
            self._client = self.connect(progress)
        self._seen_s = time.monotonic()
        self._checked = set()
        while not self._workers(wanted.modules):
            time.sleep(LOOK_EVERY_S / 10)
        futures = self._submit(wanted.graph, [*wanted.counted, wanted.key])
        last = futures[-1]
        finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for future in futures:
            future.add_done_callback(finished.put)
        left = len(futures)
        # A result that nobody holds any more is dropped by the workers.
        del futures, future
        try:
            while left:
                done = self._next(finished, wanted.modules)
                if done is None:
                    continue
                self._check(done)
                left -= 1
                if done.key != last.key:
                    progress.step()
                del done
            return last.result()
        except BaseException:
            with suppress(Exception):
                self._client.cancel([last], force=True)
            raise

    def _submit(self, graph: Graph, keys: list[Key]) -> list[Any]:
        import dask

        # It says of 2000 partitions that data should not be in the graph; what it is, is needed.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            futures: list[Any] = self._client.get(graph, keys, sync=False)
        return futures

    def _next(self, finished: queue.SimpleQueue[Any], modules: Sequence[str]) -> Any:
        """Return a future that is done, or None after a while without one."""
        if time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._workers(modules)
        try:
            return finished.get(timeout=LOOK_EVERY_S)
        except queue.Empty:
            return None

    def _check(self, future: Any) -> None:
        from distributed.scheduler import KilledWorker

        if future.status == "error":
            error = future.exception()
            if isinstance(error, KilledWorker):
                raise ClusterError(
                    "several workers died over the same task",
                    "out of memory? try a smaller partition_mb, or more memory for each worker",
                ) from error
            future.result()
        # "lost" is a result whose worker has died since: Dask computes it again where it is needed.
        if future.status == "cancelled":
            raise self.gone()

    def _workers(self, modules: Sequence[str]) -> bool:
        """Return whether somebody works; new ones are checked first.

        Raises:
            ConfigError: A worker lacks a module, or is of another version.
            ClusterError: Nobody was there for too long, or the scheduler is gone.
        """
        if self._client.status not in ("running", "newly-created"):
            raise self.gone()
        try:
            there = set(self._client.nthreads())
            new = there - self._checked
            told = self._ask(new, modules) if new else {}
        except (OSError, asyncio.CancelledError) as error:
            raise self.gone() from error
        for worker, answer in told.items():
            _refuse(worker, answer)
        self._checked |= told.keys()
        self._looked_s = now = time.monotonic()
        if there:
            self._seen_s = now
        elif now - self._seen_s > self.timeout_s:
            raise self.nobody()
        self.look_after(len(there))
        return bool(there)

    def _ask(self, workers: Iterable[str], modules: Sequence[str]) -> dict[str, Any]:
        """Return what workers tell of themselves, without those that went away meanwhile."""
        told = self._client.run(_told, list(modules), workers=list(workers), on_error="return")
        return {one: answer for one, answer in told.items() if not isinstance(answer, OSError)}


class Distributed(Remote):
    """A scheduler that runs already.

    Args:
        address: Of the scheduler, such as ``tcp://HOST:PORT``.
        timeout_s: How long to wait for it, and for workers while there are none.
    """

    def __init__(self, address: str, timeout_s: float = 10.0) -> None:
        super().__init__(timeout_s)
        self.address = address

    def connect(self, progress: Progress) -> Any:
        """See ``Remote``."""
        lib = dask_distributed()
        try:
            # A Client whose scheduler does not answer cannot be closed within a minute.
            asyncio.run(_connect(lib, self.address, self.timeout_s))
        except OSError as error:
            raise ClusterError(
                f"no Dask scheduler answers at {self.address}",
                f"start it, or check cluster.address (waited {self.timeout_s:g} s, "
                "cluster.timeout_s)",
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"{self.address} is no address", "give cluster.address=tcp://HOST:PORT"
            ) from error
        except (RuntimeError, TypeError) as error:  # TLS is demanded, or lacks certificates
            raise ConfigError(
                f"cannot connect to {self.address}", f"{error}; see docs/cluster.md"
            ) from error
        return lib.Client(self.address, timeout=self.timeout_s, set_as_default=False)

    def gone(self) -> ClusterError:
        """See ``Remote``."""
        return ClusterError(
            f"the Dask scheduler at {self.address} went away", "start it and run this again"
        )

    def nobody(self) -> ClusterError:
        """See ``Remote``."""
        return ClusterError(
            f"the Dask scheduler at {self.address} has no workers",
            f"start some with `dask worker` (waited {self.timeout_s:g} s, cluster.timeout_s)",
        )


def dask_distributed() -> Any:
    """Import Dask's library, and keep its log out of the way of our own messages."""
    import distributed

    for name in ("distributed", "distributed.client", "distributed.scheduler", "distributed.core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


async def _connect(lib: Any, address: str, timeout_s: float) -> None:
    keys = lib.Security().get_connection_args("client")
    comm = await lib.comm.connect(address, timeout=timeout_s, **keys)
    await comm.close()


def _refuse(worker: str, answer: Any) -> None:
    """Refuse a worker that could not do the work, or would do it otherwise."""
    here = version_text()
    if isinstance(answer, Exception):
        answer = (here, f"{type(answer).__name__}: {answer}")
    there, lacking = answer
    if there != here:
        lacking = f"it has {there}, this is {here}"
    if lacking:
        raise ConfigError(
            f"Dask worker {worker} cannot run this: {lacking}",
            "workers need the same packages and PYTHONPATH",
        )


def _told(modules: Sequence[str]) -> tuple[str, str]:
    """Return a worker's version, and which of the modules it cannot import, with the reason."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            return version_text(), str(error)
    return version_text(), ""
