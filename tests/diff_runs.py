"""Runs for comparisons: of tables by hand, and of messages whose times and sizes are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sigmatrace import api
from sigmatrace.diff.sources import TABLES, Source
from sigmatrace.schema import INDEX_TABLES, STAGE_TABLES
from sigmatrace.testing.scenarios_messages import Log, write_messages
from sigmatrace.testing.synthetic_draw import BASE_NS, Shape
from tests.factories import make_table

BOOK: dict[str, Any] = {
    "lossless": True,
    "balance": [],
    "stages": {},
    "records": {},
    "capture": {
        "unreadable_files": {},
        "empty_files": [],
        "open_files": [],
        "stopped_files": {},
        "files": [],
        "bytes": {"damaged": 0, "cut": 0, "foreign": 0},
        "lost_at_capture": {},
        "unknown": {},
        "unknown_channel": 0,
        "window": {},
    },
}
"""A ledger that has nothing to tell."""
ROUNDS, SIZE, LATENCY_NS, APART_NS, ROUND_NS = 6, 1000, 5000, 50, 1_000_000
ANALYSES = ["preset=analysis", "cluster.workers=1"]


def made(name: str = "run", book: Mapping[str, Any] = BOOK, **rows: Sequence[Any]) -> Source:
    """Return a run with these rows; `processes` are ranks 0, 1, ... where a row says no more."""
    kinds = {**INDEX_TABLES, **STAGE_TABLES}
    rows["processes"] = [
        {"proc": n, "label": f"rank {n}", "rank": n, "host": f"node{n // 2}", **row}
        for n, row in enumerate(rows.get("processes", [{}] * 4))
    ]
    tables = {one: make_table(kinds[one], rows.get(one, [])) for one in TABLES}

    def read(table: str, columns: Sequence[str] | None, level: str | None) -> pa.Table:
        found = tables[table]
        if level is not None:
            found = found.filter(pc.equal(found.column("level"), level))
        return found.select(columns or found.column_names)

    return Source(name, book, read, Path(name))


def write_run(
    folder: Path,
    *,
    ranks: int = 4,
    seed: int = 0,
    noise: float = 0.0,
    late: Mapping[int, int] | None = None,
    sizes: Mapping[tuple[int, int], int] | None = None,
    slow: Mapping[tuple[int, int], float] | None = None,
) -> Path:
    """Write a run of rounds of messages from all to all, each with a barrier, and return it.

    Args:
        folder: New.
        ranks: How many.
        seed: Of the noise.
        noise: Share by which latencies and arrivals scatter.
        late: By rank, ns by which it comes later to each barrier than in its turn.
        sizes: By pair, bytes of a message other than ``SIZE``.
        slow: By pair, factor of the latency.
    """
    rng = np.random.default_rng(seed)
    log, regions = Log(), [np.zeros((ROUNDS, 2), np.int64) for _ in range(ranks)]
    src, dst = np.divmod(np.arange(ranks * ranks), ranks)
    src, dst = src[src != dst], dst[src != dst]
    pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
    size = [(sizes or {}).get(pair, SIZE) for pair in pairs]
    factor = np.array([(slow or {}).get(pair, 1.0) for pair in pairs])
    for k in range(ROUNDS):
        begin = (k + 1) * ROUND_NS
        took = LATENCY_NS * factor * np.exp(noise * rng.standard_normal(src.size))
        log.add(src, dst, np.array(size), np.full(src.size, begin), begin + took.astype(np.int64))
        end = begin + ROUND_NS - 1000
        for rank, own in enumerate(regions):
            after = 100_000 + APART_NS * rank * np.exp(noise * rng.standard_normal())
            own[k] = BASE_NS + begin + int(after) + (late or {}).get(rank, 0), BASE_NS + end
    shape = Shape(ranks=ranks, hosts=2, peers=ranks, mode="full")
    write_messages(folder, shape, log.sent(), [{"barrier": own} for own in regions])
    return folder


def analysed(folder: Path, *more: str) -> Path:
    """Correlate a run, and return its output."""
    words = [f"run={folder}", *ANALYSES, *more]
    return api.execute(api.compose(words)).out
