"""The layers that can be traced: the one table that a new layer is added to on this side.

Its counterpart is ``st_format.h`` (numbers) and ``CMakeLists.txt`` (shims).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerInfo:
    """How a layer is reached.

    Attributes:
        shim: Native library that is preloaded for it: ``libsigmatrace_SHIM.so``.
        library: The library that it wraps, as the loader names it, without ``.so``.
        linked: Start of the names that programs of this layer are linked with.
        package: Debian package whose headers the shim is built with.
        version: Python statements that print the version of the loaded library ``l``, with
            ``c`` for ``ctypes``.
        default: Whether it is traced unless layers are named.
        groups: Names that choose several layers at once.
    """

    shim: str
    library: str
    linked: str
    package: str
    version: str
    default: bool = True
    groups: tuple[str, ...] = ()


_UCP_VERSION = "f=l.ucp_get_version_string; f.restype=c.c_char_p; print(f().decode())"
# libibverbs does not tell its release; the file's name ends with it: libibverbs.so.1.14.44.0.
_VERBS_VERSION = (
    "import os; n=os.path.realpath(l._name); print(n.partition('.so.1.')[2].partition('.')[2])"
)
_MLX5_VERSION = _VERBS_VERSION
_CUDA_VERSION = (
    "v=c.c_int(); l.cuDriverGetVersion(c.byref(v));"
    " print(f'{v.value // 1000}.{v.value % 1000 // 10}')"
)
_OFI_VERSION = "v=l.fi_version(); print(f'{v >> 16}.{v & 65535}')"

LAYERS: dict[str, LayerInfo] = {
    "ofi": LayerInfo("ofi", "libfabric", "libfabric.so", "libfabric-dev", _OFI_VERSION),
    "ucp": LayerInfo("ucx", "libucp", "libucp.so", "libucx-dev", _UCP_VERSION, groups=("ucx",)),
    # UCT lies below UCP: tracing both records each message twice, so UCT is for those who ask.
    "uct": LayerInfo(
        "ucx", "libucp", "libuct.so", "libucx-dev", _UCP_VERSION, default=False, groups=("ucx",)
    ),
    # Verbs lie below UCX and libfabric: with it, too, each message would be recorded twice.
    "verbs": LayerInfo(
        *("verbs", "libibverbs", "libibverbs.so", "libibverbs-dev"), _VERBS_VERSION, default=False
    ),
    # What a GPU starts by itself: for those who ask, as two threads of ours repeat its doorbells.
    "mlx5dv": LayerInfo(
        *("gpu", "libmlx5", "libmlx5.so", "libibverbs-dev"),
        _MLX5_VERSION,
        default=False,
        groups=("gpu",),
    ),
    "cuda": LayerInfo(
        *("gpu", "libcuda", "libcuda.so", "libibverbs-dev"),
        _CUDA_VERSION,
        default=False,
        groups=("gpu",),
    ),
}
"""By the name in ``--layers`` and in traces."""

DEFAULT_LAYERS = tuple(name for name, info in LAYERS.items() if info.default)

GROUPS: dict[str, tuple[str, ...]] = {
    "all": tuple(LAYERS),
    **{
        group: tuple(name for name, info in LAYERS.items() if group in info.groups)
        for group in dict.fromkeys(group for info in LAYERS.values() for group in info.groups)
    },
}
"""Layers by the name of a group."""


def half_chosen(layers: Sequence[str]) -> str:
    """Return a warning when one of the layers of a GPU is chosen without the other, else ""."""
    chosen = set(GROUPS["gpu"]) & set(layers)
    if not chosen or chosen == set(GROUPS["gpu"]):
        return ""
    return f"layers {' and '.join(GROUPS['gpu'])} work together: use --layers gpu"
