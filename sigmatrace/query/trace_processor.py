"""Perfetto's real trace_processor: loads a trace, answers queries in PerfettoSQL.

Requests and replies are the messages ``TraceProcessorRpc`` of Perfetto's
``protos/perfetto/trace_processor/trace_processor.proto``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

from sigmatrace.errors import ChunkFormatError, QueryError
from sigmatrace.query.rows import Row, Take
from sigmatrace.query.wasm_host import REQUEST_BYTES, Host, Module

_TIMINGS = ("_ns", "_ms", "_us")
_SIZES = ("_size_bytes", "_bytes", "_size")
_FIGURES = ("clock_sync_cache_miss",)
_HEAD_BYTES = 64
_NULL, _VARINT, _FLOAT, _STRING, _BLOB = 1, 2, 3, 4, 5
"""``QueryResult.CellsBatch.CellType``."""


class TraceProcessor:
    """One trace, loaded.

    Args:
        trace: The trace file.
        module: What ``wasm_host.compiled`` returned.

    Raises:
        ChunkFormatError: It is no trace.
        QueryError: It does not fit into the memory of a 32-bit trace_processor (4 GiB).
    """

    def __init__(self, trace: Path, module: Module) -> None:
        self._protos = ProtoFactory(PlatformDelegate())
        self._host = Host(module, self._reply)
        self._take: Callable[[Any], None] = _nothing
        try:
            with trace.open("rb") as file:
                while chunk := file.read(REQUEST_BYTES - _HEAD_BYTES):
                    self._call("APPEND_TRACE_DATA", "append_result", append_trace_data=chunk)
            self._call("FINALIZE_TRACE_DATA", "finalize_data_result")
        except _RefusedError as error:
            raise ChunkFormatError(f"{trace}: no trace that Perfetto knows: {error}") from None

    def register(self, package: str, modules: Mapping[str, str]) -> None:
        """Make modules known to ``include perfetto module``.

        Args:
            package: First part of their names.
            modules: Their text by their full name.

        Raises:
            QueryError: They are refused.
        """
        rpc = self._rpc("REGISTER_SQL_PACKAGE")
        rpc.register_sql_package_args.package_name = package
        for name, sql in modules.items():
            rpc.register_sql_package_args.modules.add(name=name, sql=sql)
        self._send(rpc, lambda reply: _check(reply.register_sql_package_result))

    def stream(self, sql: str, take: Take) -> None:
        """Run a query, and hand over its rows as they come.

        Args:
            sql: One or more statements; the last one's rows are those of the result.
            take: Called with names and rows, at least once, also if there are no rows.

        Raises:
            QueryError: The query is refused.
        """
        names: list[str] = []

        def reply(message: Any) -> None:
            result = message.query_result
            _check(result)
            names.extend(result.column_names)
            rows = [row for batch in result.batch for row in _rows(batch, len(names))]
            take(names, rows)

        rpc = self._rpc("QUERY_STREAMING")
        rpc.query_args.sql_query = sql
        self._send(rpc, reply)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query; of columns with the same name the last one."""
        found: list[dict[str, Any]] = []

        def take(names: Sequence[str], rows: list[Row]) -> None:
            found.extend(dict(zip(names, row, strict=True)) for row in rows)

        self.stream(sql, take)
        return found

    def value(self, sql: str) -> Any:
        """Return the one value that a query gives."""
        ((value,),) = (tuple(row.values()) for row in self.query(sql))
        return value

    def problems(self) -> list[dict[str, Any]]:
        """Return everything that hints at lost or wrong data: [] is a good trace.

        That is every non-zero row of ``stats`` but timings and sizes, whatever its severity,
        slices without an end, and slices without a name.
        """
        found = [
            row
            for row in self.query("select name, idx, severity, value from stats where value != 0")
            if not row["name"].endswith(_TIMINGS + _SIZES) and row["name"] not in _FIGURES
        ]
        found += self.query("select 'no end' as name, * from slice where dur = -1")
        found += self.query("select 'no name' as name, id, ts from slice where name is null")
        return found

    def _rpc(self, method: str) -> Any:
        rpc = self._protos.TraceProcessorRpc()
        rpc.request = getattr(rpc, f"TPM_{method}")
        return rpc

    def _call(self, method: str, result: str, **fields: Any) -> None:
        rpc = self._rpc(method)
        for name, value in fields.items():
            setattr(rpc, name, value)
        self._send(rpc, lambda reply: _check(getattr(reply, result)))

    def _send(self, rpc: Any, take: Callable[[Any], None]) -> None:
        stream = self._protos.TraceProcessorRpcStream()
        rpc.seq = self._host.next_number()
        stream.msg.append(rpc)
        refused: list[_RefusedError] = []

        def guarded(reply: Any) -> None:
            # An error that leaves the module in mid-reply would leave it unusable.
            try:
                take(reply)
            except _RefusedError as error:
                refused.append(error)

        self._take = guarded
        self._host.send(stream.SerializeToString())
        if refused:
            raise refused[0]

    def _reply(self, data: bytes) -> None:
        stream = self._protos.TraceProcessorRpcStream()
        stream.ParseFromString(data)
        for reply in stream.msg:
            if reply.fatal_error:
                raise QueryError(f"trace_processor gave up: {_line(reply.fatal_error)}")
            self._take(reply)


class _RefusedError(QueryError):
    """What trace_processor says of a query or a trace."""


def _nothing(reply: Any) -> None:
    """Take no reply: nothing was asked for."""


def _check(result: Any) -> None:
    if result.error:
        raise _RefusedError(_line(result.error))


def _line(text: str) -> str:
    """Return what a message says in one line: its last one, which names the mistake, and where."""
    lines = [line.strip() for line in text.strip().splitlines()]
    lines = [line for line in lines if line and not line.startswith(("Traceback", "^"))]
    return lines[-1] if len(lines) < 2 else f"{lines[-1]} ({lines[0]})"


def _rows(batch: Any, width: int) -> list[Row]:
    """Return the rows of a batch: its cells lie in one list for each type."""
    sources: dict[int, Any] = {
        _VARINT: iter(batch.varint_cells),
        _FLOAT: iter(batch.float64_cells),
        # Each string ends with a NUL.
        _STRING: iter(batch.string_cells.split("\0")),
        _BLOB: iter(batch.blob_cells),
    }
    cells = [None if kind == _NULL else next(sources[kind]) for kind in batch.cells]
    return [tuple(cells[at : at + width]) for at in range(0, len(cells), width or 1)]
