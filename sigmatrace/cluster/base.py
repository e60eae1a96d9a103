"""What a place where tasks run has to offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sigmatrace.progress import Progress

Key = tuple[str | int, ...]
Graph = dict[Key, Any]


@dataclass(frozen=True)
class Computation:
    """One key of a graph, to be computed.

    Attributes:
        graph: Dask graph; its keys are tuples that begin with a string.
        key: What to return.
        counted: Keys whose results advance the progress.
        modules: Modules that workers must be able to import.
    """

    graph: Graph
    key: Key
    counted: Sequence[Key] = ()
    modules: Sequence[str] = ()


class Cluster(ABC):
    """Where tasks run: a context manager, which gives back on exit what it took for that.

    Nothing is started before the first ``compute``; what was started serves all that follow.
    """

    def __enter__(self) -> Cluster:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Give back whatever was started."""

    @abstractmethod
    def compute(self, wanted: Computation, progress: Progress) -> Any:
        """Compute one key of a graph.

        Args:
            wanted: The graph and the key.
            progress: Is stepped once for each counted key.

        Raises:
            ConfigError: The options do not fit, or workers lack a module.
            ClusterError: Workers or scheduler went away, or did not come.
        """
