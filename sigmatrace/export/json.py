"""The exporter ``json``: the run's numbers in one file, for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sigmatrace.export.amounts import balance
from sigmatrace.export.base import Exported, Exporter, Piece
from sigmatrace.export.json_text import write_json
from sigmatrace.export.tables import named
from sigmatrace.partition import Run
from sigmatrace.schema import STAGE_TABLES, Columns
from sigmatrace.trace_format import INITIATORS

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
            write_json(file, content)
            file.write("\n")
        by_rank = content["traffic"]["by_rank"]
        counts = {
            "processes": run.tables["processes"].num_rows,
            "traffic_rows": by_rank.num_rows,
            "traffic_operations": int(pc.sum(by_rank["count"]).as_py() or 0),
            "traffic_bytes": int(pc.sum(by_rank["size_bytes"]).as_py() or 0),
        }
        shown = balance(run, counts["traffic_operations"], counts["traffic_bytes"])
        return Exported((OUTPUT,), counts, balance=shown)


def _content(run: Run) -> Mapping[str, Any]:
    """Return what is written; tables stand for lists of their rows."""
    amounts = ("count", "size_bytes", "size_unknown")
    what = ("layer", "op", "nested")
    ends = ("src_proc", "dst_proc")
    by_size = (*what, "least_bytes", "most_bytes")
    return {
        "processes": run.tables["processes"],
        "libraries": named(run, "libraries"),
        "traffic": {
            "initiating_operations": [op.name.lower() for op in INITIATORS],
            "by_rank": _sums(run, "traffic", run.tables["traffic"], (*ends, *what), amounts).select(
                [*ends, "src", "dst", *what, *amounts]
            ),
            "by_host": _sums(
                run, "traffic", _with_hosts(run), ("src_host", "dst_host", *what), amounts
            ),
            "by_size": _sums(run, "sizes", run.tables["sizes"], by_size, ("count", "size_bytes")),
        },
        "messages": _messages(run),
        "clock_quality": named(run, "clock_quality") if "clock_quality" in run.tables else [],
        "facts": dict(sorted(run.facts.items())),
        "damage": named(run, "damage"),
        "ledger": "ledger.json",
    }


def _with_hosts(run: Run) -> pa.Table:
    """Return ``traffic`` with the hosts of both ends, "" for unknown ones."""
    traffic = run.tables["traffic"]
    hosts = run.tables["processes"].column("host").combine_chunks()
    for end in ("src", "dst"):
        proc = traffic.column(f"{end}_proc")
        known = pc.if_else(pc.greater_equal(proc, 0), proc, pa.scalar(None, proc.type))
        host = pc.fill_null(hosts.take(known), "")
        traffic = traffic.append_column(f"{end}_host", host)
    return traffic


def _messages(run: Run) -> pa.Table | list[Any]:
    if "messages" not in run.tables:
        return []
    amounts = (
        *("sent", "received", "matched", "sent_bytes", "received_bytes"),
        *("size_unknown", "uncertain"),
    )
    return _sums(run, "messages", run.tables["messages"], ("layer", "kind"), amounts)


def _sums(
    run: Run, name: str, table: pa.Table, keys: Sequence[str], amounts: Sequence[str]
) -> pa.Table:
    """Return sums by keys of what is a table ``name``, with words for codes, ordered by the keys.

    Sums are decimals: exact beyond 64 bits.
    """
    exact = table.select(list(keys))
    for amount in amounts:
        exact = exact.append_column(amount, table.column(amount).cast(pa.decimal128(20)))
    added = exact.group_by(list(keys), use_threads=False).aggregate([(x, "sum") for x in amounts])
    added = added.rename_columns([column.removesuffix("_sum") for column in added.column_names])
    shown = named(run.with_results({name: added}), name)
    extra = [column for column in shown.column_names if column not in (*keys, *amounts)]
    return shown.select([*keys, *extra, *amounts]).sort_by([(key, "ascending") for key in keys])
