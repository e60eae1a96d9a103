"""Names of libfabric's endpoints and addresses."""

from __future__ import annotations

import functools

import numpy as np

from sigmatrace.capture.names.fields import Fields, binary, integer, of_type, text
from sigmatrace.capture.names.naming import Address, Endpoint, Names, Naming, Seat, Told
from sigmatrace.capture.names.sockets import socket_name
from sigmatrace.trace_format import Layer

_GLOBAL_PROVIDERS = frozenset(
    ("efa", "psm2", "psm3", "opx", "cxi", "verbs", "ucx", "gni", "bgq", "mlx", "lpp")
)


@functools.lru_cache(maxsize=1 << 14)
def ofi_name(provider: str, ep_type: str, address: bytes, host: str) -> str:
    """Return the canonical name of a libfabric address, "" if there is none.

    In a run every process names the others: the same addresses come again and again.
    """
    if not address:
        return ""
    prefix = f"ofi:{provider}/{ep_type}:"
    socket = socket_name(address, host)
    if socket is not None:
        return prefix + socket
    stripped = address.rstrip(b"\0")
    is_text = bool(stripped) and all(0x20 <= byte < 0x7F for byte in stripped)
    name = prefix + (stripped.decode("ascii") if is_text else address.hex())
    is_global = provider.split(";")[0] in _GLOBAL_PROVIDERS
    return name if is_global else f"{name}@{host}"


def _ofi_endpoint(key: int, fields: Fields, told: Told) -> Names:
    provider, ep_type = text(fields, "prov"), text(fields, "ep_type")
    local, peer = binary(fields, "local"), binary(fields, "peer")
    own, other = (ofi_name(provider, ep_type, address, told.host) for address in (local, peer))
    return Names(own, other, integer(fields, "av"), is_lossy=ep_type == "dgram")


def _address_rows(told: Told, channels: np.ndarray) -> list[Address]:
    """Name the entries of address vectors; an entry that was used for two addresses has none."""
    bound: dict[int, Fields] = {}
    for fields in of_type(told.objects, "ofi_endpoint").values():
        bound.setdefault(integer(fields, "av"), fields)
    vectors = of_type(told.objects, "ofi_av")
    kinds: dict[int, tuple[str, str]] = {}
    names: dict[tuple[int, int], str] = {}
    for fields in of_type(told.objects, "ofi_address").values():
        av = integer(fields, "av")
        if av not in kinds:
            endpoint = bound.get(av, {})
            provider = text(endpoint, "prov") or text(vectors.get(av, {}), "prov")
            kinds[av] = provider, "dgram" if text(endpoint, "ep_type") == "dgram" else "rdm"
        name = ofi_name(*kinds[av], binary(fields, "address"), told.host)
        key = av, integer(fields, "addr", 64)
        names[key] = name if names.get(key, name) == name else ""
    place, qpn = Seat()
    return [(av, addr, name, place, qpn) for (av, addr), name in names.items()]


OFI = Naming(
    {"ofi_endpoint": Endpoint(Layer.OFI, _ofi_endpoint)},
    frozenset(("ofi_av", "ofi_address")),
    _address_rows,
)
