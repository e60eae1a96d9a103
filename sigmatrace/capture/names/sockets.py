"""Names of socket addresses."""

from __future__ import annotations

import functools
import ipaddress
import struct

_AF_INET, _AF_INET6 = 2, 10
_SOCKADDR_STORAGE_BYTES = 128


def socket_name(address: bytes, host: str) -> str | None:
    """Return ``ip:port`` of a raw IPv4 or IPv6 sockaddr, None if it is none.

    Loopback and unspecified addresses mean something on their host alone. An IPv4 address
    mapped into IPv6 is named as the other end sees it, as IPv4.
    """
    known = _of_address(address)
    if known is None:
        return None
    name, is_local = known
    return f"{name}@{host}" if is_local else name


@functools.lru_cache(maxsize=1 << 14)
def _of_address(address: bytes) -> tuple[str, bool] | None:
    """Return ``ip:port``, and whether it means something on its host alone.

    In a run every process names the others: the same addresses come again and again.
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
    return name, ip.is_loopback or ip.is_unspecified or ip.is_link_local
