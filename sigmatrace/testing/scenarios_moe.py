"""The scenario of MoE inference on 4 nodes of 4 GPUs: experts are asked, and answer.

In the shape of one that was measured (J. Baydamirli, D. Unat, "SigmaTrace", 2026, case study 2):
what nodes send differs 2.13 times from most to least, node 2 sends 15.9 GB to node 1, 2.15 times
what the mean pair of nodes sends, and gets 12.3 GB back; it sends and receives most. Before that
the weights are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sigmatrace.testing.scenarios_messages import LATENCY_NS, Ints, Log, Sent, transfer_ns
from sigmatrace.testing.synthetic_draw import BASE_NS
from sigmatrace.testing.synthetic_verbs import Place, write_verbs_rank

NODES, GPUS = 4, 16
LOCAL = GPUS // NODES
PARTS = (
    (0, 535, 950, 500),
    (500, 0, 1230, 470),
    (810, 1591, 0, 794),
    (340, 360, 800, 0),
)
"""By source and destination node, in parts of 9 999 360 bytes (about 10 MB)."""
_TOKENS, _ASKED_BYTES, _ANSWERED_BYTES = 465, 7168, 14336
"""Of a part: tokens, and bytes of each when it is dispatched (FP8) and combined (BF16)."""
_WEIGHTS_BYTES, _SHARDS = 400_000_000, 20
_SERVE_NS, _STEP_NS, _EXPERT_NS, _BEGIN_NS = 10**10, 10**7, 500_000, 10**6


@dataclass(frozen=True)
class Moe:
    """What MoE inference is like.

    Attributes:
        steps: Each dispatches tokens to experts on other nodes, and combines what comes back.
        seed: Says how tokens are spread over the GPUs of nodes, and over steps.
    """

    steps: int = 20
    seed: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= 1000:
            raise ValueError("there are 1 to 1000 steps")


@dataclass(frozen=True)
class MoeTruth:
    """What MoE inference did; matrices i8 by source and destination, of serving alone or of all.

    Attributes:
        shape: What was asked for.
        sent: The messages.
        is_serving: ``(n,)`` of these, those that do not load weights.
        operations: Sends and receives.
        serve_ns: Unix ns at which serving begins; it is silent for seconds before.
        window: What leaves the loading of weights out, as the option ``window`` of the pipeline.
        count, size_bytes: Of serving, ``(gpus, gpus)``.
        node_count, node_bytes: Of serving, ``(nodes, nodes)``.
        all_count, all_bytes: With the loading of weights, ``(gpus, gpus)``.
        all_node_bytes: Likewise, ``(nodes, nodes)``.
    """

    shape: Moe
    sent: Sent
    is_serving: NDArray[np.bool_]
    operations: int
    serve_ns: int
    window: str
    count: Ints
    size_bytes: Ints
    node_count: Ints
    node_bytes: Ints
    all_count: Ints
    all_bytes: Ints
    all_node_bytes: Ints


def moe(folder: Path, shape: Moe) -> MoeTruth:
    """Write MoE inference (layer verbs, mode simple), and return what it did."""
    folder.mkdir(parents=True, exist_ok=True)
    log = Log()
    _load(log)
    _serve(log, shape)
    sent = log.sent()
    serving = sent.sent_ns >= _SERVE_NS + BASE_NS
    end_ns = int(sent.received_ns.max()) + 1000
    for rank in range(GPUS):
        place = Place(rank, GPUS, f"node{rank // LOCAL}", rank % LOCAL)
        write_verbs_rank(folder, place, sent, end_ns)
    count, size_bytes = sent.sums(GPUS, serving)
    all_count, all_bytes = sent.sums(GPUS)
    return MoeTruth(
        *(shape, sent, serving, 2 * sent.src.size, _SERVE_NS + BASE_NS, f"{_SERVE_NS // 10**9}s.."),
        *(count, size_bytes, by_node(count), by_node(size_bytes)),
        *(all_count, all_bytes, by_node(all_bytes)),
    )


def by_node(matrix: Ints) -> Ints:
    """Return a matrix of GPUs summed up by their nodes."""
    blocks: Ints = matrix.reshape(NODES, LOCAL, NODES, LOCAL).sum(axis=(1, 3))
    return blocks


def _load(log: Log) -> None:
    """Let the GPUs of node 0 send weights, in shards, to those at their place on other nodes."""
    src = np.tile(np.arange(LOCAL), NODES - 1)
    dst = src + LOCAL * np.repeat(np.arange(1, NODES), LOCAL)
    size = np.full(src.size, _WEIGHTS_BYTES)
    now = _BEGIN_NS
    for _ in range(_SHARDS):
        now = _send(log, now, src, dst, size)


def _serve(log: Log, shape: Moe) -> None:
    """Dispatch and combine, step by step: what comes back are the same tokens, twice as wide."""
    src, dst, tokens = _spread(shape)
    for step in range(shape.steps):
        now = _SERVE_NS + step * _STEP_NS * max(1, 100 // shape.steps)
        now = _send(log, now, src, dst, tokens[:, step] * _ASKED_BYTES)
        _send(log, now + _EXPERT_NS, dst, src, tokens[:, step] * _ANSWERED_BYTES)


def _spread(shape: Moe) -> tuple[Ints, Ints, Ints]:
    """Return source, destination and, ``(pairs, steps)``, tokens of all pairs of GPUs.

    Of a pair of nodes (i, j), T(i, j) tokens one way make 7168 T(i, j) + 14336 T(j, i) bytes; from
    the bytes that there are to be both ways follows T.
    """
    rng = np.random.default_rng(shape.seed)
    parts = np.array(PARTS, np.int64)
    tokens = _TOKENS * (2 * parts.T - parts)
    rows = []
    for i, j in zip(*np.nonzero(parts), strict=True):
        cells = LOCAL * LOCAL * shape.steps
        until = np.sort(rng.integers(0, int(tokens[i, j]) + 1, cells - 1))
        even = np.arange(1, cells) * tokens[i, j] // cells
        edges = np.concatenate([[0], np.sort((until + 7 * even) // 8), [tokens[i, j]]])
        split = np.diff(edges).reshape(LOCAL * LOCAL, shape.steps)
        own, other = np.divmod(np.arange(LOCAL * LOCAL), LOCAL)
        rows.append((i * LOCAL + own, j * LOCAL + other, split))
    src, dst, split = (np.concatenate(x) for x in zip(*rows, strict=True))
    return src, dst, split


def _send(log: Log, now: int, src: Ints, dst: Ints, size: Ints) -> int:
    """Send messages, those of a source one behind the other; return when the last has come."""
    order = np.argsort(src, kind="stable")
    src, dst, size = src[order], dst[order], size[order]
    until = np.cumsum(transfer_ns(size) + 100)
    first = np.searchsorted(src, src)
    before = np.concatenate([[0], until])[first]
    sent = now + until - before - transfer_ns(size) - 100
    received = now + until - before + LATENCY_NS
    log.add(src, dst, size, sent, received)
    return int(received.max())
