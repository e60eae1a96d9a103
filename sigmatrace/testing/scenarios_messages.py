"""What scenarios of messages have in common: their truth, and how their files are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sigmatrace.testing.synthetic_draw import BASE_NS, Clocks, Messages, Shape
from sigmatrace.testing.synthetic_rank import write_rank

LATENCY_NS = 2000
"""From the end of a transfer to its arrival."""
BYTES_PER_NS = 12
"""Of a link, when it is alone: 96 Gbit/s."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Sent:
    """Messages, each in one row of arrays ``(n,)`` i8; times are Unix ns by a true clock.

    Attributes:
        src, dst: Ranks.
        size_bytes: Bytes.
        sent_ns, received_ns: When it was sent, and when its receive completed, later.
    """

    src: Ints
    dst: Ints
    size_bytes: Ints
    sent_ns: Ints
    received_ns: Ints

    def sums(self, ranks: int, which: NDArray[np.bool_] | None = None) -> tuple[Ints, Ints]:
        """Return messages and bytes by source and destination, ``(ranks, ranks)`` each.

        Args:
            ranks: How many there are.
            which: ``(n,)`` messages that count; all by default.
        """
        rows = np.flatnonzero(which) if which is not None else slice(None)
        count, size_bytes = np.zeros((2, ranks, ranks), np.int64)
        np.add.at(count, (self.src[rows], self.dst[rows]), 1)
        np.add.at(size_bytes, (self.src[rows], self.dst[rows]), self.size_bytes[rows])
        return count, size_bytes


class Log:
    """Collects messages, times in ns since the start of the run."""

    def __init__(self) -> None:
        self._rows: list[tuple[Ints, ...]] = []

    def add(self, src: Ints, dst: Ints, size: Ints, sent_ns: Ints, received_ns: Ints) -> None:
        """Add messages, ``(n,)`` each."""
        row = (src, dst, size, sent_ns, received_ns)
        self._rows.append(tuple(np.asarray(x, np.int64).ravel() for x in row))

    def sent(self) -> Sent:
        """Return them all, in Unix time, in the order in which they were added."""
        src, dst, size, sent, received = (np.concatenate(x) for x in zip(*self._rows, strict=True))
        return Sent(src, dst, size, sent + BASE_NS, received + BASE_NS)


def transfer_ns(size: Ints) -> Ints:
    """Return how long bytes take over a link."""
    return -(-size // BYTES_PER_NS)


def write_messages(
    folder: Path,
    shape: Shape,
    sent: Sent,
    regions: Sequence[Mapping[str, Ints]] | None = None,
) -> None:
    """Write the files of a run of messages (libfabric), all received.

    Hosts' TSCs tick a whole number of times in a ns, so that with right clocks (``shape``) times
    in the trace are the true ones, to the ns.

    Args:
        folder: Made if it is missing.
        shape: Ranks, hosts, clocks, mode; ``peers`` is how far a rank reaches, counted upwards.
        sent: The messages; those of a pair of ranks arrive in the order in which they were sent.
        regions: By rank, as of ``write_rank``, in Unix time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(shape.seed)
    drawn = Clocks.draw(shape, rng)
    clocks = replace(drawn, hz=(2 + drawn.host % 2) * 10**9)
    messages = _numbered(shape, sent)
    for rank in range(shape.ranks):
        own = regions[rank] if regions else {}
        since = {name: times - BASE_NS for name, times in own.items()}
        write_rank(folder, shape, clocks, messages, rank, rng, since)


def _numbered(shape: Shape, sent: Sent) -> Messages:
    """Return the messages as ``write_rank`` needs them: by source and time, numbered by pair."""
    order = np.lexsort((sent.sent_ns, sent.src))
    src, dst, size = sent.src[order], sent.dst[order], sent.size_bytes[order]
    times = sent.sent_ns[order] - BASE_NS, sent.received_ns[order] - BASE_NS
    lane = (dst - src - 1) % shape.ranks
    if lane.max(initial=0) >= shape.fan_out:
        raise ValueError("a message goes farther than the shape's peers")
    k = ordinals(src * shape.ranks + dst)
    by_dst = np.argsort(dst, kind="stable")
    ranks = np.arange(shape.ranks + 1)
    all_received, none = np.ones(src.size, bool), np.zeros(src.size, bool)
    return Messages(
        *(src.astype(np.int32), dst.astype(np.int32), lane.astype(np.int32), size, *times),
        *(k, k.copy(), all_received, np.searchsorted(src, ranks), by_dst),
        *(np.searchsorted(dst[by_dst], ranks), none, none.copy()),
    )


def ordinals(key: Ints) -> Ints:
    """Return of each row how many of the same key come before it."""
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    runs = np.diff(np.append(first, key.size))
    found = np.empty(key.size, np.int64)
    found[order] = np.arange(key.size) - np.repeat(first, runs)
    return found
