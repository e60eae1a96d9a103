"""Threads of this process, and processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sigmatrace.cluster import threaded
from sigmatrace.cluster.base import Cluster, Computation, Key
from sigmatrace.cluster.memory import keep_freed
from sigmatrace.errors import ClusterError, ConfigError
from sigmatrace.progress import Progress

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor


class Threads(Cluster):
    """Threads of this process.

    Args:
        workers: How many; None is as many as this process may use cores.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = _count(workers)
        keep_freed()

    def __exit__(self, *_: object) -> None:
        """See ``Cluster``; nothing outlives a computation."""

    def compute(self, wanted: Computation, progress: Progress) -> Any:
        """See ``Cluster``."""
        step = _stepping(wanted.counted, progress)
        return threaded.compute(wanted.graph, wanted.key, self.workers, step)


class Processes(Cluster):
    """Processes of this machine, started once.

    Args:
        workers: How many; None is as many as this process may use cores.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = _count(workers)
        self._pool: ProcessPoolExecutor | None = None

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def compute(self, wanted: Computation, progress: Progress) -> Any:
        """See ``Cluster``."""
        from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
        from multiprocessing import get_context

        import dask.multiprocessing
        from dask.callbacks import Callback

        callback: Any = Callback  # it has no types
        step = _stepping(wanted.counted, progress)
        if self._pool is None:
            context = get_context("spawn")
            self._pool = ProcessPoolExecutor(self.workers, context, _begin_worker)
        with callback(posttask=lambda key, *_: step(key)):
            try:
                return dask.multiprocessing.get(
                    wanted.graph, wanted.key, pool=self._pool, optimize_graph=False, chunksize=1
                )
            except dask.multiprocessing.RemoteException as error:
                raise error.exception from None
            except BrokenExecutor as error:
                raise ClusterError(
                    "a worker process died",
                    "out of memory? try fewer cluster.workers, or a smaller partition_mb",
                ) from error


def _count(workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise ConfigError("cluster.workers must be at least 1", f"it is {workers}")
    return workers or len(os.sched_getaffinity(0))


def _stepping(counted: Sequence[Key], progress: Progress) -> Callable[[Key], None]:
    """Return what each task that is done is told to: counted ones advance ``progress``."""
    wanted = set(counted)
    return lambda key: progress.step() if key in wanted else None


def _begin_worker() -> None:
    """Leave interrupts to the parent, and end with it: a killed one cannot end its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # the other threads are in the middle of work that nobody wants any more
