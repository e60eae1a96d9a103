from __future__ import annotations

import threading
import weakref

import pytest

from sigmatrace.cluster import threaded


def add(first, *more):
    return first + sum(sum(x) if isinstance(x, list) else x for x in more)


def ignore(_):
    """What is done is of no interest."""


def test_results_take_the_place_of_keys_also_in_lists():
    graph = {
        ("a", 0): (add, 1),
        ("a", 1): (add, ("a", 0), 10),
        ("last",): (add, ("a", 1), [("a", 0), ("a", 1), 100]),
    }
    done = []
    assert threaded.compute(graph, ("last",), 2, done.append) == 11 + 1 + 11 + 100
    assert done == [("a", 0), ("a", 1), ("last",)]


def test_what_nobody_needs_is_not_done():
    graph = {("a", 0): (add, 1), ("b", 0): (None,)}
    assert threaded.compute(graph, ("a", 0), 1, ignore) == 1


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_tree_of_sums(workers):
    graph = {("leaf", k): (add, k) for k in range(100)}
    level, keys = 0, list(graph)
    while len(keys) > 1:
        groups = [keys[at : at + 3] for at in range(0, len(keys), 3)]
        keys = [(f"level {level}", k) for k in range(len(groups))]
        graph.update({key: (add, 0, group) for key, group in zip(keys, groups, strict=True)})
        level += 1
    done = []
    assert threaded.compute(graph, keys[0], workers, done.append) == 4950
    assert sorted(done) == sorted(graph)


def test_branches_are_merged_before_the_next_begins():
    graph = {
        **{("leaf", k): (add, k) for k in range(4)},
        ("pair", 0): (add, 0, [("leaf", 0), ("leaf", 1)]),
        ("pair", 1): (add, 0, [("leaf", 2), ("leaf", 3)]),
        ("last",): (add, 0, [("pair", 0), ("pair", 1)]),
    }
    done = []
    threaded.compute(graph, ("last",), 1, done.append)
    leaf, pair = "leaf", "pair"
    assert done == [(leaf, 0), (leaf, 1), (pair, 0), (leaf, 2), (leaf, 3), (pair, 1), ("last",)]


def test_at_most_so_many_at_once_and_really_that_many():
    both = threading.Barrier(2, timeout=60)
    graph = {("wait", k): (both.wait,) for k in range(4)}
    graph[("last",)] = (add, 0, list(graph))
    assert threaded.compute(graph, ("last",), 2, ignore) == 2 * (0 + 1)


class Thing:
    """Something that can be seen to be gone."""


def test_a_result_goes_after_its_last_use():
    seen = []

    def look(thing):
        seen.append(weakref.ref(thing))

    def is_gone(_):
        return seen[0]() is None

    graph = {("thing",): (Thing,), ("look",): (look, ("thing",)), ("last",): (is_gone, ("look",))}
    assert threaded.compute(graph, ("last",), 1, ignore)


def test_the_first_error_is_raised_and_nothing_begins_after_it():
    begun = []

    def fail():
        raise ValueError("no")

    graph = {("a", 0): (fail,), ("a", 1): (begun.append, 1)}
    graph[("last",)] = (add, 0, [("a", 0), ("a", 1)])
    with pytest.raises(ValueError, match="no"):
        threaded.compute(graph, ("last",), 1, ignore)
    assert begun == []
