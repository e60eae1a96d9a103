"""How kernels are compiled: at the first call, without the GIL, cached on disk.

Every kernel has explicit signatures, so what is compiled does not depend on who calls first. A
run compiles, or loads from the cache, the kernels that it calls, and no others.

Arrays in signatures are named by dtype, R (only read) or W (written, too), and the dimensions
beyond one. A mutable array may be passed where a read-only one is declared, so one
signature serves both Arrow's buffers and numpy's own arrays.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from sigmatrace.kernel_load import Cache

_LOCK = threading.RLock()
_IS_PLAIN = bool(vars(numba.config)["DISABLE_JIT"])


def _array(dtype: Any, dims: int, readonly: bool) -> Any:
    return types.Array(dtype, dims, "C", readonly=readonly)


def tuple_of(*members: Any) -> Any:
    """Return the type of a tuple of these types."""
    make: Any = types.Tuple  # numba has no annotations
    return make(members)


U8R = _array(types.uint64, 1, True)
U4R = _array(types.uint32, 1, True)
U2R = _array(types.uint16, 1, True)
U1R = _array(types.uint8, 1, True)
I8R = _array(types.int64, 1, True)
I4R = _array(types.int32, 1, True)
F8R = _array(types.float64, 1, True)
U8R2 = _array(types.uint64, 2, True)
U4R2 = _array(types.uint32, 2, True)
I8R2 = _array(types.int64, 2, True)
U8W = _array(types.uint64, 1, False)
U4W = _array(types.uint32, 1, False)
U2W = _array(types.uint16, 1, False)
U1W = _array(types.uint8, 1, False)
I8W = _array(types.int64, 1, False)
I4W = _array(types.int32, 1, False)
I8W2 = _array(types.int64, 2, False)
I8W4 = _array(types.int64, 4, False)
U8W2 = _array(types.uint64, 2, False)


class Kernel:
    """A function that is compiled, or loaded from the cache, when it is first called."""

    def __init__(self, function: Callable[..., Any], signatures: Any, options: Any) -> None:
        functools.update_wrapper(self, function)
        self._made: Any = None
        self._make = functools.partial(_compile, function, signatures, options)

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return (self._made or self.compiled())(*arguments)

    def compiled(self) -> Any:
        """Return numba's function, which is compiled."""
        with _LOCK:
            if self._made is None:
                self._made = self._make()
        return self._made

    @property
    def _numba_type_(self) -> Any:
        """How numba finds what to compile in where one kernel calls another one."""
        return self.compiled()._numba_type_


def kernel(*signatures: Any, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for these signatures, ``nogil``, cached where a cache can be written.

    Args:
        signatures: numba signatures; none for a helper that becomes a part of other kernels.
        more: Further options of ``numba.njit``.

    With ``NUMBA_DISABLE_JIT=1`` all stay plain Python, slow and open to a debugger.
    """
    if _IS_PLAIN:
        return _interpreted if signatures else lambda function: function
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, **more}
    if not signatures:
        options |= {"forceinline": True, "no_cpython_wrapper": True}
        return lambda function: numba.njit(function, **options)
    return lambda function: Kernel(function, signatures, options)


def in_python(intrinsic: Any, function: Callable[..., Any]) -> Any:
    """Return what kernels call for an intrinsic: ``function`` where they are plain Python."""
    return function if _IS_PLAIN else intrinsic


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel as plain Python: numbers wrap around, and come back as Python's own."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            made = function(*arguments)
        return tuple(map(_own, made)) if isinstance(made, tuple) else _own(made)

    return call


def _own(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _compile(function: Callable[..., Any], signatures: Any, options: Any) -> Any:
    made = numba.njit(function, **options)
    # numba raises a RuntimeError where neither the package nor a home can be written.
    with contextlib.suppress(RuntimeError):
        made._cache = Cache(function)
    searched = gc.isenabled()
    gc.disable()  # a fifth of the time to compile would go into searching what is not yet garbage
    try:
        for signature in signatures:
            made.compile(signature)
    finally:
        if searched:
            gc.enable()
    made.disable_compile()
    return made
