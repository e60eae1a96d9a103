"""Names of queue pairs: the port they are reached through, and their number.

A name is ``ib:PORT:QPN``. PORT is a GID in hex, or ``lidLID/PREFIX`` where a path has no GID. A
port has several GIDs: over the whole run they are mapped to one (``aliases``). Source:
docs/verbs.md section 3; InfiniBand Architecture Specification vol. 1, 4.1 (GIDs) and 9.2 (QPNs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from sigmatrace.capture.names.fields import Fields, Objects, binary, integer, of_type, text
from sigmatrace.capture.names.naming import Endpoint, Names, Naming
from sigmatrace.trace_format import Dir, Layer

_PREFIX_BYTES = 8
_QPN_SHIFT = 32
_LOW = (1 << _QPN_SHIFT) - 1


def _place(gid: bytes, lid: int, prefix: str) -> str:
    """Return what names a port: its GID, else its LID with the subnet's prefix, else ""."""
    if len(gid) == 16 and any(gid):
        return gid.hex()
    return f"lid{lid}/{prefix}" if lid else ""


def _prefix(objects: Objects, device: int, port: int) -> str:
    """Return the subnet prefix of a port in hex: the upper half of its first GID."""
    ports = of_type(objects, "ib_port")
    for fields in of_type(objects, "ib_gid").values():
        of_port = ports.get(integer(fields, "port"), {})
        here = integer(of_port, "device") == device and integer(of_port, "port") == port
        if here and integer(fields, "index") == 0:
            return binary(fields, "gid")[:_PREFIX_BYTES].hex()
    return ""


def _ib_qp(key: int, fields: Fields, objects: Objects, host: str) -> Names:
    """Name a queue pair; a connected one has a peer, a UD one is its own address vector."""
    qpn, remote = integer(fields, "qpn"), integer(fields, "dest_qpn")
    needs_lid = "slid" in fields or "dlid" in fields
    device, port = integer(fields, "device"), integer(fields, "port")
    prefix = _prefix(objects, device, port) if needs_lid else ""
    own = _place(binary(fields, "sgid"), integer(fields, "slid"), prefix)
    other = _place(binary(fields, "dgid"), integer(fields, "dlid"), prefix)
    local = f"ib:{own}:{qpn:x}" if own and qpn else ""
    peer = f"ib:{other}:{remote:x}" if other and "dest_qpn" in fields else ""
    return Names(local, peer, key if text(fields, "qp_type") == "ud" else 0)


def _destinations(objects: Objects, channels: np.ndarray, host: str) -> list[tuple[int, int, str]]:
    """Name where UD queue pairs send to: an address handle and a remote QPN."""
    handles = of_type(objects, "ib_ah")
    mine = channels[(channels["layer"] == Layer.VERBS) & (channels["dir"] == Dir.OUT)]
    found: dict[tuple[int, int], str] = {}
    for thing, peer in zip(mine["object"].tolist(), mine["peer"].tolist(), strict=True):
        handle = handles.get(peer & _LOW)
        if handle is None or text(objects.get(thing, {}), "qp_type") != "ud":
            continue
        prefix = _prefix(objects, integer(handle, "device"), integer(handle, "port"))
        place = _place(binary(handle, "dgid"), integer(handle, "dlid"), prefix)
        found[thing, peer] = f"ib:{place}:{peer >> _QPN_SHIFT:x}" if place else ""
    return [(thing, peer, name) for (thing, peer), name in found.items()]


def aliases(ports: Iterable[tuple[str, list[str]]]) -> dict[str, str]:
    """Return for each GID the one that stands for its port.

    Args:
        ports: Of all processes: what tells a port from others on its host and over the run, and
            its GIDs in hex in the order of their index. One port may come many times.

    Returns:
        GIDs that two different ports claim are left out: they name no place for certain.
    """
    claimed: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    for port, gids in ports:
        for gid in gids:
            claimed.setdefault(gid, set()).add(port)
            first.setdefault(port, gid)
    return {gid: first[next(iter(who))] for gid, who in claimed.items() if len(who) == 1}


def canonical(name: str, known: Mapping[str, str]) -> str:
    """Return a name with its GID replaced by the one that stands for the port."""
    kind, _, rest = name.partition(":")
    place, _, qpn = rest.partition(":")
    return f"{kind}:{known.get(place, place)}:{qpn}" if kind == "ib" else name


VERBS = Naming(
    {"ib_qp": Endpoint(Layer.VERBS, _ib_qp)},
    frozenset(
        (
            *("ib_device", "ib_port", "ib_gid", "ib_pd", "ib_xrcd", "ib_comp_channel"),
            *("ib_cq", "ib_srq", "ib_ah", "ib_cm"),
        )
    ),
    _destinations,
)
