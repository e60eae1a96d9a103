"""How kernels are compiled: ahead of the first call, without the GIL, cached on disk.

Every kernel has explicit signatures, so importing its module compiles it (or loads it from
the cache); whoever uses one imports it inside the function that calls it.

Arrays in signatures are named by dtype, R (only read) or W (written, too), and the dimensions
beyond one. A mutable array may be passed where a read-only one is declared, so one
signature serves both Arrow's buffers and numpy's own arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types


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


def kernel(*signatures: Any, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for these signatures, ``nogil``, cached where a cache can be written.

    Args:
        signatures: numba signatures; none for a helper that other kernels inline.
        more: Further options of ``numba.njit``.
    """

    def compile_function(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **more}
        if not signatures:
            options["inline"] = "always"
        try:
            return numba.njit(list(signatures) or None, cache=True, **options)(function)
        except RuntimeError as error:  # numba: neither the package nor a home can be written
            if "cannot cache" not in str(error):
                raise
            return numba.njit(list(signatures) or None, **options)(function)

    return compile_function
