"""Runs a Dask graph on threads, processes, a Dask scheduler, or jobs of a batch system."""

from __future__ import annotations

from typing import Any

from sigmatrace.cluster.base import Cluster, Computation, Graph, Key
from sigmatrace.cluster.local import Processes, Threads
from sigmatrace.cluster.shared import Shared

__all__ = ["Cluster", "Computation", "Graph", "Key", "Processes", "Shared", "Threads", "make"]


def make(kind: str, **options: Any) -> Cluster:
    """Return the cluster that a configuration chooses; nothing is started yet.

    Args:
        kind: "threads", "processes", "distributed", or a batch system.
        options: The other keys of its schema in ``config.py``.

    Raises:
        ConfigError: A value is impossible, or a package is missing.
    """
    if kind == "threads":
        return Threads(**options)
    if kind == "processes":
        return Processes(**options)
    if kind == "distributed":
        from sigmatrace.cluster.remote import Distributed

        return Distributed(**options)
    from sigmatrace.cluster.jobs import Jobs

    return Jobs(kind, **options)
