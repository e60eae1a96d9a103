"""Names of UCP's workers and endpoints, and of UCT's interfaces and endpoints."""

from __future__ import annotations

from sigmatrace.capture.names.fields import Fields, binary, integer, text
from sigmatrace.capture.names.naming import Endpoint, Names, Naming, Told
from sigmatrace.capture.names.sockets import socket_name
from sigmatrace.trace_format import Layer

_HOST_LOCAL_TRANSPORTS = frozenset(("posix", "sysv", "cma", "knem", "xpmem", "self"))


def uct_name(transport: str, device: bytes, interface: bytes, host: str) -> str:
    """Return the canonical name of a UCT interface, "" if its address is unknown."""
    if not transport or not (device or interface):
        return ""
    name = f"uct:{transport}:{device.hex()}:{interface.hex()}"
    return f"{name}@{host}" if transport in _HOST_LOCAL_TRANSPORTS else name


def _ucp_worker(key: int, fields: Fields, told: Told) -> Names:
    return Names(f"ucp:{integer(fields, 'uid', 64):016x}" if "uid" in fields else "")


def _ucp_ep(key: int, fields: Fields, told: Told) -> Names:
    if "remote_uid" in fields:
        return Names("", f"ucp:{integer(fields, 'remote_uid', 64):016x}")
    local = socket_name(binary(fields, "local_sockaddr"), told.host)
    remote = socket_name(binary(fields, "remote_sockaddr"), told.host)
    if local is None or remote is None:
        return Names("")
    return Names(f"ucp:{local}-{remote}", f"ucp:{remote}-{local}")


def _uct_iface(key: int, fields: Fields, told: Told) -> Names:
    device, interface = binary(fields, "device_address"), binary(fields, "iface_address")
    return Names(uct_name(text(fields, "tl"), device, interface, told.host))


def _uct_ep(key: int, fields: Fields, told: Told) -> Names:
    """Name an endpoint by the remote interface, or (connected ends) by both ends' addresses."""
    iface = told.objects.get(integer(fields, "iface"), {})
    transport, device = text(iface, "tl"), binary(fields, "device_address")
    local_ep = binary(fields, "local_ep_address")
    local = (
        uct_name(transport, binary(iface, "device_address"), local_ep, told.host)
        if local_ep
        else ""
    )
    remote = binary(fields, "iface_address") or binary(fields, "ep_address")
    peer = uct_name(transport, device, remote, told.host) if remote or device else ""
    return Names(local, peer)


UCX = Naming(
    {
        "ucp_worker": Endpoint(Layer.UCP, _ucp_worker),
        "ucp_ep": Endpoint(Layer.UCP, _ucp_ep, "worker"),
        "uct_iface": Endpoint(Layer.UCT, _uct_iface),
        "uct_ep": Endpoint(Layer.UCT, _uct_ep, "iface"),
    },
    frozenset(("ucp_rkey",)),
)
