"""What a place where tasks run has to offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sigmatrace.progress import Progress

Key = tuple[str | int, ...]
Graph = dict[Key, Any]


class Cluster:
    """Where tasks run: a context manager, which gives back on exit what it took for that.

    Nothing is started before the first ``compute``; what was started serves all that follow.
    """

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        """Give back whatever was started."""

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
            ConfigError: The options do not fit, or workers lack a module.
            ClusterError: Workers or scheduler went away, or did not come.
        """
        raise NotImplementedError
