"""Runs ``trace_processor.wasm`` by ``wasmtime``: its memory, and the calls that it makes.

These are Emscripten's and WASI's; of them only those that a trace processor needs do anything. It
sees neither files nor the network.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import struct
import time
from collections.abc import Callable
from typing import Any

import wasmtime

from sigmatrace import kernel_cache, perfetto_wheel
from sigmatrace.errors import QueryError

REQUEST_BYTES = 32 << 20
"""A request may have this many bytes at a time."""
_PAGE_BYTES = 65536
_MEMORY_MAX_BYTES = (4 << 30) - _PAGE_BYTES
_ENOENT, _EBADF = 44, 8


Module = tuple[wasmtime.Engine, wasmtime.Module]


def compiled() -> Module:
    """Return trace_processor, compiled; the machine code is kept in the user's cache folder.

    Raises:
        MissingPackageError: The wheel that has it is not installed.
    """
    source = perfetto_wheel.version_folder() / "trace_processor.wasm"
    folder = kernel_cache.user_cache("wasm")
    engine = wasmtime.Engine(wasmtime.Config())
    if folder is None:
        return engine, wasmtime.Module.from_file(engine, str(source))
    version = importlib.metadata.version("wasmtime")
    kept = folder / f"{source.stem}-{source.stat().st_size}-{version}.cwasm"
    if kept.exists():
        try:
            return engine, wasmtime.Module.deserialize_file(engine, str(kept))
        except wasmtime.WasmtimeError:
            kept.unlink()  # of another machine, or cut
    module = wasmtime.Module.from_file(engine, str(source))
    fresh = kept.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # a full disk: the next one compiles again
        fresh.write_bytes(module.serialize())
        fresh.replace(kept)
    fresh.unlink(missing_ok=True)
    return engine, module


class Host:
    """A running module.

    Args:
        module: What ``compiled`` returned.
        reply: Called with each reply, while ``send`` lasts.

    Raises:
        QueryError: The module gave up, from any method.
    """

    def __init__(self, module: Module, reply: Callable[[bytes], None]) -> None:
        engine, code = module
        self._store = store = wasmtime.Store(engine)
        self._take = reply
        self._number = 0
        self._output = ""
        calls = [self._function(wanted) for wanted in code.imports]
        exports: Any = wasmtime.Instance(store, code, calls).exports(store)
        self._memory = exports["memory"]
        exports["emscripten_stack_init"](store)
        exports["__wasm_call_ctors"](store)
        i32 = wasmtime.ValType.i32
        replied = wasmtime.Func(store, wasmtime.FuncType([i32(), i32()], []), self._reply)
        place = exports["__indirect_function_table"].grow(store, 1, replied)
        self._request_at = _unsigned(
            exports["trace_processor_rpc_init"](store, place, REQUEST_BYTES)
        )
        self._request = exports["trace_processor_on_rpc_request"]

    def next_number(self) -> int:
        """Return the number of the next request, from 1."""
        self._number += 1
        return self._number

    def send(self, data: bytes) -> None:
        """Send a request; ``reply`` is called with what comes back."""
        for at in range(0, len(data), REQUEST_BYTES):
            part = data[at : at + REQUEST_BYTES]
            self._memory.write(self._store, part, self._request_at)
            try:
                self._request(self._store, len(part))
            except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
                said = str(error).strip().splitlines()[-1].strip()
                raise QueryError(f"trace_processor gave up: {said}") from None

    def _reply(self, at: int, size: int) -> None:
        self._take(self._read(at, size))

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
            self._output += self._read(at, size).decode("utf-8", "replace")
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
        said = " ".join(self._output[-500:].split())
        raise QueryError(f"trace_processor gave up: {said or 'out of memory?'}")

    def _on_assert_fail(self, *_: int) -> None:
        self._on_abort_js()


def _unsigned(value: int) -> int:
    return value & 0xFFFFFFFF
