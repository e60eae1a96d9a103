"""From a process's objects to tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from sigmatrace.capture.names.fields import (
    Fields,
    Objects,
    binary,
    integer,
    lifetime,
    of_type,
    text,
)
from sigmatrace.capture.names.gpu import gpu_rows
from sigmatrace.capture.names.naming import Endpoint, Told
from sigmatrace.capture.names.ofi import OFI
from sigmatrace.capture.names.ucx import UCX
from sigmatrace.capture.names.verbs import (
    VERBS,
    lid_place,
    port_prefixes,
    socket_rows,
    transition_rows,
)
from sigmatrace.capture.tables import Rows, stored
from sigmatrace.schema_gpu import GPU_INDEX_TABLES
from sigmatrace.trace_format import Layer

_NAMINGS = (OFI, UCX, VERBS)
_ENDPOINTS: dict[str, Endpoint] = {
    kind: endpoint for naming in _NAMINGS for kind, endpoint in naming.endpoints.items()
}
KNOWN_TYPES = frozenset(("library", "thread", "name", "memory", *_ENDPOINTS)).union(
    *(naming.others for naming in _NAMINGS)
)
OBJECT_TABLES = (
    *("endpoints", "addresses", "regions"),
    *GPU_INDEX_TABLES,
    *("ports", "gids", "qp_transitions", "qp_sockets", "names", "libraries"),
)

WITHOUT = ("proc",)
"""What rows of one process do not have."""


def object_rows(objects: Objects, channels: np.ndarray, host: str) -> dict[str, Rows]:
    """Return the rows of tables ``OBJECT_TABLES`` of one process, without the column ``proc``.

    Args:
        objects: Merged fields by object id.
        channels: Channel records.
        host: The process's host.

    Returns:
        By table; those without rows are not there.
    """
    told = Told(objects, host)
    addresses = [
        row for naming in _NAMINGS if naming.addresses for row in naming.addresses(told, channels)
    ]
    names = [(key, text(name, "name")) for key, name in of_type(objects, "name").items()]
    found: dict[str, Sequence[tuple[Any, ...]]] = {
        "endpoints": _endpoint_rows(told),
        "addresses": addresses,
        "regions": [_region(*x) for x in of_type(objects, "memory").items()],
        **gpu_rows(objects),
        "ports": _port_rows(told),
        "gids": [_gid_row(x) for x in of_type(objects, "ib_gid").values()],
        "qp_transitions": transition_rows(objects),
        "qp_sockets": socket_rows(told),
        "names": names,
        "libraries": [_library_row(x) for x in of_type(objects, "library").values()],
    }
    return {name: stored(name, values, WITHOUT) for name, values in found.items() if values}


def thread_names(objects: Objects) -> dict[int, str]:
    """Return the names of threads by kernel thread id."""
    return {integer(x, "tid"): text(x, "name") for x in of_type(objects, "thread").values()}


def _library_row(fields: Fields) -> tuple[str, ...]:
    names = (text(fields, key) for key in ("name", "version", "path", "how"))
    return (text(fields, "layer").lower(), *names)


def _endpoint_rows(told: Told) -> list[tuple[Any, ...]]:
    """Name endpoints; connections that have the names of an earlier one are its later lives.

    A queue pair that two layers tell of is one connection in each.
    """
    result = []
    lives: Counter[tuple[Layer, str, str]] = Counter()
    named = [(key, kind) for kind in _ENDPOINTS for key in of_type(told.objects, kind)]
    for key, kind in sorted(named):
        fields, endpoint = told.objects[key], _ENDPOINTS[kind]
        local, peer, av, seat, peer_seat, is_lossy, psn = endpoint.ends(key, fields, told)
        owner = integer(fields, endpoint.owner) if endpoint.owner else 0
        names = local, peer, owner, av, integer(fields, "depth", 8)
        connection = endpoint.layer, local, peer
        life = lives[connection] if local and peer else 0
        lives[connection] += 1
        times = life, *lifetime(fields)
        transport = int(is_lossy), psn
        what = key, int(endpoint.layer), kind
        result.append((*what, *names, *times, *seat, *peer_seat, *transport))
    return result


def _region(key: int, fields: Fields) -> tuple[Any, ...]:
    name = text(fields, "layer")
    layer = next((one for one in Layer if one.name.lower() == name), 0)
    # What the other end's addresses count from is `iova`, where that is not the address itself.
    start = "iova" if "iova" in fields else "address"
    numbers = (integer(fields, what, 64) for what in ("key", start, "length_bytes"))
    return (key, int(layer), *numbers, *lifetime(fields))


def _port_rows(told: Told) -> list[tuple[Any, ...]]:
    rows = []
    prefixes = told.once(port_prefixes)
    for key, fields in of_type(told.objects, "ib_port").items():
        device = told.objects.get(integer(fields, "device"), {})
        where = text(device, "name"), integer(device, "node_guid", 64), integer(device, "numa")
        what = (
            text(fields, "link_layer"),
            integer(fields, "mtu_bytes"),
            integer(fields, "rate_mbps"),
        )
        number = integer(fields, "port", 8), integer(fields, "lid", 16)
        prefix = prefixes.get((integer(fields, "device"), integer(fields, "port")), "")
        place = lid_place(number[1], prefix)
        rows.append((key, *where, *number, *what, text(fields, "netdev"), place))
    return rows


def _gid_row(fields: Fields) -> tuple[Any, ...]:
    numbers = integer(fields, "port"), integer(fields, "index")
    gid = binary(fields, "gid").hex()
    return (*numbers, gid, text(fields, "gid_type"), gid)
