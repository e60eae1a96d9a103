"""numba's cache of compiled kernels, without what a kernel that is only called does not need."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any

import numba.core.runtime._nrt_python as runtime
from llvmlite import binding
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult

from sigmatrace import kernel_ahead


@functools.cache
def _name_runtime() -> None:
    """Tell LLVM where the functions of numba's runtime are, which machine code calls by name."""
    for name, address in runtime.c_helpers.items():
        binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@functools.cache
def _not_kept(folder: str, why: str) -> None:
    """Say, once, that the next run compiles again."""
    said = "kernels: cannot be kept in %s (%s): each run compiles them; NUMBA_CACHE_DIR=DIR helps"
    logging.getLogger(__name__).warning(said, folder, why)


class _Library(JITCodeLibrary):
    """Machine code of a kernel; LLVM's code is read when another kernel that calls it is compiled.

    numba reads it at once, which takes longer than all else.
    """

    def __init__(self, codegen: Any, stored: Any, entry: str) -> None:
        name, _, (machine_code, self._bitcode) = stored
        super().__init__(codegen, name)
        self.enable_object_caching()
        self._set_compiled_object(machine_code)
        self._finalize_final_module()
        codegen._engine._defined_symbols.add(entry)

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None:
            self._shared_module = binding.parse_bitcode(self._bitcode)
        return self._shared_module


class _Stored(CompileResultCacheImpl):
    """What is stored of a kernel, and what is made of that."""

    def reduce(self, compiled: Any) -> Any:
        """Return what is stored.

        Surroundings of functions that became a part of it, from which it reads no constant, are
        left out: to restore them, their modules would be imported.
        """
        *kept, surroundings = compiled._reduce()
        return (*kept, [one for one in surroundings if one.consts])

    def rebuild(self, target_context: Any, stored: Any) -> Any:
        """Return the kernel, ready to be called."""
        code, about, own, signature, in_objects, lifted, types, before, surroundings = stored
        for prepare in before:
            prepare()
        library = _Library(target_context.codegen(), code, about.llvm_cpython_wrapper_name)
        entry = target_context.get_executable(library, about, own)
        for one in surroundings:
            library.codegen.set_env(one.env_name, one)
        make: Any = CompileResult  # numba has no annotations
        return make(
            typing_context=target_context.typing_context,
            target_context=target_context,
            entry_point=entry,
            typing_error=None,
            type_annotation=types,
            signature=signature,
            objectmode=in_objects,
            lifted=lifted,
            fndesc=about,
            library=library,
            call_helper=None,
            environment=own,
            metadata=None,
            reload_init=before,
            referenced_envs=surroundings,
        )


class Cache(FunctionCache):
    """numba's cache of one kernel; what only compiling needs is not set up for loading."""

    _impl_class = _Stored

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a compiled kernel, or return None.

        numba's own first installs all that any function may call, which takes longer than to
        load all kernels; compiling does so by itself.
        """
        _name_runtime()
        found = self._loaded(sig, target_context)
        if found is None:
            kernel_ahead.start()
            kernel_ahead.claim(kernel_ahead.called(self._py_func))
            found = self._loaded(sig, target_context)
        return found

    def _loaded(self, sig: Any, target_context: Any) -> Any:
        """Return what is stored, or None; what cannot be read is forgotten, and compiled anew."""
        try:
            return self._load_overload(sig, target_context)
        except Exception:  # of a file that was cut, pickle and LLVM raise anything
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a kernel that was compiled, if that can be: it can be called all the same."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _not_kept(self.cache_path, error.strerror)
        finally:
            kernel_ahead.release(kernel_ahead.called(self._py_func))
