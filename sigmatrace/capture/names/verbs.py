"""Names of queue pairs: the port they are reached through, and their number.

A name is ``ib:PLACE:QPN``. The place of a port is a GID in hex, or ``lidLID/PREFIX`` where a path
has no GID. A port has several GIDs: over the whole run one stands for all (``places.py``), and the
names are written anew. Queue pairs of mlx5 (layer mlx5dv) are named alike: their peer may be one
of libibverbs. Source: docs/verbs.md section 3; InfiniBand Architecture Specification vol. 1, 4.1
(GIDs) and 9.2 (QPNs).
"""

from __future__ import annotations

import numpy as np

from sigmatrace.capture.names.fields import Fields, Objects, binary, integer, of_type, text
from sigmatrace.capture.names.naming import Address, Endpoint, Names, Naming, Seat, Told
from sigmatrace.capture.names.sockets import socket_name
from sigmatrace.trace_format import QUEUE_PAIR_LAYERS, Dir, Layer

_PREFIX_BYTES = 8
_QPN_SHIFT = 32
_LOW = (1 << _QPN_SHIFT) - 1
_LOSSY = frozenset(("uc", "ud", "raw", "driver"))
"""Types of queue pairs that promise neither arrival nor order, or whose driver alone knows."""
_UNCONNECTED = ("ud", "dci")
"""Types of queue pairs of which every work request names its destination."""
_STATES = ("init", "rtr", "rts", "sqd", "sqe", "error")


def verbs_name(place: str, qpn: int) -> str:
    """Return the canonical name of a queue pair, "" where its place is unknown."""
    return f"ib:{place}:{qpn:x}" if place else ""


def lid_place(lid: int, prefix: str) -> str:
    """Return the place of a port by its LID and the prefix of its subnet, "" without LID."""
    return f"lid{lid}/{prefix}" if lid else ""


def port_prefixes(objects: Objects) -> dict[tuple[int, int], str]:
    """Return the subnet prefix in hex, the upper half of the first GID, by device and port."""
    ports = of_type(objects, "ib_port")
    found: dict[tuple[int, int], str] = {}
    for fields in of_type(objects, "ib_gid").values():
        port = ports.get(integer(fields, "port"), {})
        if integer(fields, "index") == 0:
            where = integer(port, "device"), integer(port, "port")
            found.setdefault(where, binary(fields, "gid")[:_PREFIX_BYTES].hex())
    return found


def _place(gid: bytes, lid: int, prefix: str) -> str:
    """Return the place of a port: its GID, else its LID with the subnet's prefix, else ""."""
    return gid.hex() if len(gid) == 16 and any(gid) else lid_place(lid, prefix)


def _prefix(fields: Fields, told: Told) -> str:
    """Return the subnet prefix of the port that an object goes through; for LIDs alone."""
    if "prefix" in fields:
        return binary(fields, "prefix").hex()
    where = integer(fields, "device"), integer(fields, "port")
    return told.once(port_prefixes).get(where, "")


def _queue_pair(key: int, fields: Fields, told: Told) -> Names:
    """Name a queue pair; a connected one has a peer, others are their own address vectors."""
    qpn, remote = integer(fields, "qpn"), integer(fields, "dest_qpn")
    prefix = _prefix(fields, told)
    own = _place(binary(fields, "sgid"), integer(fields, "slid"), prefix)
    other = _place(binary(fields, "dgid"), integer(fields, "dlid"), prefix)
    here = Seat(own, qpn) if own and qpn else Seat()
    there = Seat(other, remote) if other and "dest_qpn" in fields else Seat()
    kind = text(fields, "qp_type")
    av = key if kind in _UNCONNECTED else 0
    psn = integer(fields, "sq_psn") if "sq_psn" in fields else -1
    names = verbs_name(*here), verbs_name(*there)
    return Names(*names, av, here, there, kind in _LOSSY, psn)


def _destinations(told: Told, channels: np.ndarray) -> list[Address]:
    """Name where unconnected queue pairs send to: an address handle or vector, and a number."""
    handles = {**of_type(told.objects, "ib_ah"), **of_type(told.objects, "mlx5_av")}
    if not handles:
        return []
    is_qp = np.isin(channels["layer"], QUEUE_PAIR_LAYERS)
    mine = channels[is_qp & (channels["dir"] == Dir.OUT)]
    found: dict[tuple[int, int], Seat] = {}
    for thing, peer in zip(mine["object"].tolist(), mine["peer"].tolist(), strict=True):
        handle = handles.get(peer & _LOW)
        if handle is None or text(told.objects.get(thing, {}), "qp_type") not in _UNCONNECTED:
            continue
        place = _place(binary(handle, "dgid"), integer(handle, "dlid"), _prefix(handle, told))
        found[thing, peer] = Seat(place, peer >> _QPN_SHIFT) if place else Seat()
    return [(*key, verbs_name(*seat), *seat) for key, seat in found.items()]


def transition_rows(objects: Objects) -> list[tuple[int, int, str]]:
    """Return queue pair, time and state of each state that a connection entered, in order of time.

    A state that was entered again is there with its last time.
    """
    rows = [
        (key, integer(fields, f"{state}_tsc", 64), state)
        for key, fields in of_type(objects, "ib_qp").items()
        for state in _STATES
        if f"{state}_tsc" in fields
    ]
    return sorted(rows, key=lambda row: row[:2])


def socket_rows(told: Told) -> list[tuple[int, str, str]]:
    """Return queue pair, local and remote socket of what rdma_cm connected."""
    rows = []
    for fields in of_type(told.objects, "ib_cm").values():
        local = socket_name(binary(fields, "local_sockaddr"), told.host) or ""
        remote = socket_name(binary(fields, "remote_sockaddr"), told.host) or ""
        rows.append((integer(fields, "qp"), local, remote))
    return rows


VERBS = Naming(
    {
        "ib_qp": Endpoint(Layer.VERBS, _queue_pair),
        "mlx5_qp": Endpoint(Layer.MLX5DV, _queue_pair),
    },
    frozenset(
        (
            *("ib_device", "ib_port", "ib_gid", "ib_pd", "ib_xrcd", "ib_comp_channel"),
            *("ib_cq", "ib_srq", "ib_ah", "ib_cm"),
            *("mlx5_uar", "mlx5_umem", "mlx5_cq", "mlx5_av", "gpu", "gpu_kernels"),
        )
    ),
    _destinations,
)
