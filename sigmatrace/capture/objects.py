"""From a process's objects to tables with canonical endpoint names.

A canonical name has the same bytes at both ends of a connection, in whatever process it is
worked out. A name that only means something on its host ends in ``@HOST``.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from sigmatrace.capture.tables import rows
from sigmatrace.schema import Layer

Fields = Mapping[str, Any]
Objects = Mapping[int, Fields]

KNOWN_TYPES = frozenset(
    (
        "library",
        "thread",
        "name",
        "memory",
        "ofi_endpoint",
        "ofi_av",
        "ofi_address",
        "ucp_worker",
        "ucp_ep",
        "ucp_rkey",
        "uct_iface",
        "uct_ep",
    )
)
OBJECT_TABLES = ("endpoints", "addresses", "names", "libraries")

_AF_INET, _AF_INET6 = 2, 10
_SOCKADDR_STORAGE_BYTES = 128
_GLOBAL_PROVIDERS = frozenset(
    ("efa", "psm2", "psm3", "opx", "cxi", "verbs", "ucx", "gni", "bgq", "mlx", "lpp")
)
_HOST_LOCAL_TRANSPORTS = frozenset(("posix", "sysv", "cma", "knem", "xpmem", "self"))


def integer(fields: Fields, key: str, bits: int = 32) -> int:
    """Return an unsigned field, 0 if it is missing, of another type, or too large."""
    value = fields.get(key, 0)
    is_fit = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << bits
    return value if is_fit else 0


def text(fields: Fields, key: str) -> str:
    """Return a text field, "" if it is missing or of another type."""
    value = fields.get(key, "")
    return value if isinstance(value, str) else ""


def binary(fields: Fields, key: str) -> bytes:
    """Return a binary field, empty if it is missing or of another type."""
    value = fields.get(key, b"")
    return value if isinstance(value, bytes) else b""


def socket_name(address: bytes, host: str) -> str | None:
    """Return ``ip:port`` of a raw IPv4 or IPv6 sockaddr, None if it is none.

    Loopback and unspecified addresses mean something on their host alone. An IPv4 address
    mapped into IPv6 is named as the other end sees it, as IPv4.
    """
    if len(address) < 16:
        return None
    (family,) = struct.unpack_from("=H", address)
    (port,) = struct.unpack_from(">H", address, 2)
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    if family == _AF_INET and len(address) in (16, _SOCKADDR_STORAGE_BYTES):
        ip = ipaddress.IPv4Address(address[4:8])
    elif family == _AF_INET6 and len(address) in (28, _SOCKADDR_STORAGE_BYTES):
        six = ipaddress.IPv6Address(address[8:24])
        ip = six.ipv4_mapped or six
    else:
        return None
    name = f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"
    is_local = ip.is_loopback or ip.is_unspecified or ip.is_link_local
    return f"{name}@{host}" if is_local else name


def ofi_name(provider: str, ep_type: str, address: bytes, host: str) -> str:
    """Return the canonical name of a libfabric address, "" if there is none."""
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


def uct_name(transport: str, device: bytes, interface: bytes, host: str) -> str:
    """Return the canonical name of a UCT interface, "" if its address is unknown."""
    if not transport or not (device or interface):
        return ""
    name = f"uct:{transport}:{device.hex()}:{interface.hex()}"
    return f"{name}@{host}" if transport in _HOST_LOCAL_TRANSPORTS else name


def object_tables(objects: Objects, host: str) -> dict[str, pa.Table]:
    """Return the tables ``OBJECT_TABLES`` of one process, without the column ``proc``.

    Args:
        objects: Merged fields by object id.
        host: The process's host.
    """
    return {
        "endpoints": _rows("endpoints", _endpoint_rows(objects, host)),
        "addresses": _rows("addresses", _address_rows(objects, host)),
        "names": _rows(
            "names", [(key, text(name, "name")) for key, name in _of(objects, "name").items()]
        ),
        "libraries": _rows(
            "libraries", [_library_row(x) for x in _of(objects, "library").values()]
        ),
    }


def thread_names(objects: Objects) -> dict[int, str]:
    """Return the names of threads by kernel thread id."""
    return {integer(x, "tid"): text(x, "name") for x in _of(objects, "thread").values()}


def _rows(name: str, values: list[tuple[Any, ...]]) -> pa.Table:
    return rows(name, values, without=("proc",))


def _of(objects: Objects, kind: str) -> Objects:
    return {key: fields for key, fields in objects.items() if fields.get("type") == kind}


def _library_row(fields: Fields) -> tuple[str, ...]:
    layer = fields.get("layer", "")
    name = layer.lower() if isinstance(layer, str) else _layer_name(layer)
    return (name, *(text(fields, key) for key in ("name", "version", "path", "how")))


def _layer_name(number: object) -> str:
    return next((layer.name.lower() for layer in Layer if layer == number), "")


def _endpoint_rows(objects: Objects, host: str) -> list[tuple[Any, ...]]:
    result = []
    for key, fields in objects.items():
        name = _NAMES.get(text(fields, "type"))
        if name is None:
            continue
        layer, owner_key, names = name
        local, peer = names(fields, objects, host)
        owner = integer(fields, owner_key) if owner_key else 0
        av, depth = integer(fields, "av"), integer(fields, "depth", 8)
        result.append((key, int(layer), text(fields, "type"), local, peer, owner, av, depth))
    return result


def _ofi_endpoint(fields: Fields, objects: Objects, host: str) -> tuple[str, str]:
    provider, ep_type = text(fields, "prov"), text(fields, "ep_type")
    local, peer = binary(fields, "local"), binary(fields, "peer")
    return ofi_name(provider, ep_type, local, host), ofi_name(provider, ep_type, peer, host)


def _ucp_worker(fields: Fields, objects: Objects, host: str) -> tuple[str, str]:
    return (f"ucp:{integer(fields, 'uid', 64):016x}" if "uid" in fields else ""), ""


def _ucp_ep(fields: Fields, objects: Objects, host: str) -> tuple[str, str]:
    if "remote_uid" in fields:
        return "", f"ucp:{integer(fields, 'remote_uid', 64):016x}"
    local = socket_name(binary(fields, "local_sockaddr"), host)
    remote = socket_name(binary(fields, "remote_sockaddr"), host)
    if local is None or remote is None:
        return "", ""
    return f"ucp:{local}-{remote}", f"ucp:{remote}-{local}"


def _uct_iface(fields: Fields, objects: Objects, host: str) -> tuple[str, str]:
    device, interface = binary(fields, "device_address"), binary(fields, "iface_address")
    return uct_name(text(fields, "tl"), device, interface, host), ""


def _uct_ep(fields: Fields, objects: Objects, host: str) -> tuple[str, str]:
    """Name an endpoint by the remote interface, or (connected ends) by both ends' addresses."""
    iface = objects.get(integer(fields, "iface"), {})
    transport, device = text(iface, "tl"), binary(fields, "device_address")
    local_ep = binary(fields, "local_ep_address")
    local = uct_name(transport, binary(iface, "device_address"), local_ep, host) if local_ep else ""
    remote = binary(fields, "iface_address") or binary(fields, "ep_address")
    return local, uct_name(transport, device, remote, host) if remote or device else ""


_NAMES: dict[str, tuple[Layer, str, Callable[[Fields, Objects, str], tuple[str, str]]]] = {
    "ofi_endpoint": (Layer.OFI, "", _ofi_endpoint),
    "ucp_worker": (Layer.UCP, "", _ucp_worker),
    "ucp_ep": (Layer.UCP, "worker", _ucp_ep),
    "uct_iface": (Layer.UCT, "", _uct_iface),
    "uct_ep": (Layer.UCT, "iface", _uct_ep),
}


def _address_rows(objects: Objects, host: str) -> list[tuple[int, int, str]]:
    """Name the entries of address vectors; an entry that was used for two addresses has none."""
    bound: dict[int, Fields] = {}
    for fields in _of(objects, "ofi_endpoint").values():
        bound.setdefault(integer(fields, "av"), fields)
    vectors = _of(objects, "ofi_av")
    names: dict[tuple[int, int], str] = {}
    for fields in _of(objects, "ofi_address").values():
        av = integer(fields, "av")
        endpoint = bound.get(av, {})
        provider = text(endpoint, "prov") or text(vectors.get(av, {}), "prov")
        ep_type = "dgram" if text(endpoint, "ep_type") == "dgram" else "rdm"
        name = ofi_name(provider, ep_type, binary(fields, "address"), host)
        key = av, integer(fields, "addr", 64)
        names[key] = name if names.get(key, name) == name else ""
    return [(av, addr, name) for (av, addr), name in names.items()]
