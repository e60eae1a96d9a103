"""Traced programs on the rig: what the trace says, in the terms of the wire."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb

from sigmatrace import api
from sigmatrace.capture.libs import library
from sigmatrace.trace_format import Op
from sigmatrace.validate.compare import Verdict
from tests.rigs.programs import PORT, Ran, run_pair
from tests.rigs.rig import Rig

Amount = tuple[int, int]
Flows = dict[tuple[int, int], dict[Op, Amount]]
SHIMS = {"verbs": "verbs", "ucp": "ucx", "uct": "ucx", "ofi": "ofi"}
"""The native library of a layer."""


@dataclass(frozen=True)
class Traced:
    """A pair of programs that ran traced.

    Attributes:
        ran: The programs and the wire.
        mode: Of the capture.
        result: Of the pipeline.
        sql: Its Parquet tables as views.
    """

    ran: Ran
    mode: str
    result: api.Result
    sql: duckdb.DuckDBPyConnection

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.sql.execute(query).fetchall()

    @property
    def stage(self) -> dict[str, Any]:
        """The stages' part of the ledger."""
        return self.result.ledger["stages"]

    @property
    def flows(self) -> list[dict[str, Any]]:
        """Flows compared with the wire, by operation; what a node sends to itself is left out."""
        rows = self.result.tables["wire_flows"].to_pylist()
        return [row for row in rows if row["verdict"] != Verdict.LOOPBACK]

    @cached_property
    def operations(self) -> Flows:
        """By sending node and receiving queue pair, operations with their count and bytes."""
        nodes = {node.address: node.number for node in self.ran.rig.nodes}
        found: Flows = defaultdict(dict)
        for row in self.flows:
            to = nodes[row["source"]], row["qpn"]
            found[to][Op(row["op"])] = (row["traced"], row["traced_bytes"])
        return dict(found)


def run_traced(
    rig: Rig,
    folder: Path,
    mode: str,
    server: Sequence[str],
    client: Sequence[str] | None = None,
    *,
    port: int = PORT,
    layers: str = "verbs",
    wire: bool = True,
    threads: bool = False,
    **more: Any,
) -> Traced:
    """Runs a pair of programs traced, and correlates what they left; any loss is an error.

    Args:
        wire: The pipeline compares with the wire, too, and what differs is an error.
        threads: Several threads record. They extend one file at once, of which the guests' client
            of the share loses the size now and then; so the trace is copied there afterwards.
    """
    run = rig.share / folder.name
    env = tracing(run, mode, layers)
    if threads:
        env["SIGMATRACE_OUT"] = f"/run/{run.name}"

    def fresh() -> None:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()

    ran = run_pair(rig, folder, server, client, port=port, env=env, before=fresh, **more)
    if threads:
        for node in rig.nodes:
            for file in rig.collect(node, env["SIGMATRACE_OUT"]).iterdir():
                file.rename(run / file.name)
    return correlated(ran, run, folder / "out", mode, wire=wire)


def tracing(run: Path, mode: str, layers: str = "verbs") -> dict[str, str]:
    """The environment of programs that leave their trace in a folder of the share."""
    shims = dict.fromkeys(["core", *(SHIMS[layer] for layer in layers.split(","))])
    return {
        "LD_PRELOAD": ":".join(str(library(name)) for name in shims),
        "SIGMATRACE_OUT": f"/share/{run.name}",
        "SIGMATRACE_MODE": mode,
        "SIGMATRACE_LAYERS": layers,
    }


def correlated(
    ran: Ran,
    run: Path,
    out: Path,
    mode: str,
    export: Sequence[str] = ("parquet",),
    *,
    wire: bool = True,
    strict: bool = True,
) -> Traced:
    """Correlates what programs left in a folder; `strict`: any loss is an error."""
    overrides = [f"validate.pcap={ran.capture}"] if wire else []
    result = api.run(run, export=export, out=out, strict=strict, overrides=overrides)
    return Traced(ran, mode, result, _views(out / "parquet"))


def _views(parquet: Path) -> duckdb.DuckDBPyConnection:
    sql = duckdb.connect()
    for path in sorted(parquet.iterdir()):
        files = f"{path}/*.parquet" if path.is_dir() else str(path)
        sql.execute(f"create view {path.stem} as select * from read_parquet('{files}')")
    return sql
