"""CPU time by step, inside a run of the pipeline in this process."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

METHODS = ("survey", "apply", "summarize", "combine", "combine_all", "resolve", "write", "finish")
"""Of stages and exporters."""
_BASES = ("sigmatrace.stages.base", "sigmatrace.export.base")


class Steps:
    """CPU time by step, of the threads that take it.

    What a step calls that is a step itself is not the outer one's.

    Attributes:
        ns: By name.
    """

    def __init__(self) -> None:
        self.ns: Counter[str] = Counter()
        self._here = threading.local()
        self._lock = threading.Lock()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Take the time of what is done inside."""
        outer = getattr(self._here, "inner", 0)
        self._here.inner = 0
        start = time.thread_time_ns()
        try:
            yield
        finally:
            spent = time.thread_time_ns() - start
            with self._lock:
                self.ns[name] += spent - self._here.inner
            self._here.inner = outer + spent

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Take the time of a function where it is looked up."""
        function: Callable[..., Any] = getattr(owner, attribute)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.step(name):
                return function(*args, **kwargs)

        setattr(owner, attribute, timed)

    def watch_index(self) -> None:
        """Take the times of all that comes before the events."""
        from sigmatrace import pipeline

        self.watch(pipeline, "index_file", "index of files")
        self.watch(pipeline, "merge", "index, merged")
        self.watch(pipeline, "plan", "partitions")
        self.watch(pipeline, "account", "account")

    def watch_chosen(self, settings: Any) -> None:
        """Take the times of the stages and exporters that settings choose."""
        from sigmatrace import api

        chosen = api.plan(settings)
        kinds: set[Any] = {type(one) for one in (*chosen.stages, *chosen.exporters)}
        for kind in kinds:
            for method in METHODS:
                # Of its own, or of a kind of it: a stage is asked which it has.
                if getattr(getattr(kind, method, None), "__module__", _BASES[0]) not in _BASES:
                    self.watch(kind, method, f"{kind.name}: {method}")
