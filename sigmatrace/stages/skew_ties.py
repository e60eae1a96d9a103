"""Which clocks messages tie to each other, and about how they differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sigmatrace.stages.skew_lines import Messages

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def components(messages: Messages, clocks: int, rank: Ints) -> tuple[Ints, Ints]:
    """Return by clock the reference that it is tied to, and the best one it has to do with."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(messages.src.size, np.int8)
    graph = csr_array((ones, (messages.src, messages.dst)), shape=(clocks, clocks))
    best = []
    for kind in ("strong", "weak"):
        number, label = connected_components(graph, directed=True, connection=kind)
        chosen = np.empty(number, np.int64)
        order = np.argsort(-rank, kind="stable")
        chosen[label[order]] = order
        best.append(chosen[label])
    return best[0], best[1]


def compared(src: Ints, dst: Ints, clocks: int) -> Bools:
    """Return which clocks messages hold against others, there and back, if through others.

    Where they do so in several groups that have nothing to do with each other, it is the largest
    group's. Clocks that all are in one group, as they mostly are, are seen without scipy, which
    takes longer to import than all else here.

    Args:
        src: ``(messages,)``, the clock of each send.
        dst: ``(messages,)``, the clock of each receive.
        clocks: How many there are.
    """
    links = np.zeros((clocks, clocks), np.bool_)
    links[src, dst] = True
    if not links.any():
        return np.zeros(clocks, np.bool_)
    start = int((links.sum(axis=0) + links.sum(axis=1)).argmax())
    found = _reached(links, start) & _reached(links.T, start)
    if not found.all():
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        _, label = connected_components(csr_array(links), directed=True, connection="strong")
        size = np.bincount(label)
        found = (label == size.argmax()) & (size.max() > 1)
    return found


def _reached(links: Bools, start: int) -> Bools:
    """Return which clocks links ``(clocks, clocks)`` lead to, the start too."""
    found = np.zeros(links.shape[0], np.bool_)
    found[start] = True
    new = found
    while new.any():
        new = links[new].any(axis=0) & ~found
        found |= new
    return found


def tied_without(messages: Messages, left_out: Bools, clocks: int, root: int) -> Bools:
    """Return which clocks are tied to a reference without some messages."""
    kept = Messages(
        *(getattr(messages, name)[~left_out] for name in ("src", "dst", "send_ns", "receive_ns"))
    )
    rank = np.where(np.arange(clocks) == root, -1, np.arange(clocks))
    tied: Bools = components(kept, clocks, rank)[0] == root
    return tied


def aligned(messages: Messages, clocks: int, rank: Ints) -> Ints:
    """Return about what is to be added to each clock, i8 ns: by medians along the busiest pairs."""
    took = messages.receive_ns - messages.send_ns
    key = messages.src * clocks + messages.dst
    order = np.lexsort((took, key))
    pair, begin, count = np.unique(key[order], return_index=True, return_counts=True)
    median = np.zeros((clocks, clocks), np.int64)
    number = np.zeros((clocks, clocks), np.int64)
    median.flat[pair] = took[order][begin + count // 2]
    number.flat[pair] = count
    ties = number + number.T
    offset = np.zeros(clocks, np.int64)
    known = np.zeros(clocks, bool)
    while not known.all():
        reach = np.where(known[:, None] & ~known[None, :], ties, 0)
        if not reach.any():
            known[np.flatnonzero(~known)[rank[~known].argmin()]] = True
            continue
        near, new = np.unravel_index(reach.argmax(), reach.shape)
        back, forth = median[new, near], -median[near, new]
        both = number[new, near] > 0 and number[near, new] > 0
        offset[new] = offset[near] + ((back + forth) // 2 if both else back + forth)
        known[new] = True
    return offset
