"""Runs a Dask graph on threads of this process, in the order in which it is written.

Dask's own scheduler takes partitions in an order of its own, and its import longer than many a
run (``docs/decisions/0018``). Graphs are in the form that Dask takes: tasks without cycles.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

Graph = Mapping[Any, tuple[Any, ...]]
Done = SimpleQueue[tuple[Any, Future[Any]]]


def compute(
    graph: Graph,
    key: Hashable,
    workers: int,
    finished: Callable[[Any], None],
) -> Any:
    """Compute one key of a graph.

    Tasks begin in the order of a walk that ends at ``key`` and finishes each branch before the
    next, so what is merged is merged soon; a result is dropped after its last use.

    Args:
        graph: Tasks by key: a function and its arguments; an argument, or a member of a list
            of arguments, that is a key stands for that task's result. Without cycles.
        key: What to return.
        workers: Number of threads.
        finished: Is called with each key that is done, by the caller's thread.

    Raises:
        Exception: What the first task that failed has raised; no task begins after it.
    """
    tasks = _Tasks(graph, key)
    done: Done = SimpleQueue()
    running = 0
    with ThreadPoolExecutor(workers) as pool:
        while key not in tasks.results:
            while tasks.ready and running < workers:
                _begin(tasks, pool, done)
                running += 1
            one, future = done.get()
            running -= 1
            tasks.end(one, future.result())
            del future  # else its result would live on
            finished(one)
    return tasks.results[key]


def _begin(tasks: _Tasks, pool: ThreadPoolExecutor, done: Done) -> None:
    """Start the next task; what becomes of it goes to ``done``."""
    key, function, arguments = tasks.begin()
    future = pool.submit(function, *arguments)
    future.add_done_callback(lambda ended: done.put((key, ended)))


class _Tasks:
    """What of a graph is done, and what can begin.

    Attributes:
        results: By key, while they are needed.
        ready: Heap of tasks that can begin, with their place in the walk.
    """

    def __init__(self, graph: Graph, key: Hashable) -> None:
        self._graph = graph
        self._needs, self._rank = _walk(graph, key)
        self._users: dict[Any, list[Any]] = {one: [] for one in self._needs}
        for one, wanted in self._needs.items():
            for other in wanted:
                self._users[other].append(one)
        self._open_needs = {one: len(wanted) for one, wanted in self._needs.items()}
        self._open_users = {one: len(users) for one, users in self._users.items()}
        self.results: dict[Any, Any] = {}
        self.ready = [
            (self._rank[one], one) for one, count in self._open_needs.items() if not count
        ]
        heapq.heapify(self.ready)

    def begin(self) -> tuple[Any, Callable[..., Any], list[Any]]:
        """Return the next task: its key, its function, and the arguments."""
        _, key = heapq.heappop(self.ready)
        function, *arguments = self._graph[key]
        return key, function, [self._filled(argument) for argument in arguments]

    def end(self, key: Any, result: Any) -> None:
        """Keep a result, drop those that were needed for it alone, and free what waited for it."""
        self.results[key] = result
        for other in self._needs[key]:
            self._open_users[other] -= 1
            if not self._open_users[other]:
                del self.results[other]
        for user in self._users[key]:
            self._open_needs[user] -= 1
            if not self._open_needs[user]:
                heapq.heappush(self.ready, (self._rank[user], user))

    def _filled(self, argument: Any) -> Any:
        """Return an argument with results in the place of keys."""
        if isinstance(argument, list):
            return [self._filled(one) for one in argument]
        known = isinstance(argument, tuple) and argument in self._graph
        return self.results[argument] if known else argument


def _walk(graph: Graph, key: Any) -> tuple[dict[Any, list[Any]], dict[Any, int]]:
    """Return what each task needs, of all that ``key`` needs, and its place in the walk."""
    needs: dict[Any, list[Any]] = {}
    rank: dict[Any, int] = {}
    stack = [key]
    while stack:
        one = stack[-1]
        if one in needs:
            rank.setdefault(stack.pop(), len(rank))
            continue
        wanted = list(dict.fromkeys(_keys(graph[one], graph)))
        needs[one] = wanted
        stack += [other for other in reversed(wanted) if other not in needs]
    return needs, rank


def _keys(task: tuple[Any, ...], graph: Graph) -> Iterator[Any]:
    for argument in task[1:]:
        for one in argument if isinstance(argument, list) else (argument,):
            if isinstance(one, tuple) and one in graph:
                yield one
