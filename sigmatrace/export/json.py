"""The exporter ``json``: the run's numbers in one file, for scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from operator import add
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from sigmatrace.export.amounts import INITIATORS, balance
from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.export.tables import named
from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES, Columns

OUTPUT = "summary.json"


class Json(Exporter):
    """Writes ``summary.json``.

    Keys: ``processes``, ``libraries``, ``traffic`` with the lists ``by_rank`` and ``by_host``
    (bytes and operations by source, destination, layer, operation; ``nested`` as in the table
    ``traffic``) and ``by_size`` (of the whole run, by size), ``messages`` (totals by layer and
    kind; the ``size_unknown`` operations add 0 bytes), ``clock_quality``, ``facts``, ``damage``,
    ``ledger`` (the file beside it). Bytes of initiating operations count a message once.
    """

    name: ClassVar[str] = "json"
    requires: ClassVar[Columns] = {name: STAGE_TABLES[name] for name in ("traffic", "sizes")}

    def finish(self, pieces: Sequence[Piece], run: Run, staging: Path) -> Exported:
        """Write the file."""
        content = _content(run)
        with (staging / OUTPUT).open("w", encoding="utf-8", errors="replace") as file:
            json.dump(content, file, indent=1, allow_nan=False, ensure_ascii=False)
            file.write("\n")
        by_rank = content["traffic"]["by_rank"]
        counts = {
            "processes": len(content["processes"]),
            "traffic_rows": len(by_rank),
            "traffic_operations": sum(row["count"] for row in by_rank),
            "traffic_bytes": sum(row["size_bytes"] for row in by_rank),
        }
        shown = balance(run, counts["traffic_operations"], counts["traffic_bytes"])
        return Exported((OUTPUT,), counts, balance=shown)


def _content(run: Run) -> dict[str, Any]:
    traffic = named(run, "traffic")
    hosts = run.tables["processes"].column("host").to_pylist()
    for end in ("src", "dst"):
        procs = traffic.column(f"{end}_proc").to_pylist()
        names = [hosts[proc] if proc >= 0 else "" for proc in procs]
        traffic = traffic.append_column(f"{end}_host", pa.array(names, pa.string()))
    amounts = ("count", "size_bytes", "size_unknown")
    what = ("layer", "op", "nested")
    return {
        "processes": _rows(run.tables["processes"]),
        "libraries": _rows(named(run, "libraries")),
        "traffic": {
            "initiating_operations": [op.name.lower() for op in INITIATORS],
            "by_rank": _sums(traffic, ("src_proc", "dst_proc", "src", "dst", *what), amounts),
            "by_host": _sums(traffic, ("src_host", "dst_host", *what), amounts),
            "by_size": _sums(
                named(run, "sizes"), (*what, "least_bytes", "most_bytes"), ("count", "size_bytes")
            ),
        },
        "messages": _messages(run),
        "clock_quality": _rows(named(run, "clock_quality"))
        if "clock_quality" in run.tables
        else [],
        "facts": dict(sorted(run.facts.items())),
        "damage": _rows(named(run, "damage")),
        "ledger": "ledger.json",
    }


def _messages(run: Run) -> list[dict[str, Any]]:
    if "messages" not in run.tables:
        return []
    amounts = (
        *("sent", "received", "matched", "sent_bytes", "received_bytes"),
        *("size_unknown", "uncertain"),
    )
    return _sums(named(run, "messages"), ("layer", "kind"), amounts)


def _sums(table: pa.Table, keys: Sequence[str], amounts: Sequence[str]) -> list[dict[str, Any]]:
    """Return sums by keys, exact beyond 64 bits, ordered by the keys."""
    found: dict[tuple[Any, ...], list[int]] = {}
    by = zip(*(table.column(name).to_pylist() for name in keys), strict=True)
    rows = zip(*(table.column(name).to_pylist() for name in amounts), strict=True)
    for key, row in zip(by, rows, strict=True):
        found[key] = [*map(add, found[key], row)] if key in found else [*row]
    return [
        dict(zip((*keys, *amounts), (*key, *sums), strict=True))
        for key, sums in sorted(found.items())
    ]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    return [dict(_plain(row)) for row in table.to_pylist()]


def _plain(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a row's values; JSON has no infinity."""
    for key, value in row.items():
        is_number = not isinstance(value, float) or math.isfinite(value)
        yield key, value if is_number else None
